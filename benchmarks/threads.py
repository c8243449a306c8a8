"""What more threads bring one run: steps per second of `polyak train` with one thread and with N.

    python benchmarks/threads.py [--threads 2] [--rounds 9]

All systems train on Hopper-v5 and take turns (`pacing.py`). Writes results/speed/threads.csv: the
medians, and the load of the machine. Threads wait for the slowest of them, so what they bring says
as much about what else the machine does as about the machine.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import systems
import targets
from pacing import Turns, take_turns

from polyak import runs

STARTS, WARM_UP = 500, 200
"""Random steps, and learning steps, before what is measured."""


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--algorithms", nargs="+", default=targets.ALGORITHMS)
    parser.add_argument("--output", type=Path, default=Path("results/speed"))
    options = parser.parse_args()
    context, rows = runs.context(), []
    for algorithm in options.algorithms:
        load = os.getloadavg()[0]
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            turns = {}
            for backend, threads in itertools.product(targets.BACKENDS, (1, options.threads)):
                worker = systems.polyak_loop(
                    algorithm, backend, targets.TASK,
                    threads=threads, learning_starts=STARTS, runs_dir=folder,
                )  # fmt: skip
                worker = stack.enter_context(worker)
                turns[backend, threads] = Turns(worker, STARTS + WARM_UP, options.steps)
            reports = take_turns(turns, options.rounds)
        for backend in targets.BACKENDS:
            one, more = (
                median(options.steps / report["seconds"] for report in reports[backend, threads])
                for threads in (1, options.threads)
            )
            rows.append({
                "task": targets.TASK, "algorithm": algorithm, "backend": backend,
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
