"""How the runs of a benchmark stand, from their own folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyak.benchmark.grid import Job, identity
from polyak.errors import PolyakError
from polyak.runs import Run, read_json


class Index:
    """The runs of some folders by what they compute. Each config.json is read once."""

    def __init__(self) -> None:
        self._keys: dict[Path, str | None] = {}

    def runs(self, job: Job) -> list[Run]:
        """The runs of exactly this configuration, the oldest first."""
        if job.setup is None:
            return []
        found = []
        for path in job.runs_dir.glob("*/config.json"):
            if path not in self._keys:
                self._keys[path] = _key(path)
            if self._keys[path] == job.key:
                found.append(Run(path.parent))
        return sorted(found, key=lambda run: (_began(run), run.path.name))

    def finished(self, job: Job) -> bool:
        """Whether nothing is left to do."""
        if job.setup is None:
            return done_mark(job).is_file()
        return any(_state(run) == "finished" for run in self.runs(job))

    def step(self, job: Job) -> int:
        """Environment steps that its newest run has taken, as far as its metrics tell."""
        runs = self.runs(job)
        return min(last_step(runs[-1]), job.steps) if runs else 0


class Standing(NamedTuple):
    """How one run stands."""

    state: str
    """done, running, queued, failed, interrupted or missing; ended for another command, of which
    nothing more is known."""
    step: int
    note: str
    """What went wrong, or where the run lies."""


def standing(
    job: Job, index: Index, *, queue: str | None, alive: bool, submitted: bool
) -> Standing:
    """How a run stands.

    Args:
        job: the run.
        index: the runs that exist.
        queue: its state in a cluster's queue, None if it is not there.
        alive: whether a process of this machine holds it.
        submitted: whether a cluster was asked to run it.
    """
    runs = index.runs(job)
    newest = runs[-1] if runs else None
    step = index.step(job)
    where = str(newest.path) if newest else ""
    if index.finished(job):
        return Standing("done", job.steps, where)
    if queue is not None or alive:
        running = alive or queue in ("RUNNING", "COMPLETING", "STAGE_OUT")
        return Standing("running" if running else "queued", step, where)
    state = _state(newest) if newest else None
    if newest and state == "failed":
        return Standing("failed", step, f"{newest.status.get('error', '')} ({where})")
    if newest and state == "running":
        return Standing("failed", step, f"ended without a word: killed? ({where})")
    if newest:
        return Standing("interrupted", step, where)
    if submitted and job.setup is None:
        return Standing("ended", 0, "")
    if submitted:
        return Standing("failed", 0, "left the queue without a run folder: see slurm/logs")
    return Standing("missing", 0, "")


def table(jobs: Sequence[Job], standings: Sequence[Standing]) -> str:
    """The standings for people: a row a run, and the sums."""
    rows = [("state", "step", "task", "experiment", "seed", "")]
    for job, stands in zip(jobs, standings, strict=True):
        steps = f"{stands.step}/{job.steps}" if job.setup else ""
        rows.append((stands.state, steps, job.env_id, job.experiment, str(job.seed), stands.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    states = [stands.state for stands in standings]
    sums = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return "\n".join((*lines, f"{len(jobs)} runs: {sums}"))


def done_mark(job: Job) -> Path:
    """The file that says that another command ended well; runs say it themselves."""
    return job.log.with_suffix(".done")


def last_step(run: Run) -> int:
    """The step of the last row of a run's metrics; 0 if there is none."""
    try:
        with (run.path / "metrics.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - 4096, 0))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, TypeError, KeyError):  # half a row, at either end of what was read
            continue
    return 0


def _key(path: Path) -> str | None:
    try:
        return identity(read_json(path))
    except (PolyakError, KeyError, TypeError):  # another program's, or of an algorithm no more
        return None


def _state(run: Run) -> str:
    try:
        return str(run.status["state"])
    except PolyakError:
        return "unknown"


def _began(run: Run) -> str:
    context = read_json(run.path / "config.json").get("context")
    return str(context.get("started", "")) if isinstance(context, dict) else ""
