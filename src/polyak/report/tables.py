"""The tables of a report: which there are, and what is in them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from polyak.report import published, scores
from polyak.report.collect import (
    EVALUATION,
    PROTOCOLS,
    TRAINING,
    WINDOW,
    Group,
    Protocol,
    Record,
)
from polyak.report.formats import Column, Table
from polyak.report.statistics import Estimate, Spread, spread

TITLES = {protocol.key: protocol.title for protocol in PROTOCOLS}


def _spread_column(name: str, header: str) -> Column:
    return Column(name, header, Spread._fields)


def all_tables(groups: Sequence[Group]) -> list[Table]:
    """Every table of a report, in its order; some may have no rows."""
    return [
        returns(groups), iqm(groups), efficiency(groups), runtime(groups), same(groups),
        apart(groups), runtimes(groups), runs(groups),
    ]  # fmt: skip


def returns(groups: Sequence[Group]) -> Table:
    """Results of every task and experiment, the two protocols in columns of their own."""
    rows = []
    for group in groups:
        results = [spread(group.finals(protocol)) for protocol in PROTOCOLS]
        short = any(record.short() for record in group.counted)
        counts = (len(group.counted), len(group.unfinished))
        rows.append((_task(group.task), group.experiment, group.steps, *results,
                     "yes" if short else "", *counts))  # fmt: skip
    columns = (
        Column("task", "Task"),
        Column("experiment", "Experiment"),
        Column("steps", "Steps"),
        _spread_column("evaluation", "Final deterministic evaluation, mean ± std over seeds"),
        _spread_column("training", f"Training return, last {WINDOW} episodes, mean ± std"),
        Column("short", f"Fewer than {WINDOW} episodes since warm-up"),
        Column("finished", "Seeds finished"),
        Column("unfinished", "Runs unfinished"),
    )
    notes = (
        ("Only finished runs count, the newest of each seed; std is the sample standard deviation "
        "over seeds (divisor n - 1). The two protocols answer different questions: compare within "
        "a column, never across."),
        *([(f"Where fewer than {WINDOW} episodes ended since the random warm-up, the training "
           "return holds episodes of random actions, or fewer episodes.")]
          if any(row[5] for row in rows) else []),
        *_replaced(groups),
    )  # fmt: skip
    return Table("returns", "Returns", columns, rows, notes)


def iqm(groups: Sequence[Group]) -> Table:
    """The interquartile mean over tasks."""
    found = [
        (aggregate, protocol)
        for protocol in PROTOCOLS
        for aggregate in scores.aggregates(groups, protocol)
    ]
    rows = [
        (a.experiment, protocol.title, len(a.tasks), ", ".join(map(_task, a.tasks)), a.runs, a.iqm)
        for a, protocol in sorted(found, key=lambda pair: (pair[1].key, pair[0].tasks))
    ]
    columns = (
        Column("experiment", "Experiment"),
        Column("protocol", "Protocol"),
        Column("tasks", "Tasks"),
        Column("names", "which"),
        Column("runs", "Runs"),
        Column("iqm", "IQM of scores [95 % interval]", Estimate._fields),
    )
    left_out = {p.title: tasks for p in PROTOCOLS if (tasks := scores.unscaled(groups, p))}
    notes = (
        ("Score 0 is a policy that has learned nothing (evaluation before training; episodes of "
        "the random warm-up), 1 the best experiment of this report on the task. Compare rows of "
        "the same tasks. Intervals: stratified bootstrap over runs within tasks; none where a "
        "task has one run."),
        *(f"No score ({title}), for want of a zero or of progress: {', '.join(map(_task, tasks))}."
          for title, tasks in left_out.items()),
    )  # fmt: skip
    return Table("iqm", "Over all tasks", columns, rows, notes)


def efficiency(groups: Sequence[Group]) -> Table:
    """Steps until the evaluations first reached a score."""
    known = scores.scales(groups, EVALUATION)
    rows = []
    for group in groups:
        if group.task not in known or not len(group.finals(EVALUATION)):
            continue
        scale = known[group.task]
        row: list[Any] = [_task(group.task), group.experiment, len(group.finals(EVALUATION))]
        for level in scores.LEVELS:
            target = scale.zero + level * (scale.one - scale.zero)
            done = scores.reached(group, scale, level)
            row += [target, done.steps, done.runs]
        rows.append(tuple(row))
    columns = [Column("task", "Task"), Column("experiment", "Experiment"), Column("n", "Seeds")]
    for level in scores.LEVELS:
        percent = f"{level:.0%}".replace("%", " %")
        name = f"score_{level:g}"
        columns += [
            Column(f"{name}_return", f"Return at {percent}"),
            Column(f"{name}_steps", "steps until there"),
            Column(f"{name}_runs", "seeds there"),
        ]
    notes = (
        (
            "Mean over seeds of the step of the first deterministic evaluation that reached the "
            "return, given where all seeds did. 100 % is the best experiment of this report on the "
            "task, 0 % an untrained policy."
        ),
    )
    return Table("sample_efficiency", "Sample efficiency", tuple(columns), rows, notes)


def runtime(groups: Sequence[Group]) -> Table:
    """Speed of every group, a row for each kind of machine."""
    rows = []
    for group in groups:
        for place in sorted({record.place for record in group.counted}):
            here = [record for record in group.counted if record.place == place]
            speeds = [record.sps for record in here if record.sps]
            minutes = _mean([1e6 / 60 / sps for sps in speeds])
            names = (_task(group.task), group.experiment, len(here))
            rows.append((*names, _mean(speeds), minutes, _whole(here), *place))
    columns = (
        Column("task", "Task"),
        Column("experiment", "Experiment"),
        Column("n", "Runs"),
        Column("sps", "SPS while learning (environment steps/s)"),
        Column("minutes", "Minutes per 1M steps, while learning"),
        Column("minutes_whole", "Minutes per 1M steps, whole run"),
        Column("processor", "Processor"),
        Column("device", "Device"),
    )
    notes = (
        (
            "While learning: the clock stops during evaluations and leaves out warm-up and start. "
            "Whole run: the time of the run's last row divided by its steps, with evaluations, "
            "warm-up and start. Both are scaled to 1M steps. Means over runs."
        ),
    )
    return Table("runtime", "Runtime", columns, rows, notes)


def same(groups: Sequence[Group]) -> Table:
    """Published returns of the same task, protocol, length, algorithm and backend."""
    rows = [
        (_task(group.task), group.experiment, TITLES[row.protocol], group.steps,
         spread(group.finals(_protocol(row))), row.result, row.source)
        for group in groups
        for row in published.returns()
        if _alike(row, group)
    ]  # fmt: skip
    columns = (
        Column("task", "Task"),
        Column("experiment", "Experiment"),
        Column("protocol", "Protocol"),
        Column("steps", "Steps"),
        _spread_column("ours", "These runs, mean ± std"),
        _spread_column("published", "Published, mean ± std"),
        Column("source", "Source"),
    )
    notes = ("The same version of the task, protocol, number of steps, algorithm and backend.",)
    return Table("published", "Beside published returns", columns, rows, notes)


def apart(groups: Sequence[Group]) -> Table:
    """Published returns that are of interest, and not comparable number by number."""
    rows = []
    for row in published.returns():
        near = [g for g in groups if published.family(g.task) == published.family(row.env_id)]
        if not near or any(_alike(row, group) for group in near):
            continue
        protocol = TITLES.get(row.protocol, row.protocol)
        rows.append((row.env_id, row.algorithm, row.backend, protocol, row.steps, row.result,
                     _difference(row, near), row.source))  # fmt: skip
    columns = (
        Column("task", "Task"),
        Column("algorithm", "Algorithm"),
        Column("backend", "Backend"),
        Column("protocol", "Protocol"),
        Column("steps", "Steps"),
        _spread_column("published", "Published, mean ± std"),
        Column("differs", "Differs from these runs in"),
        Column("source", "Source"),
    )
    notes = ("Other versions of the tasks are other tasks: these figures say what is usual.",)
    title = "Published returns that are not of the same task, protocol or length"
    return Table("published_apart", title, columns, rows, notes)


def runtimes(groups: Sequence[Group]) -> Table:
    """Published running times; ours beside them where the task is the same."""
    rows = []
    for row in published.runtimes():
        near = [g for g in groups if published.family(g.task) == published.family(row.env_id)]
        ours = [
            record
            for group in near
            if (group.task, group.algorithm, group.backend)
            == (row.env_id, row.algorithm, row.backend)
            for record in group.counted
        ]
        if near:
            rows.append((row.env_id, row.algorithm, row.backend, row.minutes, _whole(ours),
                         row.source))  # fmt: skip
    columns = (
        Column("task", "Task"),
        Column("algorithm", "Algorithm"),
        Column("backend", "Backend"),
        Column("published_minutes", "Published, minutes per run of 1M steps"),
        Column("ours_minutes", "These runs on this task, minutes per 1M steps, whole run"),
        Column("source", "Source"),
    )
    notes = ("Minutes, not steps per second. Machines differ.",)
    return Table("published_runtimes", "Beside published running times", columns, rows, notes)


def runs(groups: Sequence[Group]) -> Table:
    """Every run with its results, whether it counts and how it was started."""
    rows = []
    for group in groups:
        for kind in ("counted", "superseded", "unfinished"):
            for record in getattr(group, kind):
                git = record.context.get("git")
                commit = str(git.get("commit", ""))[:10] if isinstance(git, dict) else ""
                counts = "yes" if kind == "counted" else kind
                rows.append((
                    _task(group.task), group.experiment, record.seed, state(record), counts,
                    record.final(EVALUATION), record.final(TRAINING), record.sps, commit,
                    command(record), str(record.run.path),
                ))  # fmt: skip
    columns = (
        Column("task", "Task"),
        Column("experiment", "Experiment"),
        Column("seed", "Seed"),
        Column("state", "State"),
        Column("counts", "Counts"),
        Column("evaluation", "Last deterministic evaluation"),
        Column("training", f"Training return, last {WINDOW} episodes"),
        Column("sps", "SPS while learning (environment steps/s)"),
        Column("commit", "Commit"),
        Column("command", "Command"),
        Column("folder", "Folder"),
    )
    return Table("runs", "Runs", columns, rows)


def state(record: Record) -> str:
    """How a run stands; unfinished ones with the step."""
    return record.state if record.finished else f"{record.state} at step {record.step:,}"


def command(record: Record) -> str:
    """How a run was started, as it would be typed."""
    arguments = record.context.get("command")
    if not isinstance(arguments, list) or not arguments:
        return ""
    first, *rest = map(str, arguments)
    path = PurePath(first)
    if path.name in ("polyak", "__main__.py"):
        first = "polyak"
    return shlex.join([first, *rest])


def _task(env_id: str) -> str:
    """A task's id, with a word on those that are not what their name says."""
    return f"{env_id} (contact restored)" if env_id.startswith("polyak/Pusher-") else env_id


