"""A report as one HTML page that needs nothing else: no network, no other file.

Everything that comes from a run is text: escaped where it stands in HTML, and given to the script
as JSON that it only ever shows as text. The page's own policy forbids it to load anything.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from polyak.report import curves, figures, published
from polyak.report.collect import EVALUATION, PROTOCOLS, Group, Record
from polyak.report.curves import AXES, STEPS, Curve
from polyak.report.formats import Table, text
from polyak.version import __version__

LARGEST_GIF = 2_000_000
"""Bytes of a recording that is put into the page."""

ALL_GIFS = 20_000_000
"""Bytes of all recordings together; what is beyond is counted in the page."""


def render(groups: Sequence[Group], found: Sequence[Table], pictures: Mapping[str, Path]) -> str:
    """The page.

    Args:
        groups: the runs.
        found: the tables, as `tables.all_tables` makes them.
        pictures: SVG files to show, by what they show.
    """
    template = Template(_asset("page.html"))
    return template.substitute(
        style=_asset("uPlot.min.css") + _asset("page.css"),
        summary=html.escape(summary(groups)),
        version=html.escape(__version__),
        pictures="".join(_picture(title, path) for title, path in pictures.items()),
        tables="".join(_table(table, groups) for table in found),
        recordings=_recordings(groups),
        data=_script_safe(json.dumps(data(groups), separators=(",", ":"), allow_nan=False)),
        library=_asset("uPlot.iife.min.js"),
        script=_asset("page.js"),
    )


def summary(groups: Sequence[Group]) -> str:
    """How many runs there are, and how many of them count."""
    counted, replaced, unfinished = (
        sum(len(getattr(group, kind)) for group in groups)
        for kind in ("counted", "superseded", "unfinished")
    )
    tasks = len({group.task for group in groups})
    return (
        f"Runs that count: {counted}; replaced by newer ones: {replaced}; "
        f"unfinished, in no mean: {unfinished}. Tasks: {tasks}."
    )


def data(groups: Sequence[Group]) -> dict[str, Any]:
    """What the curves of the page are drawn from; arrays as lists, null where there is nothing."""
    looks = figures.palette(groups)
    tasks = []
    for task, members in curves.by_task(groups).items():
        drawn: dict[str, dict[str, Any]] = {}
        for protocol in PROTOCOLS:
            for axis in AXES:
                lines = curves.draw(members, protocol, axis)
                x = lines[0].x
                series = [entry for curve in lines for entry in _series(curve, looks)]
                if protocol is EVALUATION and axis is STEPS and len(x):
                    series += _published(task, x)
                both = {"x": _list(x), "series": series}
                drawn.setdefault(protocol.key, {})[axis.key] = both
        tasks.append({"name": task, "curves": drawn})
    return {
        "experiments": [
            {"name": name, "color": figures.COLORS[look % 10], "dash": look // 10 % 4}
            for name, look in looks.items()
        ],
        "protocols": [{"key": protocol.key, "title": protocol.title} for protocol in PROTOCOLS],
        "axes": [{"key": axis.key, "title": axis.title} for axis in AXES],
        "tasks": tasks,
    }


def _series(curve: Curve, looks: Mapping[str, int]) -> list[dict[str, Any]]:
    head = {"experiment": looks[curve.group.experiment], "n": len(curve.seeds)}
    found = [head | {"kind": "seed", "seed": s, "y": _list(y)} for s, y in curve.seeds.items()]
    found += [
        head | {"kind": "unfinished", "seed": s, "y": _list(y)} for s, y in curve.unfinished.items()
    ]
    if curve.low is not None and curve.high is not None:
        found.append(head | {"kind": "low", "y": _list(curve.low)})
        found.append(head | {"kind": "high", "y": _list(curve.high)})
    if curve.seeds:
        found.append(head | {"kind": "mean", "y": _list(curve.mean)})
    return found


def _published(task: str, x: np.ndarray) -> list[dict[str, Any]]:
    theirs = published.curve(published.family(task) or "")
    if theirs is None:
        return []
    y = np.interp(x, theirs.steps, theirs.mean, right=np.nan)
    return [{"kind": "published", "label": theirs.label, "y": _list(y)}]


def _list(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _picture(title: str, path: Path) -> str:
    source = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(title)
    return f'<img alt="{name}" title="{name}" src="data:image/svg+xml;base64,{source}">\n'


def _table(table: Table, groups: Sequence[Group]) -> str:
    """A table with its notes; that of the runs also has their configurations, to be opened."""
    details = [f"<td>{_details(record)}</td>" for record in _in_order(groups)]
    if table.name != "runs":
        details = [""] * len(table.rows)
    headers = [column.header for column in table.columns]
    headers += ["Configuration"] if table.name == "runs" else []
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join(
        f"<tr>{''.join(_cell(cell) for cell in row)}{detail}</tr>\n"
        for row, detail in zip(table.rows, details, strict=True)
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return (
        f'<section id="{table.name}"><h2>{html.escape(table.title)}</h2>{notes}'
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
        "</div></section>\n"
    )


def _cell(cell: Any) -> str:
    kind = "" if isinstance(cell, str) else ' class="number"'
    return f"<td{kind}>{html.escape(text(cell))}</td>"


def _details(record: Record) -> str:
    shown = json.dumps(record.config, indent=1, ensure_ascii=False)
    return f"<details><summary>show</summary><pre>{html.escape(shown)}</pre></details>"


def _in_order(groups: Sequence[Group]) -> list[Record]:
    """All runs, in the order of the table of runs."""
    return [r for group in groups for r in (*group.counted, *group.superseded, *group.unfinished)]


def _recordings(groups: Sequence[Group]) -> str:
    """The newest recording of each run that counts, as far as there is room."""
    entries, room, left_out = [], ALL_GIFS, 0
    for group in groups:
        for record in group.counted:
            content = _recording(record)
            if content is None:
                continue
            if len(content) > room:
                left_out += 1
                continue
            room -= len(content)
            caption = html.escape(f"{group.task}, {group.experiment}, seed {record.seed}")
            source = base64.b64encode(content).decode()
            entries.append(
                f'<figure><img alt="{caption}" src="data:image/gif;base64,{source}">'
                f"<figcaption>{caption}</figcaption></figure>\n"
            )
    if not entries:
        return ""
    rest = f"<p>{left_out} more left out: the page would be too large.</p>" if left_out else ""
    films = "".join(entries)
    return f'<section id="recordings"><h2>Recordings</h2>{rest}<div>{films}</div></section>'


def _recording(record: Record) -> bytes | None:
    with contextlib.suppress(OSError):  # gone, or not for us to read: a page without pictures
        found = [path for path in record.run.path.rglob("*.gif") if path.is_file()]
        for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
            if path.stat().st_size <= LARGEST_GIF:
                content = path.read_bytes()
                if content[:6] in (b"GIF87a", b"GIF89a"):
                    return content
    return None


def _asset(name: str) -> str:
    return (resources.files("polyak") / "report" / "assets" / name).read_text("utf-8")


def _script_safe(data: str) -> str:
    """JSON that cannot end the element it stands in."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
