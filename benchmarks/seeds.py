"""What one process for four seeds saves: its wall time beside four processes, one after another.

    python benchmarks/seeds.py [--rounds 3] [--seeds 4]

Trains TD3 on Hopper-v5 with each backend, alternately by `--num-seeds 4` and by four commands of
one seed each, and times the whole commands: start-up and compilation are what is shared. Writes
results/speed/seeds.csv and a figure.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from polyak import runs

FLAGS = ("--env-id=Hopper-v5", "--total-timesteps=2500", "--learning-starts=500", "--threads=1")
WAYS = ("one process", "one after another")
COLUMNS = ("round", "backend", "seeds", "way", "seconds", "load before", "cores", "processor")


def seconds(backend: str, seeds: int, way: str) -> float:
    """Wall time of training these seeds."""
    commands = [[f"--seed={seed}"] for seed in range(1, seeds + 1)]
    if way == "one process":
        commands = [["--seed=1", f"--num-seeds={seeds}"]]
    with tempfile.TemporaryDirectory() as folder:
        words = (sys.executable, "-m", "polyak", "train", "td3", *FLAGS, f"--backend={backend}")
        began = time.perf_counter()
        for command in commands:
            subprocess.run(
                [*words, f"--runs-dir={folder}", *command], check=True, capture_output=True
            )
        return time.perf_counter() - began


def times(rows: list[dict[str, str]], backend: str, way: str) -> list[float]:
    """Seconds of every round."""
    return [float(row["seconds"]) for row in rows if (row["backend"], row["way"]) == (backend, way)]


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Medians as bars, every measurement as a point."""
    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    for index, way in enumerate(WAYS):
        for place, backend in enumerate(backends):
            found = times(rows, backend, way)
            at = place + 0.4 * (index - 0.5)
            label = way if place == 0 else None
            axes.bar(at, median(found), width=0.36, color=f"C{index}", label=label)
            axes.plot([at] * len(found), found, "k.", markersize=4)
    axes.set_xticks(range(len(backends)), backends)
    axes.set(ylabel="seconds", title=f"TD3 on Hopper-v5, {rows[0]['seeds']} seeds of 2,500 steps")
    axes.legend()
    figure.savefig(path, dpi=90)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--backends", nargs="+", default=["torch", "jax"])
    parser.add_argument("--output", type=Path, default=Path("results/speed"))
    options = parser.parse_args()
    context = runs.context()
    rows = []
    for number in range(1, options.rounds + 1):
        for backend in options.backends:
            for way in WAYS:
                load = os.getloadavg()[0]
                took = seconds(backend, options.seeds, way)
                row = (str(number), backend, str(options.seeds), way, f"{took:.1f}", f"{load:.2f}")
                machine = (str(context["cores"]), context["processor"])
                rows.append(dict(zip(COLUMNS, (*row, *machine), strict=True)))
                print(*row, flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "seeds.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, options.output / "seeds.png")
    for backend in options.backends:
        one, after = (median(times(rows, backend, way)) for way in WAYS)
        print(f"{backend}: one process takes {one / after:.2f} of the time")


if __name__ == "__main__":
    main()
