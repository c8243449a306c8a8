"""Is a GPU used well? Correctness first, then speed: replay on the device, captured updates, seeds.

    python benchmarks/gpu.py [--output results/gpu] [--algorithms td3 ...] [--backends torch ...]

Under ten minutes on one GPU: what is not done after `--minutes` is left out, and the page says so.
Writes NAME.md and NAME.json into the folder. Exit code 1 where something is missing or not correct,
2 where neither library sees a GPU. `--device cpu --quick` only shows that the script works.

Every part is a process of its own, so that no library's memory or capture meets another's. It tries
the ways in which batches and updates can be had (`WAYS`) one beside the other.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import targets
from speed_results import NAMES, Row, Rows, quotient, shown, table
from updates import filled

import polyak
from polyak import PolyakError, algorithms, runs, settings
from polyak.algorithms.interface import Draw, Place
from polyak.environments import Environment
from polyak.replay import Replay

SEEDS = "seeds"
"""The part that trains several seeds at once; the other parts are algorithms."""

STARTS, LOGGED = 500, 100
"""Random steps before a loop learns; steps between two rows of its metrics."""

SAME, OTHER = 1e-3, 5e-2
"""Largest difference of weights, as a share of their norm, between two ways on one device, and
between two devices: JAX multiplies in TF32 on some GPUs."""


class Way(NamedTuple):
    """How an update gets its batch, and how it is started."""

    name: str
    mirror: bool
    graph: bool


WAYS = {
    "torch": [
        Way("host batches, eager", mirror=False, graph=False),
        Way("host batches, graph", mirror=False, graph=True),
        Way("device replay, eager", mirror=True, graph=False),
        Way("device replay, graph", mirror=True, graph=True),
    ],
    "jax": [
        Way("host batches", mirror=False, graph=False),
        Way("device replay", mirror=True, graph=False),
    ],
}
"""The first is what a run falls back to, the last is what it does."""


class Found(NamedTuple):
    """What a part has measured."""

    rows: list[dict[str, Any]]
    """Arguments of `Row`."""
    checks: list[dict[str, Any]]
    """`what`, `backend`, `algorithm`, `difference`, `allowed` and `ok`."""


def main() -> None:
    options = parsed()
    if options.part:
        print(json.dumps(measured(options)))
        return
    began, deadline = time.monotonic(), time.monotonic() + 60 * options.minutes
    devices = {backend: asked(options, backend, "device", deadline) for backend in options.backends}
    seeing = [backend for backend, found in devices.items() if "problem" not in found]
    if not seeing:
        reasons = "; ".join(found["problem"] for found in devices.values())
        sys.stderr.write(f"no GPU to measure: {reasons}\n")
        sys.exit(2)
    rows, checks, problems = Rows(), [], []
    for part in [*options.algorithms, SEEDS]:
        for backend in seeing:
            found = asked(options, backend, part, deadline)
            if "problem" in found:
                problems.append(f"{NAMES[backend]}, {NAMES.get(part, part)}: {found['problem']}")
                print(problems[-1], flush=True)
                continue
            rows += [Row(**row) for row in found["rows"]]
            checks += found["checks"]
            wrong = sum(not check["ok"] for check in found["checks"])
            print(f"{NAMES[backend]}, {NAMES.get(part, part)}: measured, {wrong} wrong", flush=True)
    record = {
        "devices": devices,
        "checks": checks,
        "problems": problems,
        "rows": rows.asdict(),
        "options": {k: v for k, v in vars(options).items() if k not in ("part", "output", "name")},
        "minutes": round((time.monotonic() - began) / 60, 1),
        **{k: v for k, v in runs.context().items() if k != "command"},
    }
    options.output.mkdir(parents=True, exist_ok=True)
    runs.write_json(options.output / f"{options.name}.json", record)
    (options.output / f"{options.name}.md").write_text(page(rows, record), "utf-8")
    print(options.output / f"{options.name}.md")
    sys.exit(1 if problems or not all(check["ok"] for check in checks) else 0)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--algorithms", nargs="+", choices=targets.ALGORITHMS, default=targets.ALGORITHMS
    )
    parser.add_argument("--backends", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--task", default="Hopper-v5")
    parser.add_argument("--updates", type=int, default=100, help="that are compared")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every way")
    parser.add_argument("--turn", type=int, default=300, help="updates in a turn")
    parser.add_argument("--steps", type=int, default=1000, help="learning steps of a loop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 4, 16], help="at once")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="of the replay buffer")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="very little of everything")
    parser.add_argument("--output", type=Path, default=Path("results/gpu"))
    parser.add_argument("--name", help="of the files; by default the time")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.name = options.name or f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H%M}"
    if options.quick:
        options.updates, options.rounds, options.turn = 6, 1, 6
        options.steps, options.seeds, options.capacity = 2 * LOGGED, options.seeds[:1], 10_000
    return options


def asked(options: argparse.Namespace, backend: str, part: str, deadline: float) -> dict[str, Any]:
    """What a process of its own finds out about a part; or `problem`, in one line."""
    left = deadline - time.monotonic()
    if left <= 0:
        return {"problem": f"left out after {options.minutes} minutes"}
    command = [sys.executable, __file__, *sys.argv[1:], "--part", backend, part]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {options.minutes} minutes"}
    if done.returncode:
        return {"problem": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """A part, in its own process."""
    backend, part = options.part
    try:
        bench = Bench(options, backend)
    except PolyakError as error:
        return {"problem": str(error)}
    if part == "device":
        return {"device": bench.place.words}
    if part == SEEDS:
        return Found(list(bench.seeds()), [])._asdict()
    rows = list(bench.memory(part))
    checks = [*bench.differences(part), *bench.fallbacks(part)]
    return Found([*rows, *bench.updates(part), *bench.loops(part)], checks)._asdict()


class Bench:
    """One library on one device."""

    def __init__(self, options: argparse.Namespace, backend: str) -> None:
        self.options, self.backend = options, backend
        self.library = cast("Any", algorithms.load_backend(backend))
        self.place: Place = self.library.prepare(options.device, True, 1)
        self.ways = WAYS[backend]
        if options.device == "cpu":  # no graphs, but all the rest
            self.ways = [way for way in self.ways if not way.graph]
            kinds = "CAPTURING" if backend == "torch" else "MIRRORING"
            setattr(self.library, kinds, {"cpu"})
            self.library.free_memory = lambda device: 1 << 40
        with closing(Environment(options.task)) as env:
            self.sizes = (env.spec.obs_dim, env.spec.action_dim)

    @contextmanager
    def going(self, way: Way) -> Iterator[None]:
        """Lets everything inside go this way."""
        with ExitStack() as stack:
            if not way.mirror:
                never = mock.patch.object(self.library, "mirror", return_value=None)
                stack.enter_context(never)
            if not way.graph and self.backend == "torch":
                never = mock.patch.object(self.library, "_replayed", return_value=None)
                stack.enter_context(never)
            yield

    def differences(self, algorithm: str) -> Iterator[dict[str, Any]]:
        """Weights after the same updates: each way against the first one and against the CPU."""
        on_device = {way.name: self.learned(algorithm, way) for way in self.ways}
        first, *others = on_device
        for name in others:
            difference = distance(on_device[name], on_device[first])
            yield self.check(f"{name}, against {first}", algorithm, difference, SAME)
        place = self.library.prepare("cpu", True, 1)
        host = self.learned(algorithm, self.ways[0], place.device)
        for name, weights in on_device.items():
            yield self.check(f"{name}, against the CPU", algorithm, distance(weights, host), OTHER)

    def fallbacks(self, algorithm: str) -> Iterator[dict[str, Any]]:
        """Where memory or capture fails there is one warning, and the updates are right."""
        usual = self.learned(algorithm, self.ways[0])
        last = self.ways[-1]
        with mock.patch.object(self.library, "free_memory", return_value=0):
            weights, told = warned(lambda: self.learned(algorithm, last))
        difference = distance(weights, usual) if told == 1 else np.inf
        yield self.check("no memory for replay", algorithm, difference, SAME)
        if not last.graph:
            return
        update = algorithms.load(algorithm, self.backend).update

        def waiting(*arguments: Any) -> Any:
            state, metrics = update(*arguments)
            for value in metrics.values():
                float(value)  # waits for the device, which a capture does not allow
            return state, metrics

        weights, told = warned(lambda: self.learned(algorithm, last, update=waiting))
        difference = distance(weights, usual) if told == 1 else np.inf
        yield self.check("capture fails halfway", algorithm, difference, SAME)

    def learned(
        self, algorithm: str, way: Way, device: Any = None, update: Any = None
    ) -> dict[str, np.ndarray]:
        """All networks after some updates; everything else is always the same."""
        with self.going(way):
            learner = Learner(self, algorithm, device or self.place.device, update)
            learner.learn(self.options.updates)
            return learner.weights()

    def memory(self, algorithm: str) -> Iterator[dict[str, Any]]:
        """The most bytes of the GPU that one learner of the last way takes; to be called first."""
        with self.going(self.ways[-1]):
            Learner(self, algorithm, self.place.device).learn(50)
        if self.options.device == "cpu":
            return
        if self.backend == "torch":
            import torch

            peak = torch.cuda.max_memory_allocated()
        else:
            peak = (self.place.device.memory_stats() or {}).get("peak_bytes_in_use", 0)
        yield self.row(f"peak GPU memory, {self.ways[-1].name}", "bytes", [peak], algorithm)

    def check(self, what: str, algorithm: str, difference: float, allowed: float) -> dict[str, Any]:
        """A comparison, as it is recorded."""
        return {
            "what": what, "backend": self.backend, "algorithm": algorithm,
            "difference": min(float(difference), 1e9), "allowed": allowed,
            "ok": bool(difference <= allowed),
        }  # fmt: skip

    def updates(self, algorithm: str) -> Iterator[dict[str, Any]]:
        """Updates per second, batch and noise included, all ways in turns."""
        learners = {}
        for way in self.ways:
            with self.going(way):
                learners[way] = Learner(self, algorithm, self.place.device)
                learners[way].learn(50)  # every way in which parts can be due, and more
        rates: dict[Way, list[float]] = {way: [] for way in learners}
        for number in range(self.options.rounds):
            for way in self.ways[:: -1 if number % 2 else 1]:
                with self.going(way):
                    began = time.perf_counter()
                    learners[way].learn(self.options.turn)
                    rates[way].append(self.options.turn / (time.perf_counter() - began))
        for way, values in rates.items():
            yield self.row(f"updates, {way.name}", "1/s", values, algorithm)

    def loops(self, algorithm: str) -> Iterator[dict[str, Any]]:
        """Environment steps per second of a whole run each way."""
        for way in self.ways:
            with self.going(way), tempfile.TemporaryDirectory() as folder:
                run = polyak.train(algorithm, **self.run_options(folder))
                yield self.row(f"steps, {way.name}", "1/s", speeds(run), algorithm)

    def seeds(self) -> Iterator[dict[str, Any]]:
        """Environment steps per second of several seeds of TD3 together, stacked."""
        for count in self.options.seeds:
            with self.going(self.ways[-1]), tempfile.TemporaryDirectory() as folder:
                found = polyak.train_seeds("td3", count, **self.run_options(folder))
                for outcome in found.values():
                    if isinstance(outcome, BaseException):
                        raise outcome
                    values = [count * speed for speed in speeds(outcome)]
            yield self.row(f"steps, {count} seeds", "1/s", values, "td3")

    def run_options(self, folder: str) -> dict[str, Any]:
        """Settings of a run whose loop is measured."""
        return {
            "env_id": self.options.task, "backend": self.backend, "device": self.options.device,
            "total_timesteps": STARTS + self.options.steps, "learning_starts": STARTS,
            "log_interval": LOGGED, "eval_interval": 0, "checkpoint_interval": 0, "threads": 1,
            "runs_dir": folder,
        }  # fmt: skip

    def row(self, what: str, unit: str, values: list[float], algorithm: str) -> dict[str, Any]:
        """A measurement, as it is recorded."""
        where = {"env_id": self.options.task, "algorithm": algorithm, "system": self.backend}
        return {"what": what, "unit": unit, "values": values, **where}


class Learner:
    """Updates with random transitions, as a loop makes them."""

    def __init__(self, bench: Bench, algorithm: str, device: Any, update: Any = None) -> None:
        options = {"env_id": bench.options.task}
        self.module = algorithms.load(algorithm, bench.backend)
        self.library, self.sizes = bench.library, bench.sizes
        self.update = update or self.module.update
        self.config = settings.setup(algorithm, options).config
        self.generator = np.random.default_rng(1)
        mirror = functools.partial(self.library.mirror, device)
        self.replay: Replay = filled(
            *self.sizes, self.generator, bench.options.capacity, mirror=mirror
        )
        self.state = self.module.init(self.config, *self.sizes, self.generator, device)

    def learn(self, count: int) -> None:
        """Makes updates, and waits for the last."""
        shape = (self.config.noises_per_update, self.config.batch_size, self.sizes[1])
        for _ in range(count):
            batch = self.replay.draw(self.generator, self.config.batch_size)
            draw = Draw(batch, self.generator.standard_normal(shape, dtype=np.float32))
            self.state, _ = self.library.learn(self.update, self.config, self.state, [draw])
        obs, noise = (np.zeros((1, size), np.float32) for size in self.sizes)
        self.module.act(self.config, self.state.actor, obs, noise)

    def weights(self) -> dict[str, np.ndarray]:
        """All networks."""
        return {
            name: array
            for name, array in self.library.snapshot(self.state).items()
            if name != "updates" and "_optimizer." not in name
        }


def warned(work: Callable[[], dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], int]:
    """What the work gives, and how often it said that it became slower."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = work()
    return result, sum("which is slower" in str(warning.message) for warning in told)


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of two arrays of a name, as a share of their norm."""
    shares = [
        np.linalg.norm(one[name] - array) / np.maximum(np.linalg.norm(array), 1e-6)
        for name, array in other.items()
    ]
    return float(np.max(shares))


def speeds(run: polyak.Run) -> list[float]:
    """Steps per second between rows of metrics, from the second one of learning on."""
    begin = STARTS + LOGGED
    return [
        row["charts/SPS"] for row in run.metrics() if row["step"] > begin and "charts/SPS" in row
    ]


def page(rows: Rows, record: dict[str, Any]) -> str:
    """What was found, as Markdown."""
    options, minutes = record["options"], record["minutes"]
    devices = "; ".join(
        f"{NAMES[backend]}: {found.get('device') or found['problem']}"
        for backend, found in record["devices"].items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    commit = record["git"].get("commit", "")[:10] or "unknown"
    context = (
        f"{devices}.\n{record['processor']}, {record['cores']} cores; {minutes} minutes; "
        f"commit {commit}, {record['started']}; {versions}."
    )
    parts = ["# On a GPU", context]
    if options["quick"] or options["device"] == "cpu":
        parts.append("**A trial of the script, which says nothing about a GPU.**")
    parts += [f"Missing: {problem}." for problem in record["problems"]]
    parts += ["## Correct", correct(record["checks"], options["updates"]), "## Fast", fast(rows)]
    return "\n\n".join(parts) + "\n"


def correct(checks: list[dict[str, Any]], updates: int) -> str:
    """The table of comparisons."""
    head = ["library", "algorithm", f"after {updates} updates", "difference", "allowed", ""]
    lines = []
    for check in checks:
        names = [NAMES[check["backend"]], NAMES[check["algorithm"]], check["what"]]
        verdict = "ok" if check["ok"] else "WRONG"
        lines.append([*names, f"{check['difference']:.1e}", f"{check['allowed']:.0e}", verdict])
    return table(head, lines)


def fast(rows: Rows) -> str:
    """The table of measurements, and ratios to the first way of the same library."""
    head = ["library", "algorithm", "", "", "median", "against the first way"]
    lines = []
    for row in rows:
        what, _, way = row.what.partition(", ")
        where = {"env_id": row.env_id, "algorithm": row.algorithm, "system": row.system}
        first = rows.median(f"{what}, {WAYS[row.system][0].name}", **where)
        ratio = quotient(row.median, first)
        amount = f"{row.median / 1e6:.0f} MB" if row.unit == "bytes" else f"{row.median:.0f} /s"
        names = [NAMES[row.system], NAMES[row.algorithm], what, way]
        lines.append([*names, amount, shown(ratio, ".2f")])
    return table(head, lines)


if __name__ == "__main__":
    main()
