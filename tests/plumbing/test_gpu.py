"""What runs on a GPU, on the processor: the copy of replay, and updates as CUDA graphs.

A stand-in takes the place of `torch.cuda`. That real graphs compute the same, and how fast, is
measured by `benchmarks/gpu.py` where there is a GPU.
"""

from __future__ import annotations

import copy
import functools
import gc
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polyak
from polyak import algorithms, replay
from polyak.algorithms import common_capture_torch, common_jax, common_torch
from polyak.algorithms.configs import CONFIGS, Config
from polyak.algorithms.interface import Batch, Draw, Slots
from polyak.lockstep import Lockstep
from polyak.replay import Replay
from tests import toys
from tests.cuda_standin import Cuda
from tests.plumbing import running
from tests.plumbing.test_replay import ACTION, OBS, Naive

every_backend = pytest.mark.parametrize("backend", ["torch", "jax"])


def as_on_a_gpu(patch: pytest.MonkeyPatch, free: int = 1 << 40, *, failing: bool = False) -> Cuda:
    """Lets both libraries take the processor for a GPU."""
    cuda = Cuda(failing=failing)
    patch.setattr(common_capture_torch, "cuda", cuda)
    patch.setattr(common_torch, "CAPTURING", {"cpu"})
    patch.setattr(common_jax, "MIRRORING", {"cpu"})
    for library in (common_torch, common_jax):
        patch.setattr(library, "free_memory", lambda device: free)
    return cuda


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return as_on_a_gpu(monkeypatch)


class Nothing(NamedTuple):
    """A state in which only the updates are counted."""

    actor: Any
    updates: int | None
    device: Any


def take_apart(config: Any, state: Any, batch: Batch, noise: Any) -> tuple[Any, dict[str, Any]]:
    """An update that only hands out what it was given."""
    return state, batch._asdict()


def picked(backend: str, slots: Slots | Batch, count: int = 1) -> Batch:
    """What an update finds in these slots."""
    assert isinstance(slots, Slots)
    if backend == "torch":
        batch = slots.mirror.pick(torch.from_numpy(slots.slots))
        return Batch(*(field.numpy() for field in batch))
    update = common_jax.compiled(take_apart)
    nothing = np.zeros((0, 1, ACTION), np.float32)
    draws = [Draw(slots, nothing)] * count
    _, found = common_jax.learn(update, Config(), Nothing((), 0, None), draws)
    return Batch(**{name: np.asarray(field) for name, field in found.items()})


