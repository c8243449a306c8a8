"""Tasks x experiments x seeds, from flags or a TOML file, expanded into the runs to be made."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyak import algorithms, settings
from polyak.errors import PolyakError
from polyak.resume import AUTO
from polyak.settings import MOST_SEEDS, Setup

TrainOptions = Callable[[str, Sequence[str]], dict[str, Any]]
"""Reads the flags of `polyak train ALGORITHM`: options by name, or a `PolyakError`."""

OURS = {
    "env_id": "--env-ids",
    "seed": "--num-seeds and --start-seed",
    "backend": "--backends",
    "save_path": "the run folders: each keeps its own agent",
}
"""Settings that differ between the runs of a benchmark, and what sets them instead."""


@dataclass(frozen=True)
class Grid:
    """What to run. Its fields are the keys of a grid file."""

    env_ids: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    """Algorithms (`td3`: in each backend) or experiments (`td3_continuous_action_jax`)."""
    backends: tuple[str, ...] = ("torch",)
    command: str = ""
    """A command to run instead of algorithms; it is given `--env-id` and `--seed`."""
    num_seeds: int = 3
    start_seed: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every run, by field name."""

    @property
    def seeds(self) -> range:
        """The seeds, one after another."""
        return range(self.start_seed, self.start_seed + self.num_seeds)


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    env_id: str
    experiment: str
    seed: int
    arguments: tuple[str, ...]
    """Of `polyak train`, or the words of another command."""
    setup: Setup | None
    """What it will be; None for another command, of which nothing is known."""

    @property
    def command(self) -> list[str]:
        """The words that start it."""
        return [*command(self.arguments, trains=self.setup is not None)]

    @property
    def label(self) -> str:
        """For people: `Hopper-v5 td3_continuous_action seed 1`."""
        return f"{self.env_id} {self.experiment} seed {self.seed}"

    @property
    def steps(self) -> int:
        """Environment steps that it takes; 1 for another command: all count the same."""
        return self.setup.settings.total_timesteps if self.setup else 1

    @property
    def runs_dir(self) -> Path:
        """The folder of the run folders, and of the folder `logs`."""
        return Path(self.setup.settings.runs_dir if self.setup else "runs")

    @property
    def log(self) -> Path:
        """The file of its output, one for each configuration."""
        parts = (self.env_id, self.experiment, str(self.seed))
        name = "__".join(re.sub(r"[^\w.-]+", "-", part)[-60:] for part in parts)
        return self.runs_dir / "logs" / f"{name}__{self.key[:8]}.log"

    @functools.cached_property
    def key(self) -> str:
        """What is computed, as a number in hex: equal for runs that are the same experiment."""
        return identity(self.setup.asdict()) if self.setup else _digest(self.arguments)


@dataclass(frozen=True)
class Experiment:
    """The runs that differ by task and seed alone."""

    name: str
    arguments: tuple[str, ...]
    """Of `polyak train`, or the words of another command; without task and seed."""
    trains: bool
    """Whether it is `polyak train`."""
    env_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    jobs: tuple[Job, ...]
    """Task by task, seed by seed: the run at `index` has task `index / len(seeds)`, rounded down,
    and seed `index % len(seeds)`."""


def command(arguments: Sequence[str], *, trains: bool) -> tuple[str, ...]:
    """The words that start a run, with this very Python."""
    return (sys.executable, "-m", "polyak", "train", *arguments) if trains else (*arguments,)


