"""`polyak tune`: its flags, and the search that they describe."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyak import __version__, algorithms, settings, stopping
from polyak.algorithms.configs import CONFIGS
from polyak.benchmark import launcher, ray_cluster
from polyak.benchmark.grid import Job, TrainOptions
from polyak.benchmark.progress import say
from polyak.errors import PolyakError
from polyak.tune import preset, ray_workers, spaces
from polyak.tune.study import SPACE, Search, Study, load, opened
from polyak.tune.trial import LAST
from polyak.tune.work import Work

USAGE = "polyak tune ALGORITHM [--env-id ID] [flags] [flags of polyak train, which are then fixed]"
DESCRIPTION = (
    "Searches for settings with a high return: trials of polyak train, chosen and cut short by "
    "Optuna. The same command again goes on with the study; several may work on it at once."
)
EVALUATIONS = 10
"""Evaluations of a run, unless `--eval-interval` says otherwise."""
OURS = {"runs_dir": "--storage, beside which trials lie", "save_path": "the trials' run folders"}
"""Settings that differ between trials, and what there is instead."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak tune`; one that was not given is absent from the result."""
    add = parser.add_argument
    add("--trials", type=int, metavar="N", help="of the whole study (default: 50)")
    add("--study", metavar="NAME", help="default: task and experiment")
    add("--storage", type=Path, metavar="FILE",
        help="an Optuna journal, or SQLite where it ends in .db; trials lie beside it "
        "(default: tune/STUDY.journal)")  # fmt: skip
    add("--workers", type=int, metavar="N", help="trials at a time (default: 1)")
    add("--no-pruning", action="store_true", help="train every trial to its end")
    add("--output", type=Path, metavar="FILE.toml",
        help="preset of the best trial (default: tune/STUDY.toml, beside the storage)")  # fmt: skip
    add("--num-seeds", type=int, metavar="N",
        help="seeds of each trial, whose mean counts (default: 1)")  # fmt: skip
    launcher.add_flag(parser, "local", "ray")
    launcher.add_ray_flags(parser)


def main(
    parser: argparse.ArgumentParser, arguments: Sequence[str], train_options: TrainOptions
) -> None:
    """Does what a command line of `polyak tune` asks for.

    Args:
        parser: with the flags of `add_flags`.
        arguments: the command line, whose first word is the algorithm.
        train_options: reads flags of `polyak train`.

    Raises:
        PolyakError: nothing could begin, or trials fail.
        KeyboardInterrupt: it was asked to stop; the study goes on with the same command.
    """
    name = arguments[0] if arguments else "-h"
    if name in ("-h", "--help"):
        parser.print_help()
        return
    if name.startswith("-"):
        raise PolyakError(f"name the algorithm first: {USAGE}")
    own, flags = parser.parse_known_args(arguments[1:])
    given = vars(own)
    trials, workers = given.get("trials", 50), given.get("workers", 1)
    for key, value in (("trials", trials), ("workers", workers)):
        if value < 1:
            raise PolyakError(f"--{key} must be at least 1, not {value}")
    place, gpus, address = launcher.choose(given), launcher.ray_gpus(given), given.get("address")
    search, fixed = _search(name, given, train_options(name, flags))
    output = given.get("output", search.storage.parent / f"{search.name}.toml")
    load()
    if place == "ray":
        ray_cluster.load(address)
    basis = settings.setup(name, {"learning_starts": 0} | fixed).settings
    _check_task(basis.env_id)
    with opened(search) as study, stopping.on_signals():
        preset.check(output)
        say(f"study {search.name} in {search.storage}; {_counts(study)}")

        def found() -> None:
            _write(study, search, fixed, output)

        if place == "ray":
            ray_workers.run(
                study,
                search,
                trials,
                found,
                address=address,
                workers=workers,
                threads=basis.threads,
                gpus=gpus,
            )
        else:
            Work(study, trials, workers, found)()
        best = study.best()
    if best is None:
        raise PolyakError(f"no trial of {search.name} is complete: raise --trials")
    print(f"best_value={best[1]:.2f} trial={best[0]}\npreset={output}")


