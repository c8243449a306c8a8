"""Do the intervals of a report hold what they promise? Coverage by simulation.

    python benchmarks/report_coverage.py [--repeats 2000] [--output results/report]

Draws runs from a known distribution, again and again, and counts how often the interval of 95 %
holds the true value: Student's interval of the mean of one task's seeds, and the stratified
bootstrap of the interquartile mean over six tasks. Results are normal, skewed (a gamma
distribution), or of two kinds (one run in four fails), which is what returns look like at worst.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

from polyak.report.statistics import iqm, mean_interval, stratified_interval

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Generator and number of runs to their results (n,)."""

DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda generator, n: generator.normal(0.8, 0.15, n),
    "skewed": lambda generator, n: generator.gamma(2.0, 0.3, n),
    "one in four fails": lambda generator, n: np.where(
        generator.random(n) < 0.25, generator.normal(0.2, 0.05, n), generator.normal(0.9, 0.05, n)
    ),
}
SHIFTS = (-0.15, -0.1, -0.05, 0.05, 0.1, 0.15)
"""Tasks differ by these amounts."""

COLUMNS = ("interval", "distribution", "tasks", "seeds", "repeats", "covered")


def mean_coverage(draw: Draw, seeds: int, repeats: int) -> float:
    """Share of Student's intervals that hold the true mean."""
    generator = np.random.default_rng(1)
    truth = draw(generator, 2_000_000).mean()
    ends = mean_interval(np.stack([draw(generator, repeats) for _ in range(seeds)]))
    assert ends is not None
    low, high = ends
    return float(np.mean((low <= truth) & (truth <= high)))


def iqm_coverage(draw: Draw, seeds: int, repeats: int, resamples: int) -> float:
    """Share of bootstrap intervals that hold the true interquartile mean over the tasks."""
    generator = np.random.default_rng(2)
    truth = iqm(np.concatenate([draw(generator, 400_000) + shift for shift in SHIFTS]))
    hits = 0
    for _ in range(repeats):
        samples = [draw(generator, seeds) + shift for shift in SHIFTS]
        ends = stratified_interval(samples, iqm, resamples)
        assert ends is not None
        hits += bool(ends[0] <= truth <= ends[1])
    return hits / repeats


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=2_000)
    parser.add_argument("--output", type=Path, default=Path("results/report"))
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for name, draw in DISTRIBUTIONS.items():
        for seeds in (3, 5, 10):
            many = 50 * options.repeats
            covered = mean_coverage(draw, seeds, many)
            rows.append(("mean: Student", name, 1, seeds, many, f"{covered:.3f}"))
            covered = iqm_coverage(draw, seeds, options.repeats, 1_000)
            tasks = len(SHIFTS)
            rows.append(("IQM: bootstrap", name, tasks, seeds, options.repeats, f"{covered:.3f}"))
            print(*rows[-2], *rows[-1], flush=True)
    rows.sort(key=lambda row: str(row[0]), reverse=True)
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "coverage.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
