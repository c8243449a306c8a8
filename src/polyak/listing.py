"""`polyak runs`: the runs in some folders, and the settings in which they differ."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyak import runs
from polyak.errors import PolyakError
from polyak.runs import Run

COLUMNS = ("task", "algorithm", "backend", "seed", "state", "steps", "best_return", "run")
UNREADABLE = "unreadable"
"""State of a run whose status file is missing or damaged."""


class Entry(NamedTuple):
    """What is listed of a run."""

    run: Run
    config: dict[str, Any]
    """Contents of config.json without the context."""
    state: str
    step: int
    best_return: float | None
    """Mean return of its best evaluation."""


def find(paths: Sequence[Path], filters: Mapping[str, str | int]) -> list[Entry]:
    """The runs in some folders that pass all filters, in the order of their paths.

    Reads two or three small files of each run, and no metrics.

    Args:
        paths: run folders, or folders of them.
        filters: `state` and settings by name, each with what it must be; text may have the
            wildcards `*` and `?`.

    Raises:
        PolyakError: one of the folders holds no run.
    """
    entries = []
    for run in runs.find(paths):
        config = run.config
        if all(_matches(config.get(k), v) for k, v in filters.items() if k != "state"):
            entry = _read(run, config)
            if _matches(entry.state, filters.get("state", "*")):
                entries.append(entry)
    return entries


def table(entries: Sequence[Entry]) -> str:
    """One line for each run under a line of headings; `steps` says how many of how many."""
    return _align([COLUMNS, *(_cells(entry) for entry in entries)])


def differences(entries: Sequence[Entry]) -> str:
    """One line for each run with the settings in which they differ, beside its best return."""
    names: dict[str, None] = {}
    for entry in entries:
        names |= dict.fromkeys(entry.config)
    differing = [name for name in names if len({_text(e.config.get(name)) for e in entries}) > 1]
    rows = [
        (*(_text(e.config.get(n)) for n in differing), _number(e.best_return), str(e.run.path))
        for e in entries
    ]
    return _align([(*differing, "best_return", "run"), *rows])


def _matches(value: Any, wanted: str | int) -> bool:
    if isinstance(wanted, str):
        return fnmatch.fnmatchcase(str(value), wanted)
    return bool(value == wanted)


def _read(run: Run, config: dict[str, Any]) -> Entry:
    settings = {name: value for name, value in config.items() if name != "context"}
    try:
        status = run.status
        state, step = status["state"], status["step"]
    except PolyakError:
        state, step = UNREADABLE, 0
    try:
        best = run.best_eval_return
    except PolyakError:
        best = None
    return Entry(run, settings, state, step, best)


def _cells(entry: Entry) -> tuple[str, ...]:
    config = entry.config
    return (
        str(config["env_id"]),
        str(config["algorithm"]),
        _text(config.get("backend")),
        str(config["seed"]),
        entry.state,
        f"{entry.step}/{_text(config.get('total_timesteps'))}",
        _number(entry.best_return),
        str(entry.run.path),
    )


def _text(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)
