"""Kills runs without warning and lets them go on: does each end as if nothing had happened?

    python benchmarks/torture.py [--kills 50] [--output results/torture] [--only ddpg-torch ...]

For every algorithm, backend and number of environments: a reference run that nobody disturbs, then
runs that are killed with SIGKILL and continued with `resume="auto"` until they finish. A kill
comes at a random moment, at a random write of a checkpoint, or in an evaluation; some runs are
killed again soon after they went on. Compared with the reference: weights of the final and of the
best agent, everything that learns, the replay buffer's content, every row of metrics but for clock
and speed, and the steps of TensorBoard's file. Ends with exit code 1 if one differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import polyak
from polyak import arrays, runs
from polyak.algorithms import ALGORITHMS
from polyak.checkpoint import Folder
from polyak.environments import Environment
from polyak.runs import Run

OPTIONS: dict[str, Any] = {
    "env_id": "InvertedPendulum-v5",
    "total_timesteps": 4_000,
    "learning_starts": 3_600,
    "batch_size": 16,
    "hidden_dim": 16,
    "buffer_size": 1_500,  # the ring wraps
    "log_interval": 50,
    "eval_interval": 500,
    "eval_episodes": 2,
    "checkpoint_interval": 250,
}
"""Small networks: what is tested is not the learning."""

MOMENTS = ("any moment", "any moment twice", "a write", "an evaluation")
"""When a run is killed; they take turns."""

HEAD = (
    "algorithm", "backend", "num_envs", "runs", "kills", *(f"kills in {m}" for m in MOMENTS),
    "identical",
)  # fmt: skip


class Plan(NamedTuple):
    """When a process kills itself; moments of the clock are left to whoever watches it."""

    write: int = 0
    """At the how manieth write of a file of a checkpoint, before or after it has its name."""
    evaluation: int = 0
    """At the how manieth step of an evaluation."""


def child(options: dict[str, Any], plan: Plan) -> None:
    """A process that trains, as `polyak train --resume auto` does."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    if plan.write:
        arrays.write = _killing(arrays.write, plan.write)
        arrays.sync_folder = _killing(arrays.sync_folder, max(plan.write // 3, 1))
    if plan.evaluation:
        step = _killing(Environment.step, plan.evaluation, evaluating)
        Environment.step = step  # type: ignore[method-assign]
    polyak.train(resume="auto", **options)


def evaluating() -> bool:
    """Whether the caller's caller evaluates."""
    return sys._getframe(2).f_code.co_name == "evaluate"


def _killing(
    function: Callable[..., Any], count: int, where: Callable[[], bool] = lambda: True
) -> Callable[..., Any]:
    left = count

    def call(*arguments: Any) -> Any:
        nonlocal left
        left -= where()
        if left <= 0:
            if count % 2:  # half of them when the work is done
                function(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    return call


class Launcher:
    """Starts processes quickly: a server that has imported the libraries forks them."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        modules = ["polyak.training", "polyak.recording", *ALGORITHMS.values()]
        self._context.set_forkserver_preload([*modules, "__main__"])

    def run(self, options: dict[str, Any], plan: Plan, limit: float | None) -> bool:
        """Whether the process was killed, by itself or after `limit` seconds."""
        process = self._context.Process(target=child, args=(options, plan))
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"a run ended with {process.exitcode}: {options}")
        return process.exitcode != 0


def finished(place: Path) -> bool:
    """Whether a kill came too late: the run was done, and going on would begin another one."""
    states = [Run(path.parent).status["state"] for path in place.glob("*/status.json")]
    return "finished" in states


def digest(run: Run) -> dict[str, str]:
    """What must not depend on kills, by its name."""
    folder = Folder(run.path / "checkpoint")
    saved = folder.find()
    assert saved is not None
    learned = folder.load(saved.files[0])
    ring: dict[str, list[np.ndarray]] = {}
    for entry in saved.files[1:]:
        part = folder.load(entry)
        part["ended"] = np.isin(np.arange(len(part["reward"])), part["ended"])
        for name, array in part.items():
            ring.setdefault(name, []).append(array)
    kept = min(saved.content["rows"] * run.config["num_envs"], run.config["buffer_size"])
    replay = {
        name: np.concatenate(parts)[-kept if name != "last" else None :]
        for name, parts in ring.items()
    }
    replay["last"] = replay["last"][len(replay["last"]) - replay["ended"].sum() :]
    counters = ("generator", "metrics", "environments", "review", "rows")
    rows = [
        {name: value for name, value in row.items() if name != "time" and "SPS" not in name}
        for row in run.metrics()
    ]
    return {
        "final": _hash((run.path / "final" / "model.safetensors").read_bytes()),
        "best": _hash((run.path / "best" / "model.safetensors").read_bytes()),
        "learned": _hash(arrays.encode(learned)),
        "replay": _hash(*(name.encode() + replay[name].tobytes() for name in sorted(replay))),
        "counters": _hash(json.dumps([saved.content[name] for name in counters]).encode()),
        "rows": _hash(json.dumps(rows).encode()),
        "events": _hash(json.dumps(event_steps(run)).encode()),
    }


def event_steps(run: Run) -> list[int]:
    """The steps in TensorBoard's file."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = run.path.glob("events.out.tfevents.*")
    data, steps, at = path.read_bytes(), [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        steps.append(Event.FromString(data[at + 12 : at + 12 + length]).step)
        at += length + 16
    return steps


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def torture(
    launcher: Launcher,
    algorithm: str,
    backend: str,
    num_envs: int,
    count: int,
    folder: Path,
    **changes: Any,
) -> dict[str, Any]:
    """A row of the table, and `problems` with the differences that were found."""
    kind = {"algorithm": algorithm, "backend": backend, "num_envs": num_envs}
    options = OPTIONS | kind | changes
    reference = folder / "reference"
    began = time.perf_counter()
    launcher.run(options | {"runs_dir": str(reference)}, Plan(), None)
    duration = time.perf_counter() - began
    (run,) = runs.find([reference])
    wanted = digest(run)
    chance = random.Random(f"{algorithm} {num_envs}")  # noqa: S311 - no secret
    kills = dict.fromkeys(MOMENTS, 0)
    problems = []
    for index in range(count):
        moment = MOMENTS[index % len(MOMENTS)]
        hits, attempt = 0, 0
        while not hits:  # a run that ended before its moment came is none
            attempt += 1
            place = folder / f"{index}-{attempt}"
            killed = True
            for again in range(2 if moment.endswith("twice") else 1):
                plan, limit = Plan(), None
                if moment == "a write":
                    plan = Plan(write=chance.randrange(1, 50))
                elif moment == "an evaluation":
                    plan = Plan(evaluation=chance.randrange(1, 60))
                else:
                    limit = chance.uniform(0.0, 0.5 * duration if again else duration)
                began = time.perf_counter()
                killed = launcher.run(options | {"runs_dir": str(place)}, plan, limit)
                killed = killed and not finished(place)
                hits += killed
                if not killed:
                    duration = min(duration, time.perf_counter() - began)
                    break
        kills[moment] += hits
        if killed:
            launcher.run(options | {"runs_dir": str(place)}, Plan(), None)
        # A folder of a run that was killed before it had a configuration is none.
        ends = [digest(run) for run in runs.find([place])]
        differing = [name for name in wanted if any(end[name] != wanted[name] for end in ends)]
        if len(ends) != 1:
            differing.append(f"{len(ends)} runs")
        if differing:
            problems.append(f"{algorithm} {backend} {num_envs} {index} {moment}: {differing}")
    return {
        "algorithm": algorithm,
        "backend": backend,
        "num_envs": num_envs,
        "runs": count,
        "kills": sum(kills.values()),
        **{f"kills in {moment}": number for moment, number in kills.items()},
        "identical": count - len(problems),
        "problems": problems,
    }


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="runs of each kind that are killed")
    parser.add_argument("--output", type=Path, default=Path("results/torture"))
    names = ["-".join(pair) for pair in ALGORITHMS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    asked = parser.parse_args()
    launcher, table, problems = Launcher(), [], []
    asked.output.mkdir(parents=True, exist_ok=True)
    file = asked.output / "torture.csv"
    for name in asked.only:
        for num_envs in (1, 3):
            with tempfile.TemporaryDirectory() as folder:
                algorithm, backend = name.split("-")
                row = torture(launcher, algorithm, backend, num_envs, asked.kills, Path(folder))
            problems += row.pop("problems")
            table.append({name: str(value) for name, value in row.items()})
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            _write(file, table)
    machine = {key: runs.context()[key] for key in ("versions", "git", "processor", "cores")}
    (asked.output / "machine.json").write_text(json.dumps(machine, indent=2) + "\n")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _write(path: Path, table: list[dict[str, str]]) -> None:
    """Brings the table up to date: rows of other kinds stay as they are."""
    key = ("algorithm", "backend", "num_envs")
    old = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            old = list(csv.DictReader(file))
    new = {tuple(row[name] for name in key) for row in table}
    table = [row for row in old if tuple(row[name] for name in key) not in new] + table
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEAD, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    sys.exit(main())