def compare(backend: str, buffer: Replay, generator: np.random.Generator) -> Batch:
    """Draws the same batch from both; returns it."""
    twin = copy.deepcopy(generator)
    host, device = buffer.sample(generator, 64), picked(backend, buffer.draw(twin, 64))
    assert generator.bit_generator.state == twin.bit_generator.state
    for name, one, other in zip(Batch._fields, host, device, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_array_equal(one, other, err_msg=name)
    return host


def mirrored(backend: str, capacity: int, num_envs: int) -> Replay:
    library = algorithms.load_backend(backend)
    device = library.prepare("cpu", True, 1).device
    return Replay(capacity, num_envs, OBS, ACTION, functools.partial(library.mirror, device))


# The copy of replay


@every_backend
@settings(max_examples=25)
@given(
    num_envs=st.sampled_from([1, 3]),
    capacity=st.sampled_from([3, 17, 90]),
    longest=st.integers(1, 10),
    steps=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_device_picks_what_the_host_samples(
    backend: str, num_envs: int, capacity: int, longest: int, steps: int, seed: int
) -> None:
    """At ends of both kinds, past the wrap, and while more and more is kept aside."""
    with pytest.MonkeyPatch.context() as patch:
        as_on_a_gpu(patch)
        naive = Naive(capacity, num_envs, seed, longest)
        naive.buffer = mirrored(backend, capacity, num_envs)
        for step in range(steps):
            naive.step()
            if step < 3 or step == steps - 1 or step % 37 == 0:
                naive.check(compare(backend, naive.buffer, naive.generator))


@every_backend
@pytest.mark.parametrize("steps", [9, 40])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_copy_follows_restore_and_cut(
    backend: str, steps: int, num_envs: int, gpu: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the ring is full and after; copied in several parts."""
    monkeypatch.setattr(replay, "PART", 7)
    naive = Naive(20 * num_envs, num_envs, seed=3)
    for _ in range(steps):
        naive.step()
    buffer, rows = mirrored(backend, 20 * num_envs, num_envs), naive.buffer.rows
    parts = [(naive.buffer.oldest, naive.buffer.read(naive.buffer.oldest, rows))]
    buffer.restore(rows, naive.buffer.newest, parts)
    compare(backend, buffer, naive.generator)
    naive.buffer = buffer
    begun = naive._obs()
    for env in range(num_envs):
        buffer.cut(env, begun[env])
    naive.obs = begun
    naive.check(compare(backend, buffer, naive.generator))
    for _ in range(30):
        naive.step()
        naive.check(compare(backend, buffer, naive.generator))


def test_one_program_picks_the_batches_of_several_updates(gpu: Cuda) -> None:
    buffer = mirrored("jax", 50, 1)
    naive = Naive(50, 1, seed=1)
    naive.buffer = buffer
    for _ in range(20):
        naive.step()
    slots = buffer.draw(naive.generator, 8)
    naive.check(picked("jax", slots, count=7))  # of which six are a loop in the program


@every_backend
def test_on_a_processor_there_is_no_copy(backend: str) -> None:
    assert isinstance(mirrored_and_filled(backend).draw(np.random.default_rng(0), 4), Batch)


def mirrored_and_filled(backend: str) -> Replay:
    naive = Naive(9, 1, seed=0)
    naive.buffer = mirrored(backend, 9, 1)
    naive.step()
    return naive.buffer


@every_backend
def test_a_copy_that_does_not_fit_is_a_warning(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 4 * 10 * (2 * OBS + ACTION + 2)
    as_on_a_gpu(monkeypatch, free=int(needed / 0.9))
    words = (
        r"^batches come from the host, which is slower: a copy of replay on the GPU needs 0\.00 GB"
    )
    with pytest.warns(UserWarning, match=words + r", of which 0\.00 are free$"):
        assert isinstance(mirrored_and_filled(backend).draw(np.random.default_rng(0), 4), Batch)
    as_on_a_gpu(monkeypatch, free=int(needed / 0.9) + 1)
    assert isinstance(mirrored_and_filled(backend).draw(np.random.default_rng(0), 4), Slots)

    def full(*_: Any) -> None:
        raise RuntimeError("out of memory\nat great length")

    monkeypatch.setattr(algorithms.load_backend(backend), "Mirror", full)
    with pytest.warns(UserWarning, match=words + ": out of memory$"):
        assert isinstance(mirrored_and_filled(backend).draw(np.random.default_rng(0), 4), Batch)


# Runs


def record(run: polyak.Run) -> list[dict[str, Any]]:
    """What a run recorded, without what differs between two runs of one seed."""
    return [
        {name: value for name, value in row.items() if name != "time" and "SPS" not in name}
        for row in run.metrics()
    ]


@pytest.mark.parametrize(
    ("algorithm", "backend", "num_envs"),
    [(name, "torch", count) for name in CONFIGS for count in (1, 3)]
    + [("ddpg", "jax", 1), ("sac", "jax", 1), ("td3", "jax", 3)],
)
def test_a_run_is_what_it_is_on_the_processor(
    algorithm: str, backend: str, num_envs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id = toys.register("Counter", length=5, apart=True)
    options = {"env_id": env_id, "backend": backend, "num_envs": num_envs, "buffer_size": 30}
    usual = running.train(tmp_path, algorithm, **options)
    cuda = as_on_a_gpu(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "sample", None)  # no batch comes from the host
        run = running.train(tmp_path, algorithm, **options)
    assert running.weights(run) == running.weights(usual)
    assert record(run) == record(usual)
    if backend == "torch":
        assert len(cuda.graphs) == 2
        assert sum(graph.replays for graph in cuda.graphs) == 40


@every_backend
def test_a_run_goes_on_bit_for_bit(backend: str, gpu: Cuda, tmp_path: Path) -> None:
    options = {"backend": backend, "buffer_size": 30}
    whole = running.train(tmp_path / "whole", "sac", **options)
    cut = running.stopped(tmp_path / "cut", 44, "sac", **options)
    resumed = polyak.train(resume=cut, trust_env=True)
    assert running.weights(resumed) == running.weights(whole)


def test_stacked_runs_are_graphs_of_batches_from_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = Lockstep.__init__

    def always(self: Lockstep, algorithm: Any, backend: Any, *, stacked: bool) -> None:
        init(self, algorithm, backend, stacked=True)

    monkeypatch.setattr(Lockstep, "__init__", always)

    def trained(folder: Path) -> list[bytes]:
        options = running.SMALL | {"backend": "torch", "runs_dir": str(folder)}
        runs = polyak.train_seeds("td3", 2, **options)
        return [running.weights(run) for run in runs.values() if isinstance(run, polyak.Run)]

    usual = trained(tmp_path / "usual")
    cuda = as_on_a_gpu(monkeypatch)
    assert trained(tmp_path / "gpu") == usual
    assert len(usual) == 2
    assert sum(graph.replays for graph in cuda.graphs) == 40  # for both at once


# Graphs


def drawn(config: Config, generator: np.random.Generator) -> Draw:
    shapes = ((4, OBS), (4, ACTION), (4,), (4, OBS), (4,))
    batch = Batch(*(generator.standard_normal(shape, dtype=np.float32) for shape in shapes))
    noise = (config.noises_per_update, 4, ACTION)
    return Draw(batch, generator.standard_normal(noise, dtype=np.float32))


class Learner:
    """Updates of an algorithm with data of a seed."""

    def __init__(self, algorithm: str, **options: Any) -> None:
        self.config = CONFIGS[algorithm](hidden_dim=8, batch_size=4, **options)
        self.module = algorithms.load(algorithm, "torch")
        self.update: Any = self.module.update
        self.generator = np.random.default_rng(0)
        device = torch.device("cpu")
        self.state: Any = self.module.init(self.config, OBS, ACTION, self.generator, device)

    def learn(self, updates: int) -> dict[str, float]:
        """Metrics over all these updates."""
        found: dict[str, Any] = {}
        for _ in range(updates):
            draw = drawn(self.config, self.generator)
            self.state, new = common_torch.learn(self.update, self.config, self.state, [draw])
            found |= new
        return {name: float(value) for name, value in found.items()}

    def weights(self) -> dict[str, bytes]:
        """Everything that learns, bit by bit."""
        found = common_torch.snapshot(self.state)
        return {name: array.tobytes() for name, array in found.items()}


def test_there_is_a_graph_for_each_way_in_which_parts_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays = {"policy_frequency": 3, "target_network_frequency": 2}
    usual = Learner("sac", **delays)
    expected = [usual.learn(count) for count in (1, 4, 8)]
    cuda = as_on_a_gpu(monkeypatch)
    learner = Learner("sac", **delays)
    assert [learner.learn(count) for count in (1, 4, 8)] == expected
    assert learner.state.updates == 13
    assert learner.weights() == usual.weights()
    # Neither, targets, actor, both: in this order.
    assert [graph.replays for graph in cuda.graphs] == [5, 4, 2, 2]


def test_capturing_changes_nothing_that_learns(gpu: Cuda) -> None:
    learner = Learner("td3", policy_frequency=1)
    learner.learn(5)
    before, draw = learner.weights(), drawn(learner.config, np.random.default_rng(1))
    inputs = [torch.from_numpy(array) for array in (*draw.batch, draw.noise)]
    done = learner.state.updates

    def work() -> dict[str, torch.Tensor]:
        learner.state.updates = done
        return learner.update(learner.config, learner.state, Batch(*inputs[:-1]), inputs[-1])[1]

    common_capture_torch.Captured(work, inputs, common_torch._learned(learner.state))
    learner.state.updates = done
    assert learner.weights() == before
    work()
    learned = {name for name, value in learner.weights().items() if value != before[name]}
    assert learned == before.keys()  # all of it would have been changed


def test_a_state_that_is_restored_keeps_its_graphs(gpu: Cuda) -> None:
    learner = Learner("ddpg")
    learner.learn(4)
    saved, generator = common_torch.snapshot(learner.state), copy.deepcopy(learner.generator)
    learner.learn(5)
    once = learner.weights()
    learner.state = common_torch.restore(learner.state, saved)
    learner.generator = generator
    learner.learn(5)
    assert learner.weights() == once
    assert len(gpu.graphs) == 2


def test_graphs_end_with_the_state(gpu: Cuda) -> None:
    before = len(common_torch._graphs)
    learner = Learner("sac")
    learner.learn(3)
    assert len(common_torch._graphs) == before + 1
    del learner
    gc.collect()
    assert len(common_torch._graphs) == before


def test_updates_that_cannot_be_captured_are_made_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Learner("td3")
    expected = usual.learn(7)
    as_on_a_gpu(monkeypatch, failing=True)
    learner = Learner("td3")
    words = "^updates start their operations one by one, which is slower: no graphs here$"
    with pytest.warns(UserWarning, match=words) as told:
        assert learner.learn(7) == expected
    assert len(told) == 1
    assert learner.weights() == usual.weights()


def test_an_update_that_waits_for_the_device_is_not_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found while it is captured, when the warm-up and half of the work are done."""
    usual = Learner("sac")
    usual.learn(7)
    as_on_a_gpu(monkeypatch)
    learner = Learner("sac")

    def waiting(*arguments: Any) -> Any:
        state, metrics = usual.update(*arguments)
        return state, metrics if float(metrics["losses/qf_loss"]) else {}

    learner.update = waiting
    with pytest.warns(UserWarning, match="one by one.*not permitted when stream is capturing$"):
        learner.learn(7)
    assert learner.weights() == usual.weights()


def test_a_run_that_falls_back_says_so_once_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = running.train(tmp_path, "td3")
    as_on_a_gpu(monkeypatch, free=0, failing=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = running.train(tmp_path, "td3")
    assert [str(each.message).split(",")[0] for each in told] == [
        "batches come from the host",
        "updates start their operations one by one",
    ]
    assert running.weights(run) == running.weights(usual)


# The benchmark

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def test_the_benchmark_works_without_a_gpu(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARK),
        "--device",
        "cpu",
        "--quick",
        "--output",
        str(tmp_path),
    ]
    command += ["--backends", "torch", "--algorithms", "td3", "--name", "smoke"]
    command += ["--task", "InvertedPendulum-v5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "smoke.json").read_text("utf-8"))
    assert {check["what"] for check in found["checks"]} == {
        "device replay, eager, against host batches, eager",
        "host batches, eager, against the CPU",
        "device replay, eager, against the CPU",
        "no memory for replay",
    }
    assert all(check["difference"] == 0.0 for check in found["checks"])
    measured = {row["what"]: min(row["values"]) for row in found["rows"]}
    assert len(measured) == 5  # updates and steps of both ways, steps of seeds
    assert min(measured.values()) > 0.0
    assert "says nothing about a GPU" in (tmp_path / "smoke.md").read_text("utf-8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_needs_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--backends", "torch", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("no GPU to measure: --device cuda: PyTorch")
    assert not list(tmp_path.iterdir())