def read(path: Path, variant: str | None = None) -> Grid:
    """A grid from a TOML file.

    Args:
        path: the file; its keys are the fields of `Grid`.
        variant: a table under `[variants]` whose keys win over the others.

    Raises:
        PolyakError: no such file or variant, not TOML, an unknown key, a wrong type.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PolyakError(f"cannot read the grid {path}: {error.strerror}") from error
    except ValueError as error:  # of the text or of TOML
        raise PolyakError(f"the grid {path} is not valid TOML: {error}") from error
    variants = values.pop("variants", {})
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        raise PolyakError(f"variants in {path} must be tables: [variants.NAME]")
    if variant is not None:
        if variant not in variants:
            known = ", ".join(variants) or "it has none"
            raise PolyakError(f"the grid {path} has no variant {variant!r}: {known}")
        values |= variants[variant]
    return override(Grid(), values, where=f" in {path}")


def override(grid: Grid, values: Mapping[str, Any], where: str = "") -> Grid:
    """The grid with some of its fields replaced.

    Raises:
        PolyakError: an unknown field or a wrong type; `where` says in which file.
    """
    known = {f.name: f for f in dataclasses.fields(Grid)}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
            raise PolyakError(f"a grid has no {key!r}{where}; {hint}")
        checked[key] = _typed(key, value, getattr(grid, key), where)
    return dataclasses.replace(grid, **checked)


def expand(
    grid: Grid, train_options: TrainOptions, defaults: Sequence[str], flags: Sequence[str]
) -> list[Experiment]:
    """The runs of a grid, checked: what cannot work is refused before anything starts.

    Args:
        grid: what to run.
        train_options: reads flags of `polyak train`.
        defaults: flags of every run; the grid's settings win over them.
        flags: flags of every run; they win over the grid's settings.

    Raises:
        PolyakError: the grid is empty, or one of its runs could not begin.
    """
    if not grid.env_ids or not (grid.algorithms or grid.command):
        missing = "algorithms" if grid.env_ids else "env_ids"
        flag = missing.replace("_", "-")
        raise PolyakError(f"say what to run: --{flag}, or {missing} in a grid file")
    if grid.algorithms and grid.command:
        raise PolyakError("--command is run instead of --algorithms: give one of them")
    for name, values in (("env_ids", grid.env_ids), ("algorithms", grid.algorithms)):
        if twice := {value for value in values if values.count(value) > 1}:
            raise PolyakError(f"{min(twice)} stands twice in --{name.replace('_', '-')}")
    if not 1 <= grid.num_seeds <= MOST_SEEDS or grid.start_seed < 0:
        raise PolyakError(f"--num-seeds must be 1 to {MOST_SEEDS}, and --start-seed 0 or more")
    if grid.command:
        return [_other(grid, flags)]
    given = (*defaults, *_as_flags(grid.settings), *flags)
    found = []
    for name in grid.algorithms:
        algorithm, own = algorithms.parse(name)
        for backend in (own,) if own else grid.backends:
            found.append(_experiment(grid, algorithm, backend, given, train_options))
    names = [experiment.name for experiment in found]
    if len(set(names)) < len(names):
        raise PolyakError("two experiments have one name: leave --exp-name out, or name each once")
    return found


def job(arguments: Sequence[str], train_options: TrainOptions) -> Job:
    """The run that these arguments of `polyak train` make.

    Raises:
        PolyakError: they make none.
    """
    name, *flags = arguments
    made = settings.setup(name, _settings_only(name, train_options(name, flags)))
    chosen = made.settings
    return Job(chosen.env_id, chosen.exp_name, chosen.seed, tuple(arguments), made)


def other_job(experiment: str, words: Sequence[str]) -> Job:
    """The run of another command, whose last words are its `task_flags`."""
    return Job(words[-3], experiment, int(words[-1]), tuple(words), None)


def identity(config: Mapping[str, Any]) -> str:
    """What a configuration computes, as a number in hex; equal if only the place differs.

    Args:
        config: settings by name, as in config.json. A setting that it does not hold, since it was
            written before that setting existed, counts as its default.
    """
    known = settings.fields(config["algorithm"])
    return _digest(
        {k: config.get(k, f.default) for k, f in known.items() if k not in settings.PLACE}
    )


def task_flags(env_id: str, seed: int | str) -> tuple[str, ...]:
    """What tells the runs of an experiment apart."""
    return ("--env-id", env_id, "--seed", str(seed))


def _experiment(
    grid: Grid, algorithm: str, backend: str, flags: Sequence[str], train_options: TrainOptions
) -> Experiment:
    algorithms.check(algorithm, backend)
    arguments = (algorithm, "--backend", backend, *flags)
    options = train_options(algorithm, flags)
    if options.get("resume", AUTO) != AUTO:
        raise PolyakError("--resume RUN is for a single run: a benchmark goes on by itself")
    for key, instead in OURS.items():
        if key in options:
            flag = "--" + key.replace("_", "-")
            raise PolyakError(f"{flag} differs between the runs of a benchmark: use {instead}")
    jobs = [
        job((*arguments, *task_flags(env_id, seed)), train_options)
        for env_id in grid.env_ids
        for seed in grid.seeds
    ]
    name = jobs[0].experiment
    return Experiment(name, arguments, True, grid.env_ids, tuple(grid.seeds), tuple(jobs))


def _other(grid: Grid, flags: Sequence[str]) -> Experiment:
    try:
        words = (*shlex.split(grid.command), *_as_flags(grid.settings), *flags)
    except ValueError as error:
        raise PolyakError(f"--command cannot be split into words: {error}") from error
    name = Path(words[0]).name
    if (script := next((word for word in words[1:] if word.endswith(".py")), None)) is not None:
        name = Path(script).stem
    jobs = tuple(
        other_job(name, (*words, *task_flags(env_id, seed)))
        for env_id in grid.env_ids
        for seed in grid.seeds
    )
    return Experiment(name, words, False, grid.env_ids, tuple(grid.seeds), jobs)


def _settings_only(algorithm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without `resume`, which says how a run begins and not what it is."""
    known = settings.option_names(algorithm)
    for key in options:
        if key not in known and key != "resume":
            flag = "--" + key.replace("_", "-")
            raise PolyakError(f"{flag} is for a single run, not for a benchmark")
    return {key: value for key, value in options.items() if key in known}


def _as_flags(values: Mapping[str, Any]) -> Iterable[str]:
    for key, value in values.items():
        if isinstance(value, dict | list):
            raise PolyakError(f"the grid's setting {key} must be one value, not {value}")
        yield "--" + key.replace("_", "-")
        yield str(value)


def _typed(key: str, value: Any, default: Any, where: str) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise PolyakError(f"{key} must be a list of names{where}, not {value!r}")
        return tuple(value)
    wanted = Mapping if isinstance(default, Mapping) else type(default)
    if not isinstance(value, wanted) or isinstance(value, bool):
        kind = "a table" if wanted is Mapping else {int: "a whole number", str: "a text"}[wanted]
        raise PolyakError(f"{key} must be {kind}{where}, not {value!r}")
    return value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
