"""What a report needs of its runs, and which of them belong together."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyak import runs
from polyak.algorithms.configs import CONFIGS
from polyak.errors import PolyakError
from polyak.runs import Run
from polyak.settings import Settings

WINDOW = 100
"""Training episodes that make the training return."""

OUTCOME = ("algorithm", "backend", "exp_name", "env_id", "total_timesteps", "num_envs")
"""Settings of a run, beside the algorithm's own, by which its results differ from another's."""


class Protocol(NamedTuple):
    """One of the two numbers that are called return. They are never mixed."""

    key: str
    metric: str
    title: str


EVALUATION = Protocol("evaluation", "eval/episodic_return", "deterministic evaluation")
TRAINING = Protocol("training", "charts/episodic_return", "training return")
PROTOCOLS = (EVALUATION, TRAINING)
SPEED = "charts/SPS_learning"


class Series(NamedTuple):
    """One metric of one run, K rows in the order in which they were written."""

    steps: np.ndarray
    """Environment steps (K,)."""
    times: np.ndarray
    """Seconds since the run began (K,)."""
    values: np.ndarray
    """(K,)."""


@dataclass(frozen=True)
class Record:
    """One run as a report sees it."""

    run: Run
    config: dict[str, Any]
    state: str
    step: int
    """Environment steps taken when its status was written."""
    written: float
    """When its status was written, seconds since 1970."""
    series: dict[str, Series]
    """By the key of the protocol."""
    sps: float | None
    """Environment steps per second since learning began; None if it did not."""
    seconds: float
    """Time of its last row, evaluations and warm-up included."""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.state == "finished"

    @property
    def seed(self) -> str:
        """Its seed, as text."""
        return str(self.config["seed"])

    @property
    def place(self) -> tuple[str, str]:
        """Processor and device that it ran on, as far as it tells."""
        context = self.context
        return str(context.get("processor", "")), str(context.get("device", ""))

    @property
    def context(self) -> dict[str, Any]:
        """Where it ran: versions, command, commit, machine."""
        context = self.config.get("context")
        return context if isinstance(context, dict) else {}

    @property
    def window(self) -> np.ndarray:
        """Returns of its last training episodes, at most `WINDOW`."""
        return self.series[TRAINING.key].values[-WINDOW:]

    def final(self, protocol: Protocol) -> float | None:
        """Its result: the last evaluation, or the mean of the last training episodes."""
        if protocol is TRAINING:
            return float(self.window.mean()) if self.window.size else None
        values = self.series[EVALUATION.key].values
        return float(values[-1]) if values.size else None

    def short(self) -> bool:
        """Whether the training return holds less than it should.

        Fewer than `WINDOW` episodes have ended since the random warm-up.
        """
        steps = self.series[TRAINING.key].steps
        warm = int(np.searchsorted(steps, self.warm_up, side="right"))
        return len(steps) - warm < WINDOW

    @property
    def warm_up(self) -> int:
        """Environment steps of random actions before learning."""
        value = self.config.get("learning_starts", 0)
        return value if isinstance(value, int) else 0


@dataclass
class Group:
    """Runs of one configuration on one task, over seeds."""

    task: str
    experiment: str
    """Name of the experiment; with the settings that set it apart where one name stands for two."""
    settings: dict[str, Any]
    """What its runs have in common and other groups may not."""
    counted: list[Record] = field(default_factory=list)
    """The newest finished run of each seed, by seed."""
    superseded: list[Record] = field(default_factory=list)
    """Finished runs that a newer one of the same seed replaces."""
    unfinished: list[Record] = field(default_factory=list)
    """Runs that did not come to their end (or not yet)."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return str(self.settings["algorithm"])

    @property
    def backend(self) -> str:
        """Name of the library that computed."""
        return str(self.settings["backend"])

    @property
    def steps(self) -> int:
        """Environment steps that its runs were asked for, or took if they do not say."""
        taken = max((r.step for r in (*self.counted, *self.unfinished)), default=0)
        total = self.settings["total_timesteps"]
        return total if isinstance(total, int) else taken

    @property
    def shown(self) -> list[Record]:
        """Unfinished runs worth a curve: of seeds without a finished run."""
        seeds = {record.seed for record in self.counted}
        return [record for record in self.unfinished if record.seed not in seeds]

    def finals(self, protocol: Protocol) -> np.ndarray:
        """Results of the runs that count and have one (n,)."""
        found = (record.final(protocol) for record in self.counted)
        return np.array([value for value in found if value is not None], dtype=float)


