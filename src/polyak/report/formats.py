"""Tables, and how they are written: Markdown for reading, CSV for computing."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyak.report.statistics import Estimate, Spread


class Column(NamedTuple):
    """A column; in CSV, one for each of its parts."""

    name: str
    header: str
    parts: tuple[str, ...] = ()
    """Fields of the cells, if they have several."""


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers, `Spread`s and `Estimate`s; None where there is nothing."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]
    notes: tuple[str, ...] = ()


def markdown(table: Table) -> str:
    """A section of Markdown: title, notes, table."""
    lines = [f"## {table.title}", ""]
    for note in table.notes:
        lines += [_plain(note), ""]
    lines.append("| " + " | ".join(column.header for column in table.columns) + " |")
    lines.append("|" + "---|" * len(table.columns))
    lines += ["| " + " | ".join(_plain(text(cell)) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """CSV with a header, numbers in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ([f"{c.name}_{part}" for part in c.parts] or [c.name] for c in table.columns)
    writer.writerow([name for group in names for name in group])
    for row in table.rows:
        cells: list[Any] = []
        for column, cell in zip(table.columns, row, strict=True):
            cells += (cell or [None] * len(column.parts)) if column.parts else [cell]
        writer.writerow([_inert(cell) for cell in cells])
    return out.getvalue()


def text(cell: Any) -> str:
    """A cell for reading."""
    if cell is None:
        return "-"
    if isinstance(cell, Spread):
        around = "" if cell.std is None else f" ± {number(cell.std, like=cell.mean)}"
        return f"{number(cell.mean)}{around} (n = {cell.n})"
    if isinstance(cell, Estimate):
        ends = "no interval" if cell.low is None else f"[{cell.low:.2f}, {cell.high:.2f}]"
        return f"{cell.value:.2f} {ends}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return number(cell) if isinstance(cell, float) else str(cell)


def number(value: float, like: float | None = None) -> str:
    """A number with as many decimals as its size, or that of another, is worth."""
    size = abs(value if like is None else like)
    if not math.isfinite(value) or size >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2}f}"


def _plain(value: str) -> str:
    """Text that means nothing in Markdown, and stays in its cell."""
    escaped = html.escape(" ".join(value.split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", escaped)


def _inert(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    risky = isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{cell}" if risky else cell
