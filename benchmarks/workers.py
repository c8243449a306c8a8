"""What a second worker brings: total steps per second of two single-threaded runs beside one.

    python benchmarks/workers.py [--pairs 4]

Trains TD3 on Hopper-v5 by `polyak benchmark`, alternately with one worker and with two, and
compares the sums of `charts/SPS_learning`, which leave out start-up and warm-up. Two cores that are
threads of one core, or other work on the machine (its load stands in each row), lower the ratio.
Writes results/benchmark/workers.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from polyak import runs

RESULTS = Path(__file__).parents[1] / "results" / "benchmark" / "workers.csv"
COMMAND = (
    *("--env-ids", "Hopper-v5", "--algorithms", "td3", "--threads", "1", "--eval-interval", "0"),
    *("--total-timesteps", "2500", "--learning-starts", "500"),
)


def total_speed(workers: int, folder: Path) -> float:
    """Steps per second of so many runs side by side, all together."""
    command = [sys.executable, "-m", "polyak", "benchmark", *COMMAND]
    command += ["--num-seeds", str(workers), "--workers", str(workers), "--runs-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    name = "charts/SPS_learning"
    return sum(float(run.metrics(name)[-1][name]) for run in runs.find([folder]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=4)
    pairs = parser.parse_args().pairs
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            load = os.getloadavg()[0]
            one = total_speed(1, Path(folder) / f"{pair}-1")
            two = total_speed(2, Path(folder) / f"{pair}-2")
            rows.append((f"{pair + 1}", one, two, two / one, load))
            print(*rows[-1], flush=True)
    context = runs.context()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = ("pair", "one worker, steps/s", "two workers, steps/s", "ratio", "load before")
        writer.writerow((*names, "cores", "processor"))
        for row in rows:
            numbers = (f"{value:.2f}" for value in row[1:])
            writer.writerow((row[0], *numbers, context["cores"], context["processor"]))
    print(f"median ratio: {median(row[3] for row in rows):.2f}")


if __name__ == "__main__":
    main()
