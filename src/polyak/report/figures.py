"""The figures of a report, drawn with matplotlib."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polyak.report import curves, published, scores
from polyak.report.collect import EVALUATION, PROTOCOLS, Group
from polyak.report.curves import STEPS, Axis, Curve
from polyak.report.scores import Band

MOST_TASKS = 24
"""Tasks in one picture; the page has them all."""

MOST_SEEDS = 10
"""More lines than this hide the mean; the page has them all."""

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
          "#bcbd22", "#17becf")  # fmt: skip
STYLES = ("-", "--", "-.", ":")
"""With ten experiments each: forty can be told apart."""


def palette(groups: Sequence[Group]) -> dict[str, int]:
    """A number for each experiment, the same in all figures."""
    return {name: i for i, name in enumerate(sorted({group.experiment for group in groups}))}


def learning_curves(groups: Sequence[Group], axis: Axis) -> Figure:
    """A row per task: deterministic evaluations on the left, training returns on the right."""
    tasks = dict(list(curves.by_task(groups).items())[:MOST_TASKS])
    looks = palette(groups)
    figure = Figure(figsize=(12, 3.8 * len(tasks)), layout="constrained")
    grid = figure.subplots(len(tasks), len(PROTOCOLS), squeeze=False)
    for row, (task, members) in zip(grid, tasks.items(), strict=True):
        for axes, protocol in zip(row, PROTOCOLS, strict=True):
            found = curves.draw(members, protocol, axis)
            for curve in found:
                _curve(axes, curve, looks[curve.group.experiment])
            if protocol is EVALUATION and axis is STEPS:
                _published(axes, task, found)
            axes.set(title=_text(f"{task}: {protocol.title}"), xlabel=axis.title, ylabel="return")
            _scale_to_lines(axes)
            _finish(axes)
    return figure


def profiles(groups: Sequence[Group]) -> Figure:
    """Performance profiles, a panel per protocol."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    grid = figure.subplots(1, len(PROTOCOLS), squeeze=False)[0]
    for axes, protocol in zip(grid, PROTOCOLS, strict=True):
        _bands(axes, scores.profiles(groups, protocol), palette(groups))
        title = f"Performance profile: {protocol.title}"
        axes.set(title=title, xlabel="score τ (1: best experiment on the task)",
                 ylabel="share of runs with score > τ", ylim=(-0.02, 1.02))  # fmt: skip
        _finish(axes)
    return figure


def efficiency(groups: Sequence[Group]) -> Figure:
    """Interquartile mean of scores over all tasks, along the steps."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    _bands(axes, scores.efficiency(groups), palette(groups))
    axes.set(title="Sample efficiency: deterministic evaluation", xlabel=STEPS.title,
             ylabel="IQM of scores over tasks")  # fmt: skip
    _finish(axes)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a picture as PNG and SVG, the same bytes for the same runs.

    Args:
        figure: what to write; it can be written once.
        path: the file without its ending.

    Raises:
        OSError: it cannot be written.
    """
    with mpl.rc_context({"svg.hashsalt": "polyak"}), warnings.catch_warnings():
        # Names in a script that the font lacks show as boxes: no reason to stop or to complain.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing", category=UserWarning)
        figure.savefig(path.with_name(path.name + ".png"), dpi=100)
        figure.set_layout_engine("none")  # which has done its work, and takes most of the time
        figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})


def _curve(axes: Axes, curve: Curve, look: int) -> None:
    style: dict[str, Any] = {"color": COLORS[look % 10]}
    name, n = curve.group.experiment, len(curve.seeds)
    for y in curve.seeds.values() if n <= MOST_SEEDS else ():
        axes.plot(curve.x, y, alpha=0.25, lw=0.8, **style)
    if n:
        few = len(curve.x) <= 40
        axes.plot(curve.x, curve.mean, label=_label(f"{name} (n = {n})"), marker="." if few else "",
                  ls=STYLES[look // 10 % 4], **style)  # fmt: skip
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, alpha=0.15, lw=0, **style)
    for index, y in enumerate(curve.unfinished.values()):
        label = f"{name}, unfinished ({len(curve.unfinished)})"
        axes.plot(curve.x, y, ls=(0, (1, 2)), lw=1.2, label="" if index else _label(label), **style)


def _published(axes: Axes, task: str, found: Sequence[Curve]) -> None:
    """The authors' own curve of TD3 behind ours, as far as ours go."""
    theirs = published.curve(published.family(task) or "")
    ends = [curve.x[-1] for curve in found if len(curve.x)]
    if theirs is None or not ends:
        return
    there = theirs.steps <= max(ends)
    axes.plot(theirs.steps[there], theirs.mean[there], color="black", alpha=0.25, lw=2.5, zorder=0,
              label=_label(theirs.label))  # fmt: skip


def _bands(axes: Axes, bands: Sequence[Band], looks: dict[str, int]) -> None:
    for band in bands:
        look = looks[band.experiment]
        color = COLORS[look % 10]
        axes.plot(band.x, band.value, color=color, ls=STYLES[look // 10 % 4],
                  label=_label(band.experiment))  # fmt: skip
        if band.low is not None and band.high is not None:
            axes.fill_between(band.x, band.low, band.high, color=color, alpha=0.15, lw=0)


def _scale_to_lines(axes: Axes) -> None:
    """The interval of two seeds is so wide that, beside it, nothing else would show."""
    values = np.concatenate([np.asarray(line.get_ydata()) for line in axes.lines] or [np.empty(0)])
    if np.isfinite(values).any():
        low, high = np.nanmin(values), np.nanmax(values)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # Among hundreds of lines the search for an empty corner takes seconds.
        axes.legend(
            handles, labels, fontsize=7, loc="best" if len(axes.lines) < 30 else "upper left"
        )
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def _text(text: str) -> str:
    """Text that matplotlib takes as it is: no mathematics, one line, nothing that XML forbids."""
    seen = "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))
    return seen.replace("$", r"\$")


def _label(text: str) -> str:
    """A legend's entry; one that begins with an underscore would be left out."""
    return " " + textwrap.fill(_text(text), 60)


def unseen(groups: Sequence[Group]) -> int:
    """Tasks that are not in the pictures for want of room."""
    return max(len(curves.by_task(groups)) - MOST_TASKS, 0)
