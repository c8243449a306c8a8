"""`polyak benchmark`: its flags, and what they start."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyak.benchmark import grid, launcher, local, ray_runs, slurm, status, tags
from polyak.benchmark.grid import Experiment, Grid, Job, TrainOptions
from polyak.benchmark.status import Index
from polyak.errors import PolyakError

USAGE = "polyak benchmark [GRID.toml ...] [flags] [flags of polyak train]"
DESCRIPTION = (
    "Makes every run of a grid: tasks x experiments x seeds. The same command again makes what is "
    "missing and goes on with what is half done. Exit code 1 if a run failed."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak benchmark`; one that was not given is absent from the result."""
    what = parser.add_argument_group("what to run; wins over grid files")
    add = what.add_argument
    add("--variant", help="a variant that the grid files offer, such as v4")
    add("--env-ids", nargs="+", metavar="ID", help="tasks")
    add("--algorithms", nargs="+", metavar="NAME", help="algorithms, or names of experiments")
    add("--backends", nargs="+", metavar="NAME", help="libraries that compute (default: torch)")
    add("--command", help="a command instead of algorithms; it is given --env-id and --seed")
    add("--num-seeds", type=int, metavar="N", help="runs of each kind (default: 3)")
    add("--start-seed", type=int, metavar="N", help="the first seed (default: 1)")
    add("--tags", help="labels of the runs, comma-separated, also in WANDB_TAGS")
    add("--auto-tag", action="store_true",
        help="add the git tag, the commit and, where CI tells it, the pull request")  # fmt: skip

    where = parser.add_argument_group("where to run")
    add = where.add_argument
    add("--workers", type=int, metavar="N",
        help="runs at a time; 0 prints commands (default: 1 here, all on a cluster)")  # fmt: skip
    launcher.add_flag(where, "local", "slurm", "ray")
    add("--status", action="store_true",
        help="tell how the runs stand; without a grid, those submitted to Slurm")  # fmt: skip

    add = parser.add_argument_group("Slurm").add_argument
    add("--slurm-template-path", type=Path, metavar="PATH", help="default: the one that ships")
    add("--slurm-gpus-per-task", type=int, metavar="N", help="default: 0")
    add("--slurm-ntasks", type=int, metavar="N", help="processes of an array's task (default: 1)")
    add("--slurm-nodes", type=int, metavar="N", help="nodes of an array's task")
    add("--slurm-total-cpus", type=int, metavar="N", help="cores of an array's task (default: 1)")
    add("--slurm-args", metavar="TEXT",
        help="more arguments of sbatch: --slurm-args='--partition=cpu --time=9:00:00'")  # fmt: skip

    launcher.add_ray_flags(parser)


def main(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    train_options: TrainOptions,
    resume: Sequence[str],
) -> int:
    """Does what a command line of `polyak benchmark` asks for; returns its exit code.

    Args:
        parser: with the flags of `add_flags`.
        arguments: the command line.
        train_options: reads flags of `polyak train`.
        resume: flags with which a run goes on from where it was left.

    Raises:
        PolyakError: see `grid.expand` and the launchers.
    """
    files = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    options, flags = parser.parse_known_args(arguments[len(files) :])
    given = vars(options)
    place = launcher.choose(given)
    environment = _tag(given, flags)
    workers = given.get("workers")
    if workers is not None and workers < 0:
        raise PolyakError(f"--workers must be 0 or more, not {workers}")
    if given.get("status") and not files and not {"env_ids", "algorithms"} & given.keys():
        return _status([], train_options)

    gpus = launcher.ray_gpus(given)
    wanted = _resources(given)
    threads = {
        "local": local.cores() // (workers or 1),
        "slurm": wanted.cpus_per_task,
        "ray": 1,
    }[place]
    defaults = ("--threads", str(min(max(threads, 1), 256)), *resume)
    experiments = _experiments(given, files, train_options, defaults, flags)
    jobs = sorted(
        (job for experiment in experiments for job in experiment.jobs), key=lambda job: job.seed
    )
    if given.get("status"):
        return _status(jobs, train_options)
    _check_tasks(jobs)
    if workers == 0:
        for experiment in experiments:
            _print(experiment, place, wanted)
        return 0
    index = Index()
    if place == "slurm":
        slurm.submit(experiments, workers, wanted, environment, index, train_options)
        return 0
    if place == "ray":
        failed = ray_runs.run(
            jobs,
            address=given.get("address"),
            workers=workers,
            gpus=gpus,
            environment=environment,
            index=index,
        )
    else:
        failed = local.run(jobs, workers or 1, environment, index)
    for job in failed:
        print(f"failed: {job.label} ({job.log})")
    print(f"{len(jobs) - len(failed)} of {len(jobs)} runs are done")
    return 1 if failed else 0


