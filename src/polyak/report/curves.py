"""Learning curves on common axes: one per run, and the mean of an experiment with its interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polyak.report import statistics
from polyak.report.collect import EVALUATION, Group, Protocol, Record

POINTS = 100
"""Points of a curve, unless evaluations give them."""


class Axis(NamedTuple):
    """What a curve runs along."""

    key: str
    title: str
    unit: float
    """One unit of the title in steps or seconds."""


STEPS = Axis("steps", "environment steps", 1.0)
TIME = Axis("time", "wall-clock time (minutes)", 60.0)
AXES = (STEPS, TIME)


@dataclass(frozen=True)
class Curve:
    """An experiment on one task along one axis. All arrays are (K,); NaN where there is nothing."""

    group: Group
    x: np.ndarray
    """The same for all curves of the task, in units of the axis."""
    seeds: dict[str, np.ndarray]
    """Finished runs that count and have such a curve, by seed."""
    unfinished: dict[str, np.ndarray]
    """Runs that did not come to their end, by seed; they are in no mean."""
    mean: np.ndarray
    """Over `seeds`, as far as every one of them reaches."""
    low: np.ndarray | None
    """Lower end of the mean's interval; None for one seed."""
    high: np.ndarray | None


def by_task(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each task."""
    tasks: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        tasks[group.task].append(group)
    return dict(tasks)


def draw(groups: Sequence[Group], protocol: Protocol, axis: Axis) -> list[Curve]:
    """The curves of one task's groups, all on one axis."""
    everyone = [record for group in groups for record in (*group.counted, *group.shown)]
    x = grid(everyone, protocol, axis)
    curves = []
    for group in groups:
        seeds = _curves(group.counted, protocol, axis, x)
        # Two unfinished runs of one seed: the one that came further.
        furthest = {r.seed: r for r in sorted(group.shown, key=lambda record: record.step)}
        unfinished = _curves(list(furthest.values()), protocol, axis, x)
        values = np.stack(list(seeds.values()) or [np.full(len(x), np.nan)])
        # NaN spreads: where one seed has ended, so has the mean. A mean of fewer seeds would jump.
        ends = statistics.mean_interval(values)
        low, high = ends if ends is not None else (None, None)
        curves.append(Curve(group, x, seeds, unfinished, values.mean(axis=0), low, high))
    return curves


def grid(records: Sequence[Record], protocol: Protocol, axis: Axis) -> np.ndarray:
    """Where the curves of a task have their points: at the evaluations, or evenly spread."""
    positions = [_x(record, protocol, axis) for record in records]
    found = np.unique(np.concatenate(positions)) if positions else np.empty(0)
    if protocol is EVALUATION and axis is STEPS and len(found) <= 4 * POINTS:
        return found
    return np.linspace(0.0, found[-1], POINTS + 1) if len(found) else found


def resample(record: Record, protocol: Protocol, axis: Axis, x: np.ndarray) -> np.ndarray:
    """One run's values at `x` (K,); NaN before its first and after its last.

    Evaluations are joined by straight lines. Of training episodes, a point is the mean of those
    that ended since the point before; points between two episodes lie on a straight line.
    """
    at, values = _x(record, protocol, axis), record.series[protocol.key].values
    if not len(at) or not len(x):
        return np.full(len(x), np.nan)
    if protocol is not EVALUATION:
        bins = np.searchsorted(x, at)  # x[bin - 1] < at <= x[bin]
        counts = np.bincount(bins, minlength=len(x))
        filled = counts > 0
        at, values = x[filled], np.bincount(bins, values, minlength=len(x))[filled] / counts[filled]
    return np.interp(x, at, values, left=np.nan, right=np.nan)


def _curves(
    records: Sequence[Record], protocol: Protocol, axis: Axis, x: np.ndarray
) -> dict[str, np.ndarray]:
    """The curves of those that have one, by seed."""
    having = (record for record in records if len(record.series[protocol.key].values))
    return {record.seed: resample(record, protocol, axis, x) for record in having}


def _x(record: Record, protocol: Protocol, axis: Axis) -> np.ndarray:
    series = record.series[protocol.key]
    return (series.steps if axis is STEPS else series.times) / axis.unit
