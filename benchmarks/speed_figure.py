"""The figure of `speed.py`: steps per second as bars, updates alone and the limit above them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from speed_results import NAMES, Rows

SYSTEMS = {"sb3": "#c9c3b6", "torch": "#d95f30", "sbx": "#a9bcc9", "jax": "#2f6f9f"}
"""In the order of the bars, each peer beside our backend of its library."""

WIDTH = 0.8 / len(SYSTEMS)


def draw(rows: Rows, path: Path) -> bool:
    """Writes the figure, one panel for each task; False if there are no steps to show."""
    cells = rows.cells("loop") or rows.cells("update limit")
    tasks = list(dict.fromkeys(env_id for env_id, _ in cells))
    algorithms = list(dict.fromkeys(algorithm for _, algorithm in cells))
    if not tasks:
        return False
    figure = Figure(figsize=(3.0 + 3.4 * len(tasks), 4.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for panel, env_id in zip(panels, tasks, strict=True):
        _panel(panel, rows, env_id, algorithms)
    panels[0].set_ylabel("environment steps or updates per second")
    known = {label: handle for panel in panels for handle, label in _labelled(panel)}
    figure.legend(
        known.values(),
        known.keys(),
        loc="outside lower center",
        ncols=1 + len(tasks),
        frameon=False,
    )
    figure.savefig(path, dpi=110)
    return True


def _panel(panel: Axes, rows: Rows, env_id: str, algorithms: Sequence[str]) -> None:
    for place, algorithm in enumerate(algorithms):
        cell = {"env_id": env_id, "algorithm": algorithm}
        for index, (system, color) in enumerate(SYSTEMS.items()):
            x = place + (index - (len(SYSTEMS) - 1) / 2) * WIDTH
            if (loop := rows.median("loop", **cell, system=system)) is not None:
                panel.bar(x, loop, 0.9 * WIDTH, color=color, label=NAMES[system])
            if (update := rows.median("update", **cell, system=system)) is not None:
                panel.plot(x, update, "D", color="black", markersize=4, label="update alone")
        for what, style, label in (
            ("update limit", "solid", "limit: products at the best rate"),
            ("update limit of single products", "dotted", "limit: each product alone"),
        ):
            if (limit := rows.median(what, **cell)) is not None:
                ends = [place - 0.45, place + 0.45]
                panel.plot(ends, [limit, limit], color="black", linestyle=style, label=label)
    panel.set_xticks(range(len(algorithms)), [NAMES[algorithm] for algorithm in algorithms])
    panel.set_title(env_id)
    panel.spines[["top", "right"]].set_visible(False)


def _labelled(panel: Axes) -> list[tuple[Artist, str]]:
    handles, labels = panel.get_legend_handles_labels()
    return list(zip(handles, labels, strict=True))
