"""How fast is it? Both backends, beside Stable-Baselines3, SBX and the limit of the machine.

    python benchmarks/speed.py [--peers PYTHON] [--only loop update costs] [--tasks Hopper-v5 ...]

Writes results/speed/NAME.md (tables, and which targets are reached), NAME.json (every measurement
and its circumstances) and NAME.png. `docs/speed.md` says how it is measured and how to read it.
`--peers` is the Python of an environment that holds stable-baselines3 and sbx-rl.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import costs
import roofline
import speed_figure
import systems
import targets
from pacing import Turns, Worker, take_turns
from speed_results import Row, Rows, page

from polyak import runs
from polyak.environments import Environment

STARTS = 500
"""Random steps before a loop learns."""

SIDE_BY_SIDE = 4
"""Environments of the loops that are compared with those of one, on the first task."""

PARTS = ("loop", "update", "costs")


class Job(NamedTuple):
    """What works in turns: a loop, an update, or the products of matrices."""

    what: str
    system: str = ""
    num_envs: int = 1


def main() -> None:
    options = parsed()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{options.threads} threads for every system, {cores} cores, load {load:.1f}", flush=True)
    if load > 0.5:
        print("this machine is not idle: only ratios mean something, and those little", flush=True)
        if options.threads > 1:
            print("threads that wait for each other are many times slower then: --threads 1")
    began = time.perf_counter()
    rows = Rows()
    for row in measured(options):
        rows.append(row)
        where = " ".join(str(part) for part in (row.env_id, row.algorithm, row.system) if part)
        several = f" x{row.num_envs}" if row.num_envs > 1 else ""
        print(f"{where}{several} {row.what}: {row.median:.4g} {row.unit}".strip(), flush=True)
    write(rows, options, load, time.perf_counter() - began)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default="", help="a Python with stable-baselines3 and sbx-rl")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--tasks", nargs="+", default=["Hopper-v5", "HalfCheetah-v5", "Humanoid-v5"]
    )
    parser.add_argument(
        "--algorithms", nargs="+", choices=targets.ALGORITHMS, default=targets.ALGORITHMS
    )
    parser.add_argument("--backends", nargs="+", choices=targets.BACKENDS, default=targets.BACKENDS)
    parser.add_argument("--rounds", type=int, default=7, help="turns of every system")
    parser.add_argument("--steps", type=int, default=200, help="steps in a turn")
    parser.add_argument("--warm-up", type=int, default=200, help="learning steps before")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--quick", action="store_true", help="very little of everything: only shows that it works"
    )
    parser.add_argument("--name", help="of the files; by default the time")
    parser.add_argument("--output", type=Path, default=Path("results/speed"))
    options = parser.parse_args()
    options.name = options.name or f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H%M}"
    if options.quick:
        options.rounds, options.steps, options.warm_up = 1, 24, 24
    if options.steps % SIDE_BY_SIDE or options.warm_up % SIDE_BY_SIDE:
        parser.error("--steps and --warm-up must be multiples of 4: whole rounds of environments")
    options.versions = versions(parser, options.peers)
    return options


def versions(parser: argparse.ArgumentParser, peers: str) -> dict[str, str]:
    """Versions of the peers; ends with an error where they are not all there."""
    if not peers:
        return {}
    try:
        found = systems.peer_versions(peers)
    except (OSError, subprocess.SubprocessError) as error:
        parser.error(f"--peers {peers}: {error}")
    if missing := [name for name, version in found.items() if not version]:
        parser.error(f"--peers {peers} has no {', '.join(missing)}: pip install them there")
    return found


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Everything that was asked for."""
    if {"loop", "update"} & set(options.only):
        for env_id in options.tasks:
            for algorithm in options.algorithms:
                yield from turns(options, env_id, algorithm)
    if "costs" in options.only:
        sizes = costs.QUICK if options.quick else costs.Sizes()
        yield from costs.measure(
            sizes, options.backends, options.tasks, options.peers, options.threads
        )


