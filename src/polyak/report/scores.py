"""Results over all tasks: returns on one scale, their interquartile mean, profile and efficiency.

A score is 0 for a policy that has learned nothing and 1 for the best experiment of the report on
that task, so that tasks count alike, whatever the unit of their reward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyak.report import curves, statistics
from polyak.report.collect import EVALUATION, Group, Protocol, Record
from polyak.report.curves import STEPS
from polyak.report.statistics import Estimate

THRESHOLDS = np.linspace(0.0, 1.25, 51)
"""Scores at which a performance profile is drawn."""

LEVELS = (0.5, 0.75, 0.9)
"""Scores of which the sample-efficiency table says when they were reached."""

EFFICIENCY_POINTS = 50


class Scale(NamedTuple):
    """Returns of a task that stand for scores 0 and 1."""

    zero: float
    one: float

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        """Scores of some returns."""
        return (returns - self.zero) / (self.one - self.zero)


class Aggregate(NamedTuple):
    """An experiment over its tasks."""

    experiment: str
    tasks: tuple[str, ...]
    runs: int
    iqm: Estimate


class Band(NamedTuple):
    """A line with its interval, (K,) each; no interval where a task has a single run."""

    experiment: str
    x: np.ndarray
    value: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


class Reached(NamedTuple):
    """When the runs of a group first reached a score."""

    steps: float | None
    """Mean over the runs; None unless all of them did."""
    runs: int
    """How many did."""


def scales(groups: Sequence[Group], protocol: Protocol) -> dict[str, Scale]:
    """The scale of every task that has one.

    Zero is the mean over runs of the evaluation before training, or of the training episodes in the
    random warm-up. One is the best mean result of an experiment. A task without the former, or on
    which no experiment did better, has no scale.
    """
    found = {}
    for task, members in curves.by_task(groups).items():
        naive = [_naive(record, protocol) for group in members for record in group.counted]
        before = [value for value in naive if value is not None]
        after = [results.mean() for g in members if len(results := g.finals(protocol))]
        if before and after and max(after) > (zero := float(np.mean(before))):
            found[task] = Scale(zero, float(max(after)))
    return found


def unscaled(groups: Sequence[Group], protocol: Protocol) -> list[str]:
    """Tasks with results that are in no score."""
    having = {group.task for group in groups if len(group.finals(protocol))}
    return sorted(having - scales(groups, protocol).keys())


def aggregates(groups: Sequence[Group], protocol: Protocol) -> list[Aggregate]:
    """Interquartile mean of each experiment's scores, with its interval."""
    found = []
    for experiment, samples in _samples(groups, protocol).items():
        pooled = np.concatenate(list(samples.values()))
        ends = statistics.stratified_interval(list(samples.values()), statistics.iqm)
        low, high = (float(end) for end in ends) if ends else (None, None)
        value = Estimate(float(statistics.iqm(pooled)), low, high)
        found.append(Aggregate(experiment, tuple(samples), len(pooled), value))
    return found


def profiles(groups: Sequence[Group], protocol: Protocol) -> list[Band]:
    """For each experiment the share of its runs that score above each threshold."""

    def share(above: np.ndarray) -> np.ndarray:
        return above.mean(axis=-1)

    found = []
    for experiment, samples in _samples(groups, protocol).items():
        above = [scores > THRESHOLDS[:, None] for scores in samples.values()]  # (K, n) each
        value = share(np.concatenate(above, axis=-1))
        low, high = statistics.stratified_interval(above, share) or (None, None)
        found.append(Band(experiment, THRESHOLDS, value, low, high))
    return found


def efficiency(groups: Sequence[Group]) -> list[Band]:
    """For each experiment the interquartile mean of its evaluations' scores along the steps.

    As far as the shortest of its runs reaches.
    """
    found = []
    known = scales(groups, EVALUATION)
    for experiment, members in _experiments(groups).items():
        runs = {
            group.task: records
            for group in members
            if group.task in known and (records := _evaluated(group))
        }
        if not runs:
            continue
        ends = [r.series[EVALUATION.key].steps for records in runs.values() for r in records]
        x = np.linspace(max(s[0] for s in ends), min(s[-1] for s in ends), EFFICIENCY_POINTS)
        samples = [
            np.stack([known[task](curves.resample(r, EVALUATION, STEPS, x)) for r in records], -1)
            for task, records in runs.items()
        ]
        value = statistics.iqm(np.concatenate(samples, axis=-1))
        interval = statistics.stratified_interval(samples, statistics.iqm)
        low, high = interval or (None, None)
        found.append(Band(experiment, x, value, low, high))
    return found


def reached(group: Group, scale: Scale, level: float) -> Reached:
    """At which step the evaluations of a group's runs first reached a score."""
    steps = []
    for record in _evaluated(group):
        series = record.series[EVALUATION.key]
        there = scale(series.values) >= level
        if there.any():
            steps.append(float(series.steps[int(np.argmax(there))]))
    all_did = len(steps) == len(_evaluated(group))
    return Reached(float(np.mean(steps)) if steps and all_did else None, len(steps))


def _experiments(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        found[group.experiment].append(group)
    return dict(sorted(found.items()))


def _samples(groups: Sequence[Group], protocol: Protocol) -> dict[str, dict[str, np.ndarray]]:
    """Scores (n,) by experiment and task."""
    known = scales(groups, protocol)
    found = {}
    for experiment, members in _experiments(groups).items():
        samples = {
            group.task: known[group.task](results)
            for group in members
            if group.task in known and len(results := group.finals(protocol))
        }
        if samples:
            found[experiment] = samples
    return found


def _evaluated(group: Group) -> list[Record]:
    return [r for r in group.counted if len(r.series[EVALUATION.key].values)]


def _naive(record: Record, protocol: Protocol) -> float | None:
    """Return of a policy that has learned nothing, as this run knows it."""
    series = record.series[protocol.key]
    before = series.values[series.steps <= (0 if protocol is EVALUATION else record.warm_up)]
    return float(before.mean()) if len(before) else None