def _search(
    name: str, given: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Search, dict[str, Any]]:
    """What is searched, and the settings that flags and presets fix, by field name."""
    algorithm, _ = algorithms.parse(name)
    num_seeds = given.get("num_seeds", 1)
    if num_seeds < 1:
        raise PolyakError(f"--num-seeds must be at least 1, not {num_seeds}")
    fixed = _fixed(name, algorithm, options)
    # Its warm-up, which is searched, is shorter than any run.
    basis = settings.setup(name, {"learning_starts": 0} | fixed).settings
    for key in ("eval_interval", "eval_episodes"):
        if getattr(basis, key) == 0:
            raise PolyakError(f"--{key.replace('_', '-')} 0 leaves nothing to judge a trial by")
    every = {"eval_interval": max(basis.total_timesteps // EVALUATIONS, 1)} | fixed
    space = spaces.space(algorithm, fixed, basis.total_timesteps)
    if not space:
        raise PolyakError("every setting is fixed: leave out those that shall be searched")
    for bound in ("low", "high"):  # what holds at both ends holds between them
        settings.setup(name, every | {key: getattr(d, bound) for key, d in space.items()})
    study = given.get("study") or re.sub(r"[^\w.+-]+", "-", f"{basis.env_id}__{basis.exp_name}")
    if not re.fullmatch(r"[\w+-][\w.+-]*", study):
        raise PolyakError(f"--study {study!r} must be a name for a folder: letters, digits, ._+-")

    def jobs(folder: Path, chosen: Mapping[str, Any]) -> list[Job]:
        values = {"keep_checkpoint": False} | every | {**chosen, "runs_dir": str(folder)}
        seeds = range(basis.seed, basis.seed + num_seeds)
        return [_job(name, values | {"seed": seed}) for seed in seeds]

    search = Search(
        storage=given.get("storage", Path("tune") / f"{study}.journal"),
        name=study,
        facts={key: value for key, value in every.items() if key not in settings.PLACE}
        | {"algorithm": algorithm, "num_seeds": num_seeds}
        | {SPACE: {setting: str(dimension) for setting, dimension in space.items()}},
        space=space,
        defaults=dataclasses.asdict(CONFIGS[algorithm]()),
        jobs=jobs,
        warm_up=-1 if given.get("no_pruning") else basis.total_timesteps // 3,
        seed=basis.seed,
    )
    return search, fixed


def _fixed(name: str, algorithm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    known = settings.option_names(algorithm)
    for key in options:
        flag = "--" + key.replace("_", "-")
        if key not in known:
            raise PolyakError(f"{flag} is for a single run, not for a search")
        if key in OURS:
            raise PolyakError(f"{flag} differs between trials: use {OURS[key]}")
    fixed = settings.explicit(name, options)
    return {key: value for key, value in fixed.items() if key not in ("algorithm", *OURS)}


def _job(name: str, values: Mapping[str, Any]) -> Job:
    made = settings.setup(name, values)
    flags = (f"--{key.replace('_', '-')}={value}" for key, value in values.items())
    chosen = made.settings
    return Job(chosen.env_id, chosen.exp_name, chosen.seed, (name, *flags), made)


def _write(study: Study, search: Search, fixed: Mapping[str, Any], output: Path) -> None:
    """Replaces the preset by the best trial's so far, if there is one."""
    best = study.best()
    if best is None:
        return
    number, value, chosen = best
    algorithm, num_seeds = search.facts["algorithm"], search.facts["num_seeds"]
    basis = f"its last {LAST} evaluations over {num_seeds} seeds from {search.seed} on"
    facts = (
        f"Use: polyak train {algorithm} --preset {shlex.quote(str(output))}",
        f"Study: {search.name} in {search.storage}; {_counts(study)}",
        f"Best: trial {number}, return {value:.6g}, the mean of {basis}",
        f"Its runs: {search.folder / f'trial-{number:04}'}",
        f"Searched: {'; '.join(f'{setting} {d}' for setting, d in search.space.items())}",
        f"Polyak {__version__}, Optuna {load().__version__}",
    )
    said = {k: v for k, v in fixed.items() if k not in settings.PLACE | {"seed", "exp_name"}}
    preset.write(output, facts, said | chosen)


def _check_task(env_id: str) -> None:
    """Refuses a task that does not exist, or cannot be used, before anything starts."""
    from polyak.environments import Environment

    Environment(env_id).close()


def _counts(study: Study) -> str:
    counts = (f"{count} {state}" for state, count in study.counts().items())
    return f"trials: {', '.join(counts) or 'none yet'}"