def _protocol(row: published.Return) -> Protocol:
    return TRAINING if row.protocol == TRAINING.key else EVALUATION


def _alike(row: published.Return, group: Group) -> bool:
    """Whether a published figure and a group may stand in one row."""
    theirs = (row.env_id, row.steps, row.algorithm, row.backend)
    ours = (group.task, group.steps, group.algorithm, group.backend)
    known = row.protocol in TITLES and len(group.finals(_protocol(row))) > 0
    return known and theirs == ours


def _difference(row: published.Return, near: Sequence[Group]) -> str:
    """The first thing in which a figure differs from all groups of its family of tasks."""
    tasks = sorted({group.task for group in near})
    if row.env_id not in tasks:
        return f"task: here {', '.join(map(_task, tasks))}"
    if row.protocol not in TITLES:
        return "protocol: not stated"
    near = [group for group in near if group.task == row.env_id]
    if row.algorithm not in {group.algorithm for group in near}:
        return "algorithm: not among these runs"
    near = [group for group in near if group.algorithm == row.algorithm]
    if row.backend not in {group.backend for group in near}:
        return "backend: not among these runs"
    near = [group for group in near if group.backend == row.backend]
    if row.steps not in (lengths := {group.steps for group in near}):
        return f"steps: here {', '.join(f'{steps:,}' for steps in sorted(lengths))}"
    return "no finished run with this protocol"


def _replaced(groups: Sequence[Group]) -> list[str]:
    count = sum(len(group.superseded) for group in groups)
    runs = "1 finished run is" if count == 1 else f"{count} finished runs are"
    why = "left out, since a newer one has the same configuration and seed (see Runs: superseded)"
    return [f"{runs} {why}."] if count else []


def _whole(records: Sequence[Record]) -> float | None:
    """Mean minutes per 1M steps of whole runs."""
    having = [record for record in records if record.step and record.seconds]
    return _mean([record.seconds / record.step * 1e6 / 60 for record in having])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
