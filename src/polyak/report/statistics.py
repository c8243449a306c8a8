"""Means, spreads and intervals over seeds and tasks.

Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice, for the
interquartile mean, its stratified bootstrap and performance profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
"""Confidence of every interval."""

RESAMPLES = 2_000
"""Bootstrap resamples; the ends of an interval then vary by a hundredth of its width or two."""


class Spread(NamedTuple):
    """Mean and sample standard deviation (divisor n - 1) over n runs."""

    mean: float
    std: float | None
    """None for one run."""
    n: int


class Estimate(NamedTuple):
    """A number with its interval; None where the runs are too few to tell."""

    value: float
    low: float | None
    high: float | None


def spread(values: np.ndarray) -> Spread | None:
    """Mean and spread of some runs' results (n,), or None of no runs."""
    if not len(values):
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std, len(values))


def mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Student's t interval of the mean over seeds.

    With three or five seeds it holds what it promises for results that are roughly normal, which a
    bootstrap of so few does not.

    Args:
        values: (n, ...), a seed a row.

    Returns:
        Both ends, (...) each; None for fewer than two seeds.
    """
    n = len(values)
    if n < 2:
        return None
    half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, axis=0, ddof=1) / np.sqrt(n)
    mean = np.mean(values, axis=0)
    return mean - half, mean + half


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean over the first axis: a quarter of the n scores is cut off at each end.

    The cut is rounded down to whole scores, so that four scores lose the lowest and the highest
    and three lose none.
    """
    return stats.trim_mean(scores, 0.25, axis=0)


def stratified_interval(
    samples: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], Any],
    resamples: int = RESAMPLES,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Percentile bootstrap that draws runs anew within each task, never between tasks.

    The same draws every time: a report of the same runs is the same.

    Args:
        samples: for each task its runs, (n, ...); trailing axes are the same for all.
        statistic: of all runs of all tasks, (N, ...), to a number or an array.

    Returns:
        Both ends, shaped as the statistic; None if a task has fewer than two runs.
    """
    if not samples or min(map(len, samples)) < 2:
        return None
    generator = np.random.default_rng(0)
    draws = [
        statistic(np.concatenate([s[generator.integers(len(s), size=len(s))] for s in samples]))
        for _ in range(resamples)
    ]
    low, high = np.quantile(np.stack(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of runs that score above each threshold.

    Args:
        scores: (N,).
        thresholds: (K,), ascending.

    Returns:
        (K,).
    """
    above = len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")
    return above / max(len(scores), 1)
