"""Learning curves of some runs in one figure."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyak import runs
from polyak.errors import PolyakError

TRAINING, EVALUATION = "charts/episodic_return", "eval/episodic_return"


def draw(paths: Sequence[Path], target: Path) -> Path:
    """Draws every run: training episodes as dots, deterministic evaluations as a line.

    Args:
        paths: run folders, or folders of them.
        target: the picture to write (.png, .svg, .pdf); its folder is made if need be.

    Raises:
        PolyakError: no runs, matplotlib absent, or the picture cannot be written.
    """
    found = [(run, run.config) for run in runs.find(paths)]  # each file is read once
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise PolyakError("drawing needs matplotlib: pip install 'polyak[report]'") from error
    tasks = sorted({config["env_id"] for _, config in found})
    figure: Any = figures.Figure(figsize=(7, 4 * len(tasks)), layout="constrained")
    for task, axes in zip(tasks, figure.subplots(len(tasks), squeeze=False)[:, 0], strict=True):
        members = [(run, config) for run, config in found if config["env_id"] == task]
        for index, (run, config) in enumerate(members):
            color = f"C{index % 10}"
            name = f"{config['exp_name']}, seed {config['seed']}"
            if run.status["state"] != "finished":
                name += f" ({run.status['state']})"
            for metric, style, label in (
                (TRAINING, {"ls": "", "marker": ".", "ms": 3, "alpha": 0.3}, None),
                (EVALUATION, {"marker": "o", "ms": 4}, name),
            ):
                rows = run.metrics(metric)
                steps, values = [r["step"] for r in rows], [r[metric] for r in rows]
                axes.plot(steps, values, color=color, label=label, **style)
        axes.set(title=task, xlabel="environment steps", ylabel="return")
        axes.grid(alpha=0.3)
        axes.legend(title="deterministic evaluation (dots: training)", fontsize=8, title_fontsize=8)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=120)
    except OSError as error:
        raise PolyakError(f"cannot write {target}: {error.strerror}") from error
    return target
