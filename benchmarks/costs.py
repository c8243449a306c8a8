"""What a run costs besides its steady loop: start-up, memory, logging, evaluation, checkpoints.

Start-up is the time from starting the process to the first environment step, and to the end of the
first update, which comes after the second step here and whose losses are logged at once. It has no
evaluation in it.

Shares of the loop come from one run of TD3 on HalfCheetah-v5, whose episodes all have 1,000 steps,
at the intervals of the defaults: 10 episodes of evaluation and a checkpoint every 10,000 steps, a
row of metrics every 100. What each of them takes is added up inside of that run and divided by its
time.
"""

from __future__ import annotations

import functools
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple
from unittest import mock

import checkpoints
import memory
import systems
from pacing import Worker
from speed_results import Row
from targets import REPLAY

import polyak
from polyak.checkpoint import Checkpoints
from polyak.environments import Environment
from polyak.replay import bytes_needed
from polyak.review import Review
from polyak.tracking import Tracker

START_TASK, SHARES_TASK = "Hopper-v5", "HalfCheetah-v5"


class Sizes(NamedTuple):
    """How much is measured."""

    starts: int = 3
    """Processes of each kind whose start-up is measured."""
    rows: int = 1_000_000
    """Transitions in the replay buffer whose memory is measured."""
    steps: int = 10_000
    """Learning steps whose parts are timed: as many as between two evaluations."""


QUICK = Sizes(starts=1, rows=2_000, steps=200)


def measure(
    sizes: Sizes, backends: Sequence[str], tasks: Sequence[str], peers: str, threads: int
) -> Iterator[Row]:
    """All of it.

    Args:
        sizes: how much.
        backends: torch and jax, or one of them.
        tasks: whose transitions are counted in bytes.
        peers: a Python that has the peers, or nothing.
        threads: of the processor.
    """
    yield Row("help", "s", [_help() for _ in range(sizes.starts)])
    yield from start_ups(sizes.starts, backends, peers, threads)
    for env_id in tasks:
        with closing(Environment(env_id)) as env:
            needed = bytes_needed(1, env.spec.obs_dim, env.spec.action_dim)
        yield Row("memory of a transition", "bytes", [needed], env_id)
    filled = _apart(memory.once, sizes.rows)["array_bytes"]
    yield Row(REPLAY, "bytes", [filled / sizes.rows * 1e6], memory.ENV_ID)
    for backend in backends:
        for part, share in _apart(shares, backend, sizes.steps, threads).items():
            name = f"{part}, share of the loop"
            yield Row(name, "", [share], SHARES_TASK, "td3", backend)


def start_ups(starts: int, backends: Sequence[str], peers: str, threads: int) -> Iterator[Row]:
    """Start-up of every system, in turns; of JAX with an empty and with a filled cache."""
    times: dict[str, list[tuple[float, float]]] = {}
    paced: dict[str, Any] = {"threads": threads, "learning_starts": 1}
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            cache = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
            begin = functools.partial(
                systems.polyak_loop, "td3", env_id=START_TASK, **paced, runs_dir=folder,
                variables=cache, log_interval=1,
            )  # fmt: skip
            programs: dict[str, Callable[[], Worker]] = {}
            if "torch" in backends:
                programs["torch"] = functools.partial(begin, backend="torch")
            if "jax" in backends:  # the first fills the cache for the second
                programs["jax, cold cache"] = functools.partial(begin, backend="jax")
                programs["jax, warm cache"] = functools.partial(begin, backend="jax")
            for library in systems.PEERS if peers else ():
                programs[library] = functools.partial(
                    systems.peer_loop, library, "td3", START_TASK, python=peers, **paced
                )
            for name, program in programs.items():
                times.setdefault(name, []).append(_start_up(program))
    for system, pairs in times.items():
        for index, what in enumerate(("first environment step", "first update")):
            yield Row(what, "s", [pair[index] for pair in pairs], START_TASK, "td3", system)


def shares(
    backend: str, steps: int, threads: int, env_id: str = SHARES_TASK, warm_up: int = 1_000
) -> dict[str, float]:
    """Shares of the loop of logging, evaluation, checkpoints and guards over some steps of TD3.

    There is one evaluation and one checkpoint in them, whole episodes of `env_id` long.
    """
    watch = Stopwatch(backend)
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=".") as folder:  # on the runs' disk
        for owner, method, part, settle in (
            (Tracker, "training", "logging", True),
            (Tracker, "episodes", "logging", False),
            (Tracker, "advance", "logging", False),
            (Review, "__call__", "evaluation", True),
            (Checkpoints, "save", "checkpoints", True),
        ):
            timed = watch.timed(getattr(owner, method), part, settle=settle)
            stack.enter_context(mock.patch.object(owner, method, timed))
        polyak.train(
            "td3",
            backend=backend,
            env_id=env_id,
            threads=threads,
            device="cpu",
            learning_starts=warm_up,
            total_timesteps=warm_up + 100 + steps,  # a row of metrics, then the steps that count
            eval_interval=steps,
            eval_episodes=max(steps // 1_000, 1),  # 10 every 10,000 steps
            checkpoint_interval=steps,
            runs_dir=folder,
        )
    begin, end = watch.rows[-1 - steps // 100], watch.rows[-1]
    whole = end.pop("time") - begin.pop("time")
    parts = {part: (end[part] - begin[part]) / whole for part in end}
    return parts | {"guards": checkpoints.guards() * steps / whole}


class Stopwatch:
    """Adds up the time that some methods take."""

    def __init__(self, backend: str) -> None:
        self.seconds: dict[str, float] = {"logging": 0.0, "evaluation": 0.0, "checkpoints": 0.0}
        self.rows: list[dict[str, float]] = []
        """Sums and time when each row of training metrics was about to be written."""
        self._settle: Callable[[Any], Any] = lambda _: None
        if backend == "jax":
            import jax

            self._settle = jax.block_until_ready

    def timed(self, method: Callable[..., Any], part: str, *, settle: bool) -> Callable[..., Any]:
        """The method, timed.

        `settle`: after waiting for the update that JAX still computes, which is no part of it.
        """

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if settle:
                self._settle(args)
            began = time.perf_counter()
            if method.__name__ == "training":
                self.rows.append(self.seconds | {"time": began})
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - began

        return call


def _help() -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "polyak", "--help"]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def _start_up(program: Callable[[], Worker]) -> tuple[float, float]:
    """Seconds to the first step, and past the first update: where the third step begins."""
    began = time.perf_counter()
    with program() as worker:
        worker.read()
        first_step = time.perf_counter() - began
        worker.work(2)
        return first_step, time.perf_counter() - began


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function that a fresh process calls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(function, arguments)
        pool.close()
        pool.join()  # it ends by itself, and so removes what libraries share between processes
    return result
