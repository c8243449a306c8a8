"""Weights & Biases: the rows of a run under the same names and steps, and its films at the end.

Rows are logged as they are written; W&B sends them from a process of its own. What it keeps on disk
lies in the run's folder. Project, entity, group and tags are settings of the run, everything else
is W&B's own to configure: `WANDB_MODE=offline` records without any network.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyak.errors import PolyakError
from polyak.runs import Run
from polyak.settings import Settings

INIT_TIMEOUT = 60.0
"""Seconds to wait for the server when a run begins; without an answer it is recorded offline."""

FINISH_TIMEOUT = 120.0
"""Seconds to wait at the end for what is not sent yet; it stays on disk, for `wandb sync`."""


def check(settings: Settings) -> None:
    """Refuses what W&B would refuse once the run has begun. Needs no network.

    Raises:
        PolyakError: W&B is not installed or knows no account, or a name is none of its names.
    """
    wandb = _library()
    try:
        _settings(settings)  # checks the names
        offline = wandb.setup(settings=wandb.Settings(silent=True)).settings.mode != "online"
        if offline or wandb.login(prompt=False, verify=False):
            return
    except (wandb.errors.Error, ValueError) as error:
        raise PolyakError(f"--track: {_line(error)}") from error
    raise PolyakError(
        "--track: no W&B account is known here: run `wandb login`, or set WANDB_MODE=offline"
    )


def start(run: Run, settings: Settings) -> WandB | None:
    """Begins the W&B run of a run folder, or goes on in it if it has begun.

    Where W&B does not answer it is recorded offline, where even that fails not at all; each with a
    warning, since the run itself needs neither.
    """
    wandb = _library()
    for mode, instead in ((None, "recording offline"), ("offline", "going on without")):
        try:
            return WandB(
                wandb.init(
                    id=run_id(run.path),
                    name=run.path.name,
                    resume="allow",
                    dir=run.path,
                    config=run.config,
                    mode=mode,
                    settings=_settings(settings),
                )
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the run does not depend on it
            warnings.warn(f"W&B does not answer, {instead}: {_line(error)}", stacklevel=2)
            wandb.teardown()  # or it would hold the id of the run that did not begin
    return None


class WandB:
    """A W&B run as a sink of `tracking.Tracker`."""

    name = "W&B"

    def __init__(self, run: Any) -> None:
        self._run = run
        # A run that is resumed may write some rows again. W&B takes no step twice.
        self._first: int = run.step

    @property
    def where(self) -> str:
        """Where to look at the run: an address, or the command that sends it there."""
        if self._run.offline:
            return f"offline; send it with: wandb sync {Path(self._run.dir).parent}"
        return str(self._run.url)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A row; W&B joins rows of the same step."""
        if step >= self._first:
            self._run.log(dict(values), step=step)

    def films(self, films: list[tuple[int, Path]]) -> None:
        """The films, side by side: W&B takes nothing for a step that has passed."""
        videos = [
            _library().Video(str(path), format=path.suffix[1:], caption=f"step {step}")
            for step, path in films
        ]
        self._run.log({"videos/training": videos})

    def close(self, *, succeeded: bool) -> None:
        """Sends what is left, `FINISH_TIMEOUT` seconds at most."""
        self._run.finish(exit_code=0 if succeeded else 1)


def run_id(path: Path) -> str:
    """The W&B id of a run folder: its name, where W&B takes that."""
    name = re.sub(r"""[^\w.+=@ -]""", "-", path.resolve().name).strip()
    if len(name) <= 120:
        return name
    return f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _settings(settings: Settings) -> Any:
    tags = [*settings.tags.split(","), *os.environ.get("WANDB_TAGS", "").split(",")]
    return _library().Settings(
        project=settings.wandb_project_name,
        entity=settings.wandb_entity or os.environ.get("WANDB_ENTITY"),
        run_group=settings.wandb_group or os.environ.get("WANDB_RUN_GROUP"),
        run_tags=tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip())),
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
        console="off",  # a run's output is its own
        reinit="create_new",  # seeds side by side, each in a W&B run of its own
        silent=True,
    )


def _library() -> Any:
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise PolyakError("--track needs W&B: pip install 'polyak[track]'") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
