"""Means, spreads and intervals over seeds and tasks.

Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice, for the
interquartile mean, its stratified bootstrap and performance profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

LEVEL = 0.95
"""Confidence of every interval."""

RESAMPLES = 2_000
"""Bootstrap resamples; the ends of an interval then vary by a hundredth of its width or two."""

BATCH = 2_000_000
"""Numbers drawn at once, which bounds the memory of a bootstrap."""


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
    half = special.stdtrit(n - 1, (1 + LEVEL) / 2) * np.std(values, axis=0, ddof=1) / np.sqrt(n)
    mean = np.mean(values, axis=0)
    return mean - half, mean + half


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean over the last axis: a quarter of the N scores is cut off at each end.

    The cut is rounded down to whole scores, so that four scores lose the lowest and the highest
    and three lose none.

    Args:
        scores: (..., N).

    Returns:
        (...).
    """
    n = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., n // 4 : n - n // 4].mean(axis=-1)


def stratified_interval(
    samples: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], np.ndarray],
    resamples: int = RESAMPLES,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Percentile bootstrap that draws runs anew within each task, never between tasks.

    The same draws every time: a report of the same runs is the same.

    Args:
        samples: for each task its runs, (..., n); the leading axes are the same for all.
        statistic: reduces the last axis of all runs of all tasks, (..., N) to (...).
        resamples: how many draws.

    Returns:
        Both ends, (...) each; None if a task has fewer than two runs.
    """
    if not samples or min(sample.shape[-1] for sample in samples) < 2:
        return None
    generator = np.random.default_rng(0)
    largest = max(BATCH // sum(sample.size for sample in samples), 1)
    draws = []
    for begin in range(0, resamples, largest):
        size = min(largest, resamples - begin)
        picks = [_drawn_anew(sample, size, generator) for sample in samples]
        draws.append(statistic(np.concatenate(picks, axis=-1)))  # (..., size)
    low, high = np.quantile(
        np.concatenate(draws, axis=-1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1
    )
    return low, high


def _drawn_anew(sample: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """`size` draws of n runs from n runs, with replacement: (..., n) to (..., size, n)."""
    n = sample.shape[-1]
    return sample[..., generator.integers(n, size=(size, n))]
