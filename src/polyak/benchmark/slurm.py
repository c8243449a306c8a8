"""Runs on a Slurm cluster: one job array for each experiment, one task of it for each run."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from polyak import runs
from polyak.benchmark import grid
from polyak.benchmark.grid import Experiment, Job, TrainOptions
from polyak.benchmark.status import Index
from polyak.errors import PolyakError

FOLDER = Path("slurm")
"""Keeps the filled templates, what was submitted, and the logs."""


@dataclass(frozen=True)
class Resources:
    """What each task of an array is given."""

    template: Path | None = None
    """A template of one's own instead of the one that ships."""
    gpus_per_task: int = 0
    ntasks: int = 1
    nodes: int | None = None
    total_cpus: int | None = None
    """Processor cores of a task; by default one for each process and GPU."""
    arguments: tuple[str, ...] = ()
    """More arguments of sbatch; they win over the template's."""

    @property
    def cpus_per_task(self) -> int:
        """Cores of each process."""
        total = self.total_cpus or self.ntasks * max(self.gpus_per_task, 1)
        return math.ceil(total / self.ntasks)

    @property
    def cpus_per_gpu(self) -> int | None:
        """Cores that come with each GPU; None without GPUs."""
        if not self.gpus_per_task:
            return None
        return math.ceil(self.cpus_per_task / self.gpus_per_task)


class Submission(dict[int, Job]):
    """The runs of an array that was submitted, by their index, and the array's id."""

    def __init__(self, job_id: str, jobs: Mapping[int, Job]) -> None:
        super().__init__(jobs)
        self.job_id = job_id


def fill(experiment: Experiment, indices: Sequence[int], workers: int, wanted: Resources) -> str:
    """The template with its placeholders filled.

    A `#SBATCH` line whose placeholder has no value, such as GPUs where none are asked for, is left
    out.

    Args:
        experiment: whose runs are the tasks of the array.
        indices: those of its runs that are to be made.
        workers: how many at a time.
        wanted: what each is given.

    Raises:
        PolyakError: the template cannot be read, or has a placeholder that does not exist.
    """
    gpus = wanted.gpus_per_task
    values = {
        "array": f"{_ranges(indices)}%{workers}",
        "env_ids": f"({shlex.join(experiment.env_ids)})",
        "seeds": f"({' '.join(map(str, experiment.seeds))})",
        "len_seeds": len(experiment.seeds),
        "command": shlex.join(grid.command(experiment.arguments, trains=experiment.trains)),
        "gpus_per_task": gpus or None,
        "ntasks": wanted.ntasks,
        "nodes": wanted.nodes,
        "cpus_per_gpu": wanted.cpus_per_gpu,
        "cpus_per_task": None if gpus else wanted.cpus_per_task,
    }
    lines = []
    for line in _template(wanted.template).splitlines():
        if line.strip() == "{{nodes}}":  # templates that CleanRL's benchmark fills
            line = "#SBATCH --nodes={{nodes}}"
        names = re.findall(r"\{\{(\w*)\}\}", line)
        if unknown := [name for name in names if name not in values]:
            known = ", ".join(values)
            raise PolyakError(f"the template has {{{{{unknown[0]}}}}}, but there is only {known}")
        if line.startswith("#SBATCH") and any(values[name] is None for name in names):
            continue
        for name in names:
            value = values[name]
            line = line.replace(f"{{{{{name}}}}}", "" if value is None else str(value))
        lines.append(line)
    return "\n".join(lines) + "\n"


def submit(
    experiments: Sequence[Experiment],
    workers: int | None,
    wanted: Resources,
    environment: Mapping[str, str],
    index: Index,
    train_options: TrainOptions,
) -> None:
    """Submits an array for each experiment: of those runs that are neither finished nor queued.

    Raises:
        PolyakError: Slurm refuses, or is not there; the message is Slurm's own.
    """
    queue = queued(submissions(train_options))
    (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
    for experiment in experiments:
        indices = [
            number
            for number, job in enumerate(experiment.jobs)
            if job.key not in queue and not index.finished(job)
        ]
        left_out = len(experiment.jobs) - len(indices)
        if left_out:
            print(f"{experiment.name}: {left_out} runs are finished or queued already")
        if not indices:
            continue
        path = _free(experiment.name)
        path.write_text(fill(experiment, indices, workers or len(indices), wanted), "utf-8")
        command = ["sbatch", "--parsable", f"--job-name={path.stem}", *wanted.arguments, str(path)]
        try:
            job_id = _ask(*command, environment=environment).strip().split(";")[0]
        except PolyakError:
            path.unlink()
            raise
        tasks = {str(number): experiment.jobs[number].arguments for number in indices}
        name = experiment.name
        record = {"job_id": job_id, "experiment": name, "trains": experiment.trains, "tasks": tasks}
        runs.write_json(path.with_suffix(".json"), record)
        print(f"job {job_id}: {len(indices)} runs of {experiment.name} ({path})")


def submissions(train_options: TrainOptions) -> list[Submission]:
    """What was submitted from this folder.

    Raises:
        PolyakError: a record cannot be read.
    """
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        record = runs.read_json(path)
        try:
            tasks = {
                int(number): grid.job(words, train_options)
                if record["trains"]
                else grid.other_job(record["experiment"], words)
                for number, words in record["tasks"].items()
            }
            found.append(Submission(str(record["job_id"]), tasks))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise PolyakError(f"{path} is no record of a submission: remove it") from error
    return found


def queued(submitted: Sequence[Submission]) -> dict[str, str]:
    """State in the queue of the runs that are there, by the runs' keys.

    Raises:
        PolyakError: Slurm does not answer.
    """
    if not submitted:
        return {}
    # All of the user's jobs: asking for one that left the queue long ago is an error.
    text = _ask("squeue", "--noheader", "--array", "--format=%F %K %T", f"--user={os.getuid()}")
    jobs = {(one.job_id, str(number)): job for one in submitted for number, job in one.items()}
    states = {}
    for line in text.splitlines():
        job_id, number, state = line.split()
        if (job_id, number) in jobs:
            states[jobs[job_id, number].key] = state
    return states


def _template(path: Path | None) -> str:
    try:
        if path is None:
            return (resources.files("polyak") / "benchmark" / "template.sbatch").read_text("utf-8")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolyakError(f"cannot read the Slurm template {path}: {error}") from error


def _ranges(indices: Sequence[int]) -> str:
    """`0-5,7,9-11` of increasing numbers."""

    def parts() -> Iterator[str]:
        start = last = indices[0]
        for number in (*indices[1:], None):
            if number == last + 1:
                last = number
                continue
            yield str(start) if start == last else f"{start}-{last}"
            if number is not None:
                start = last = number

    return ",".join(parts())


def _free(name: str) -> Path:
    """A file for a filled template that does not exist yet."""
    name = re.sub(r"[^\w.-]+", "-", name)[:60]
    stem = f"{name}__{int(time.time())}"
    for attempt in range(1000):  # submissions of the same second
        path = FOLDER / f"{stem}{f'-{attempt}' if attempt else ''}.sbatch"
        if not path.exists():
            return path
    raise PolyakError(f"too many files {FOLDER / stem}: remove some")


def _ask(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """What a program of Slurm's prints."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except FileNotFoundError as error:
        raise PolyakError(
            f"{command[0]} is not installed: start this where Slurm's commands are, "
            "such as a login node, or leave --launcher slurm out"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PolyakError(f"{command[0]} does not answer: is Slurm up?") from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise PolyakError(f"{command[0]} refused: {reason}")
    return done.stdout
