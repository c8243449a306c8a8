"""Run folders written by hand, for reports of what would take days to train."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from polyak.runs import Run

CONTEXT: dict[str, Any] = {
    "versions": {"mujoco": "3.2.0"},
    "command": ["/somewhere/bin/polyak", "train", "td3"],
    "git": {"commit": "c" * 40},
    "processor": "a processor",
    "device": "device: cpu, threads: 1",
}

Rows = Sequence[tuple[int, float]]
"""Environment step and return."""


def write(
    folder: Path,
    *,
    evaluations: Rows = (),
    episodes: Rows = (),
    state: str = "finished",
    step: int = 1_000,
    written: float = 1.7e9,
    sps: float = 100.0,
    seconds: float = 0.01,
    context: dict[str, Any] | None = None,
    **config: Any,
) -> Run:
    """A run of TD3 on HalfCheetah-v5.

    Args:
        folder: the run folder, to be made.
        evaluations: deterministic evaluations.
        episodes: training episodes.
        state: as in status.json.
        step: as in status.json; also the total that was asked for.
        written: time of status.json.
        sps: speed while learning.
        seconds: per environment step, in the rows' times.
        context: of config.json.
        config: settings other than the usual.
    """
    folder.mkdir(parents=True)
    usual = {
        "algorithm": "td3",
        "backend": "torch",
        "exp_name": "td3_continuous_action",
        "env_id": "HalfCheetah-v5",
        "seed": 1,
        "total_timesteps": step,
        "learning_starts": 100,
    }
    config = usual | config | {"context": CONTEXT | (context or {})}
    (folder / "config.json").write_text(json.dumps(config))
    status = {"state": state, "step": step, "error": "", "time": written}
    (folder / "status.json").write_text(json.dumps(status))
    rows: list[dict[str, Any]] = [{"step": k, "eval/episodic_return": v} for k, v in evaluations]
    rows += [
        {"step": k, "charts/episodic_return": v, "charts/episodic_length": 1.0} for k, v in episodes
    ]
    rows.append({"step": step, "charts/SPS": 3 * sps, "charts/SPS_learning": sps})
    rows.sort(key=lambda row: row["step"])
    lines = [json.dumps({"step": row["step"], "time": row["step"] * seconds} | row) for row in rows]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return Run(folder)


def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets no picture be rendered, which takes seconds; returns where its figures will be found."""
    found: list[Any] = []

    def spy(figure: Any, path: Path, **kwargs: Any) -> None:
        if path.suffix == ".png":
            found.append(figure)
        path.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")

    monkeypatch.setattr(importlib.import_module("matplotlib.figure").Figure, "savefig", spy)
    return found