def _resources(given: Mapping[str, Any]) -> slurm.Resources:
    names = {field.name for field in dataclasses.fields(slurm.Resources)} - {"arguments"}
    values = {name: given[f"slurm_{name}"] for name in names if f"slurm_{name}" in given}
    if "slurm_template_path" in given:
        values["template"] = given["slurm_template_path"]
    for name, value in values.items():
        if isinstance(value, int) and value < (name != "gpus_per_task"):
            raise PolyakError(f"--slurm-{name.replace('_', '-')} must be positive, not {value}")
    try:
        words = shlex.split(given.get("slurm_args", ""))
    except ValueError as error:
        raise PolyakError(f"--slurm-args cannot be split into words: {error}") from error
    return slurm.Resources(**values, arguments=tuple(words))


def _tag(given: Mapping[str, Any], flags: list[str]) -> dict[str, str]:
    """Adds the tags to the flags of the runs; returns what their environment says of them."""
    labels = [label for label in given.get("tags", "").split(",") if label]
    if given.get("auto_tag"):
        labels += tags.automatic()
    if not labels:
        return {}
    if "command" not in given:
        flags += ["--tags", ",".join(labels)]
    before = [label for label in os.environ.get("WANDB_TAGS", "").split(",") if label]
    return {"WANDB_TAGS": ",".join(dict.fromkeys(before + labels))}


def _experiments(
    given: Mapping[str, Any],
    files: Sequence[str],
    train_options: TrainOptions,
    defaults: Sequence[str],
    flags: Sequence[str],
) -> list[Experiment]:
    if "variant" in given and not files:
        raise PolyakError("--variant is of a grid file: name one")
    names = {field.name for field in dataclasses.fields(Grid)}
    own = {key: value for key, value in given.items() if key in names}
    read = [grid.read(Path(file), given.get("variant")) for file in files] or [Grid()]
    found = [
        experiment
        for one in read
        for experiment in grid.expand(grid.override(one, own), train_options, defaults, flags)
    ]
    keys = [job.key for experiment in found for job in experiment.jobs]
    if len(set(keys)) < len(keys):
        raise PolyakError("the grids have runs in common: leave one of them out")
    return found


def _check_tasks(jobs: Sequence[Job]) -> None:
    """Refuses a task that does not exist, or cannot be used, before anything starts."""
    env_ids = dict.fromkeys(job.env_id for job in jobs if job.setup is not None)
    if env_ids:
        from polyak.environments import Environment

        for env_id in env_ids:
            Environment(env_id).close()


def _print(experiment: Experiment, place: str, wanted: slurm.Resources) -> None:
    if place == "slurm":
        count = len(experiment.jobs)
        print(slurm.fill(experiment, range(count), count, wanted), end="")
        return
    for job in experiment.jobs:
        words = ("polyak", "train", *job.arguments) if job.setup else job.command
        print(shlex.join(words))


def _status(jobs: Sequence[Job], train_options: TrainOptions) -> int:
    submitted = slurm.submissions(train_options)
    if not jobs:
        jobs = list({job.key: job for one in submitted for job in one.values()}.values())
    if not jobs:
        raise PolyakError(
            f"nothing was submitted from here ({slurm.FOLDER}/): say which runs, "
            "with the same grid and flags that they were started with"
        )
    keys = {job.key for one in submitted for job in one.values()}
    # Runs of this machine need no queue, nor Slurm's commands.
    queue = slurm.queued(submitted) if keys & {job.key for job in jobs} else {}
    index = Index()
    standings = [
        status.standing(
            job,
            index,
            queue=queue.get(job.key),
            alive=local.alive(job),
            submitted=job.key in keys,
        )
        for job in jobs
    ]
    print(status.table(jobs, standings))
    return 0