def collect(paths: Sequence[Path]) -> list[Group]:
    """Reads all runs among some folders and puts them into groups, by task and experiment.

    Raises:
        PolyakError: a folder holds no runs, or a run's file is damaged (it is named).
    """
    groups: dict[str, Group] = {}
    for run in runs.find(paths):
        record = read(run)
        settings = identity(record.config)
        key = json.dumps(settings, sort_keys=True, default=str)
        names = (str(settings["env_id"]), str(settings["exp_name"]))
        group = groups.setdefault(key, Group(*names, settings))
        (group.counted if record.finished else group.unfinished).append(record)
    for group in groups.values():
        newest = sorted(group.counted, key=lambda record: record.written)
        kept = {record.seed: record for record in newest}
        group.superseded = [record for record in newest if kept[record.seed] is not record]
        group.counted = sorted(kept.values(), key=_by_seed)
        group.unfinished.sort(key=_by_seed)
    ordered = sorted(groups.values(), key=lambda group: (group.task, group.experiment))
    _tell_apart(ordered)
    return sorted(ordered, key=lambda group: (group.task, group.experiment))


def read(run: Run) -> Record:
    """One run, each of its files read once.

    Of `metrics.jsonl` only the rows that a report needs are parsed, which makes thousands of long
    runs a matter of seconds.

    Raises:
        PolyakError: a file is damaged, or a finished run's last rows are missing.
    """
    path = run.path / "metrics.jsonl"
    try:
        data = path.read_bytes() if path.is_file() else b""
        lines = data.split(b"\n")[:-1]  # what follows the last line's end was cut off by a crash
        series = {protocol.key: _series(lines, protocol.metric) for protocol in PROTOCOLS}
        name = f'"{SPEED}"'.encode()
        speed = next((line for line in reversed(lines) if name in line), None)
        sps = float(json.loads(speed)[SPEED]) if speed else None
        last = json.loads(lines[-1]) if lines else {"time": 0.0, "step": 0}
        seconds, reached = float(last["time"]), int(last["step"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise PolyakError(f"{path} cannot be read: {error!r}") from error
    status = run.status
    try:
        written = float(status.get("time", 0.0))
    except (ValueError, TypeError, OverflowError) as error:
        raise PolyakError(f"{run.path / 'status.json'} cannot be read: {error!r}") from error
    state, step = status["state"], status["step"]
    if state == "finished" and reached < step:
        raise PolyakError(f"{path} ends at step {reached} of {step}: it has lost rows")
    return Record(run, run.config, state, step, written, series, sps, seconds)


def _series(lines: list[bytes], metric: str) -> Series:
    name = f'"{metric}"'.encode()
    rows = json.loads(b"[" + b",".join([line for line in lines if name in line]) + b"]")
    found = [(row["step"], row["time"], row[metric]) for row in rows if metric in row]
    table = np.array(found, dtype=float).reshape(-1, 3)
    if not np.isfinite(table).all():
        raise ValueError(f"{metric} is not finite")
    return Series(table[:, 0].astype(np.int64), table[:, 1].copy(), table[:, 2].copy())


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """Everything by which a run's results may differ from another seed's.

    Settings of the run that say where and how something is kept are left out; a setting that an
    older run does not know has its default; the version of MuJoCo belongs to it, since versions
    give other trajectories.
    """
    kind = CONFIGS.get(str(config["algorithm"]))
    bookkeeping = {field.name for field in dataclasses.fields(Settings)} - set(OUTCOME)
    own = {k: v for k, v in config.items() if k not in bookkeeping and k != "context"}
    defaults = {"backend": "torch", "total_timesteps": None, "num_envs": 1}
    context = config.get("context")
    versions = context.get("versions") if isinstance(context, dict) else None
    mujoco = versions.get("mujoco", "") if isinstance(versions, dict) else ""
    tuned = dataclasses.asdict(kind()) if kind else {}
    return defaults | tuned | own | {"mujoco": mujoco}


def _tell_apart(groups: list[Group]) -> None:
    """Adds to the names of experiments what sets them apart, where a task has two of one name."""
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        alike[group.task, group.experiment].append(group)
    for members in alike.values():
        keys = sorted({key for group in members for key in group.settings})
        differing = [key for key in keys if len({_text(g.settings.get(key)) for g in members}) > 1]
        for group in members:
            parts = [f"{key}={_text(group.settings.get(key))}" for key in differing]
            group.experiment += f" [{', '.join(parts)}]" if parts else ""


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _by_seed(record: Record) -> tuple[bool, int, str]:
    seed = record.config["seed"]
    return (not isinstance(seed, int), seed if isinstance(seed, int) else 0, record.seed)
