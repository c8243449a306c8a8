"""What more threads bring one run: steps per second of `polyak train` with one thread and with N.

    python benchmarks/threads.py [--threads 2] [--rounds 9]

All systems train TD3 on Hopper-v5 and take turns (`pacing.py`), first with nothing beside them and
then beside one process that computes without end: threads wait for the slowest of them. Writes
results/speed/threads.csv with medians.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import systems
import targets
from pacing import Turns, take_turns

from polyak import runs

ALGORITHM = "td3"
STARTS, WARM_UP = 500, 200
"""Random steps, and learning steps, before what is measured."""


def speeds(threads: int, rounds: int, steps: int, busy: int) -> dict[tuple[str, int], float]:
    """Steps per second by backend and threads, beside so many processes that compute."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        turns = {}
        for backend, number in itertools.product(targets.BACKENDS, (1, threads)):
            worker = systems.polyak_loop(
                ALGORITHM, backend, targets.TASK,
                threads=number, learning_starts=STARTS, runs_dir=folder,
            )  # fmt: skip
            turns[backend, number] = Turns(stack.enter_context(worker), STARTS + WARM_UP, steps)
        for _ in range(busy):
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(other.wait)
            stack.callback(other.kill)
        reports = take_turns(turns, rounds)
    return {
        key: median(steps / report["seconds"] for report in found) for key, found in reports.items()
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("results/speed"))
    options = parser.parse_args()
    if options.threads < 2:
        parser.error("--threads must be 2 or more: one is what it is compared with")
    context, rows = runs.context(), []
    for busy in (0, 1):
        load = os.getloadavg()[0]
        found = speeds(options.threads, options.rounds, options.steps, busy)
        for backend in targets.BACKENDS:
            one, more = found[backend, 1], found[backend, options.threads]
            rows.append({
                "task": targets.TASK, "algorithm": ALGORITHM, "backend": backend,
                "busy processes beside": busy,
                "steps/s with 1 thread": f"{one:.1f}",
                f"steps/s with {options.threads} threads": f"{more:.1f}",
                "ratio": f"{more / one:.2f}", "rounds": options.rounds,
                "load before": f"{load:.2f}", "cores": context["cores"],
                "processor": context["processor"], "commit": context["git"].get("commit", ""),
            })  # fmt: skip
            print(*rows[-1].values(), flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "threads.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