def turns(options: argparse.Namespace, env_id: str, algorithm: str) -> Iterator[Row]:
    """One algorithm on one task: loops, updates and products of matrices in the same rounds."""
    with closing(Environment(env_id)) as env:
        sizes = roofline.Sizes(env.spec.obs_dim, env.spec.action_dim)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        jobs = {}
        for job, worker in begun(options, env_id, algorithm, sizes, folder):
            warm_up = options.warm_up + (STARTS if job.what == "loop" else 0)
            jobs[job] = Turns(stack.enter_context(worker), warm_up, options.steps)
        reports = take_turns(jobs, options.rounds)
    cell: dict[str, Any] = {"env_id": env_id, "algorithm": algorithm}
    for job, found in reports.items():
        rates = [options.steps / each["seconds"] for each in found]
        where = cell | job._asdict()
        if job.what == "products":
            yield from limits(found, algorithm, sizes, cell)
            continue
        yield Row(unit="1/s", values=rates, **where)
        if job.what == "loop":
            peak = found[-1]["peak_memory"]
            yield Row(unit="bytes", values=[peak], **where | {"what": "peak memory"})
        else:
            drawn = [1e6 * each["draw_seconds"] for each in found]
            yield Row(unit="us", values=drawn, **where | {"what": "drawing a batch and noise"})


def begun(
    options: argparse.Namespace,
    env_id: str,
    algorithm: str,
    sizes: roofline.Sizes,
    folder: str,
) -> Iterator[tuple[Job, Worker]]:
    """Starts what is measured."""
    paced: dict[str, Any] = {"threads": options.threads, "learning_starts": STARTS}
    if "loop" in options.only:
        beside = (1, SIDE_BY_SIDE) if env_id == options.tasks[0] else (1,)
        for num_envs in beside:
            for backend in options.backends:
                worker = systems.polyak_loop(
                    algorithm, backend, env_id, **paced, runs_dir=folder, num_envs=num_envs
                )
                yield Job("loop", backend, num_envs), worker
        for library in systems.PEERS if options.peers else ():
            worker = systems.peer_loop(library, algorithm, env_id, python=options.peers, **paced)
            yield Job("loop", library), worker
    if "update" in options.only:
        for backend in options.backends:
            worker = systems.update_alone(algorithm, backend, env_id, threads=options.threads)
            yield Job("update", backend), worker
        yield Job("products"), systems.matrix_products(algorithm, sizes, threads=options.threads)


def limits(
    reports: list[dict[str, float]], algorithm: str, sizes: roofline.Sizes, cell: dict[str, Any]
) -> Iterator[Row]:
    """What the measured products of matrices allow."""
    flop = roofline.flop(algorithm, sizes)
    rates = [each["best_rate"] for each in reports]
    alone = [1.0 / each["own_seconds"] for each in reports]
    yield Row("work of an update", "MFLOP", [flop / 1e6], **cell)
    yield Row("best rate of products", "GFLOP/s", [rate / 1e9 for rate in rates], **cell)
    yield Row("update limit", "1/s", [rate / flop for rate in rates], **cell)
    yield Row("update limit of single products", "1/s", alone, **cell)


def write(rows: Rows, options: argparse.Namespace, load: float, seconds: float) -> None:
    """The page, the record and the figure; prints the targets."""
    options.output.mkdir(parents=True, exist_ok=True)
    place = options.output / options.name
    context = runs.context()
    record = {
        "rows": rows.asdict(),
        "options": {
            k: getattr(options, k)
            for k in (
                "tasks",
                "algorithms",
                "backends",
                "rounds",
                "steps",
                "warm_up",
                "threads",
                "quick",
            )
        },
        "peers": options.versions,
        "load": {"before": load, "after": os.getloadavg()[0]},
        "minutes": round(seconds / 60, 1),
        **{k: context[k] for k in ("versions", "git", "machine", "processor", "cores", "started")},
    }
    figure, summary = f"{options.name}.png", targets.summary(rows)
    drawn = speed_figure.draw(rows, options.output / figure)
    runs.write_json(place.with_name(f"{options.name}.json"), record)
    text = page(rows, record, summary, figure if drawn else "")
    place.with_name(f"{options.name}.md").write_text(text, "utf-8")
    print(f"\n{summary}\n\n{place}.md")


if __name__ == "__main__":
    main()
