"""The replay buffer against a list of tuples, its memory, its speed, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyak import memory, replay
from polyak.algorithms.interface import Batch
from polyak.environments import Environment, scale_action
from polyak.errors import PolyakError
from polyak.replay import Replay
from tests import toys
from tests.plumbing.running import polyak_cli, train

OBS, ACTION = 3, 2


class Naive:
    """Every transition of the run, one tuple each, and random episodes to fill a buffer with.

    The reward of a transition is its number, counted from 0, by which it is found again.
    """

    def __init__(self, capacity: int, num_envs: int, seed: int, longest: int = 10) -> None:
        self.generator = np.random.default_rng(seed)
        self.buffer = Replay(capacity, num_envs, OBS, ACTION)
        self.kept = capacity // num_envs * num_envs
        self.n, self.longest = num_envs, longest
        self.rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, bool]] = []
        self.obs = self._obs()
        self.left = self._lengths()

    def _obs(self) -> np.ndarray:
        return self.generator.standard_normal((self.n, OBS)).astype(np.float32)

    def _lengths(self) -> np.ndarray:
        return self.generator.integers(1, self.longest + 1, self.n)

    def step(self) -> None:
        action = self.generator.uniform(-1, 1, (self.n, ACTION)).astype(np.float32)
        next_obs = self._obs()
        self.left -= 1
        ended = self.left == 0
        # An end is a termination, a truncation, or both.
        kind = self.generator.integers(0, 3, self.n)
        terminated, truncated = ended & (kind != 1), ended & (kind != 0)
        following = np.where(ended[:, None], self._obs(), next_obs)
        self.left = np.where(ended, self._lengths(), self.left)
        numbers = np.arange(len(self.rows), len(self.rows) + self.n, dtype=np.float32)
        self.buffer.add(
            obs=self.obs,
            action=action,
            reward=numbers,
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
            following=following,
        )
        for i in range(self.n):
            self.rows.append((self.obs[i], action[i], next_obs[i], bool(terminated[i])))
        self.obs = following

    def check(self, batch: Batch) -> set[int]:
        """Compares every row of a batch; returns the numbers of its transitions."""
        assert all(array.dtype == np.float32 for array in batch)
        numbers = batch.reward.astype(int).tolist()
        obs, action, next_obs, terminated = zip(*(self.rows[k] for k in numbers), strict=True)
        np.testing.assert_array_equal(batch.obs, obs)
        np.testing.assert_array_equal(batch.action, action)
        np.testing.assert_array_equal(batch.next_obs, next_obs)
        np.testing.assert_array_equal(batch.terminated, terminated)
        return set(numbers)

    def check_all(self) -> None:
        """Every transition kept is sampled, and no other; each is what it was."""
        size = min(len(self.rows), self.kept)
        assert self.buffer.size == size
        # After 40 draws per transition, e^-40 is the chance to have missed a certain one.
        found = self.check(self.buffer.sample(self.generator, 40 * size))
        assert found == set(range(len(self.rows) - size, len(self.rows)))


@settings(max_examples=60)
@given(
    num_envs=st.sampled_from([1, 3]),
    capacity=st.integers(3, 40),
    longest=st.integers(1, 10),
    steps=st.integers(1, 130),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sampled_row_is_the_transition_that_happened(
    num_envs: int, capacity: int, longest: int, steps: int, seed: int
) -> None:
    naive = Naive(capacity, num_envs, seed, longest)
    for step in range(steps):
        naive.step()
        # Always at first and around the wraps; the middle is more of the same.
        if step < 3 or step == steps - 1 or (step + 1) % (capacity // num_envs) < 2:
            naive.check_all()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("longest", [1, 2, 10])
def test_nothing_is_mixed_up_after_fifty_wraps(num_envs: int, longest: int) -> None:
    naive = Naive(20, num_envs, seed=1, longest=longest)
    for step in range(50 * 20 // num_envs):
        naive.step()
        if step % 37 == 0:
            naive.check_all()
    naive.check_all()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_newest_transition_is_sampled_from_the_first_on(num_envs: int) -> None:
    naive = Naive(9, num_envs, seed=0)
    for step in range(30):
        naive.step()
        batch = naive.buffer.sample(naive.generator, 500)
        newest = set(range(step * num_envs, (step + 1) * num_envs))
        assert newest <= naive.check(batch)


def test_a_buffer_of_one_transition() -> None:
    naive = Naive(1, 1, seed=0)
    for _ in range(25):
        naive.step()
        naive.check_all()


def test_batches_are_copies() -> None:
    naive = Naive(6, 1, seed=0, longest=2)
    for _ in range(6):
        naive.step()
    batch = naive.buffer.sample(naive.generator, 64)
    for _ in range(12):
        naive.step()
    naive.check(batch)


@pytest.mark.parametrize(("capacity", "steps"), [(60, 10), (60, 20), (60, 55)])
def test_sampling_is_uniform(capacity: int, steps: int) -> None:
    """Before the ring is full, when it just is, and after it has wrapped."""
    naive = Naive(capacity, 3, seed=2)
    for _ in range(steps):
        naive.step()
    size = naive.buffer.size
    batch = naive.buffer.sample(np.random.default_rng(7), 400 * size)
    counts = np.bincount(batch.reward.astype(int) - (3 * steps - size), minlength=size)
    assert len(counts) == size
    assert stats.chisquare(counts).pvalue > 0.001
    # And successive draws are independent: pairs that repeat are as frequent as chance has them.
    repeats = int((batch.reward[1:] == batch.reward[:-1]).sum())
    assert stats.binomtest(repeats, 400 * size - 1, 1 / size).pvalue > 0.001


def test_a_capacity_below_the_number_of_environments_is_refused() -> None:
    with pytest.raises(PolyakError, match="--buffer-size 2 holds no step of 3 environments"):
        Replay(2, 3, OBS, ACTION)
    assert Replay(11, 3, OBS, ACTION).capacity == 9


# Memory

HUMANOID_OBS, HUMANOID_ACTION = 348, 17
BOTH = 4 * (2 * HUMANOID_OBS + HUMANOID_ACTION + 1) + 1
"""Bytes of a transition that holds obs and next_obs."""


def fill(buffer: Replay, steps: int, length: int, obs_dim: int, action_dim: int) -> None:
    """Steps whose episodes all truncate after `length`."""
    n = buffer.num_envs
    obs, action = np.zeros((n, obs_dim), np.float32), np.zeros((n, action_dim), np.float32)
    reward, no = np.zeros(n, np.float32), np.zeros(n, bool)
    for step in range(1, steps + 1):
        end = np.full(n, step % length == 0)
        buffer.add(obs, action, reward, obs, no, end, obs)


def test_humanoid_takes_about_half_of_storing_both_observations() -> None:
    buffer = Replay(10_000, 1, HUMANOID_OBS, HUMANOID_ACTION)
    assert buffer.nbytes <= 0.55 * 10_000 * BOTH
    # An untrained Humanoid falls after 20 to 25 steps; the ring goes round twice.
    fill(buffer, 20_000, 22, HUMANOID_OBS, HUMANOID_ACTION)
    assert buffer.nbytes <= 0.55 * 10_000 * BOTH


def test_bytes_needed_is_what_a_full_buffer_takes() -> None:
    buffer = Replay(10_000, 1, HUMANOID_OBS, HUMANOID_ACTION)
    fill(buffer, 10_000, 1000, HUMANOID_OBS, HUMANOID_ACTION)
    needed = replay.bytes_needed(10_000, HUMANOID_OBS, HUMANOID_ACTION)
    assert needed == pytest.approx(buffer.nbytes, rel=0.02)


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_observations_kept_aside_do_not_pile_up(length: int, num_envs: int) -> None:
    buffer = Replay(400, num_envs, 8, 2)
    fill(buffer, 3 * 400 // num_envs, length, 8, 2)
    early = buffer.nbytes
    fill(buffer, 30 * 400 // num_envs, length, 8, 2)
    assert buffer.nbytes == early
    # One observation for each end in the ring, a quarter to spare, and a few to begin with.
    ends = 400 / length + num_envs
    assert early <= Replay(400, num_envs, 8, 2).nbytes + 1.3 * 4 * 8 * ends


def test_a_short_run_in_a_large_buffer_stays_small() -> None:
    # In a process of its own: in one that has freed much, memory may be reused without growing.
    code = (
        "import numpy as np, psutil\n"
        "from tests.plumbing.test_replay import *\n"
        "before = psutil.Process().memory_info().rss\n"
        "buffer = Replay(1_000_000, 1, HUMANOID_OBS, HUMANOID_ACTION)\n"  # 1.5 GB when full
        "fill(buffer, 100, 10, HUMANOID_OBS, HUMANOID_ACTION)\n"
        "buffer.sample(np.random.default_rng(0), 256)\n"
        "print(psutil.Process().memory_info().rss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50e6


# Speed


def _full(rows: int) -> Replay:
    """A full buffer of `rows` thousand transitions, a tenth of which end an episode."""
    buffer = Replay(rows * 1000, 1000, OBS, ACTION)
    fill(buffer, rows + 1, 10, OBS, ACTION)
    assert buffer.size == rows * 1000
    return buffer


def _peak(buffer: Replay) -> int:
    """Bytes that sampling takes at most."""
    generator = np.random.default_rng(0)
    buffer.sample(generator, 256)
    tracemalloc.start()
    try:
        buffer.sample(generator, 256)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _seconds(buffer: Replay) -> float:
    """The best of many samplings, which other processes have not disturbed."""
    generator = np.random.default_rng(0)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        buffer.sample(generator, 256)
        times.append(time.perf_counter() - began)
    return min(times)


def test_sampling_does_not_depend_on_the_capacity() -> None:
    small, large = _full(1), _full(1000)
    assert _peak(large) <= _peak(small) + 2000  # the number of ended episodes differs by chance
    # A thousand times the rows: a pass over them, at one nanosecond each, would take a millisecond.
    # Memory that is not in the cache costs some.
    assert _seconds(large) < 8 * _seconds(small) + 1e-4


# Free memory


GIB = 2**30


def test_a_buffer_that_fits_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 8 * GIB)
    line = replay.check_memory(1_000_000, HUMANOID_OBS, HUMANOID_ACTION)
    assert "1,000,000 transitions" in line
    assert "1.47 GB" in line
    assert "\n" not in line


def test_a_buffer_that_does_not_fit_is_refused_with_the_number_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    with pytest.raises(PolyakError) as error:
        replay.check_memory(1_000_000, HUMANOID_OBS, HUMANOID_ACTION)
    message = str(error.value)
    assert "1,000,000 transitions needs 1.47 GB and 1.00 GB are free" in message
    assert "\n" not in message
    fits = int(message.rpartition("at most ")[2].rstrip(")"))
    replay.check_memory(fits, HUMANOID_OBS, HUMANOID_ACTION)
    with pytest.raises(PolyakError):
        replay.check_memory(fits + 1, HUMANOID_OBS, HUMANOID_ACTION)


def test_a_run_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(memory, "available", lambda: 10_000_000)
    answer = polyak_cli("train", "ddpg", "--env-id", "Pendulum-v1")
    assert "--buffer-size" in answer.line
    assert not list(here.iterdir())
    # The buffer is never longer than the run, so a short run in the same memory is fine.
    run = train(here, env_id="Pendulum-v1", buffer_size=1_000_000)
    assert run.status["state"] == "finished"


# Through the training loop


class Spy:
    """What went into the buffers of a run, and every batch that came out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.added: list[dict[str, np.ndarray]] = []
        self.batches: list[tuple[int, Batch]] = []
        """Each with the number of steps that had been added."""
        add, sample = Replay.add, Replay.sample

        def spy_add(buffer: Replay, **arrays: np.ndarray) -> None:
            self.added.append({name: array.copy() for name, array in arrays.items()})
            add(buffer, **arrays)

        def spy_sample(buffer: Replay, generator: np.random.Generator, size: int) -> Batch:
            batch = sample(buffer, generator, size)
            self.batches.append((len(self.added), Batch(*(array.copy() for array in batch))))
            return batch

        monkeypatch.setattr(Replay, "add", spy_add)
        monkeypatch.setattr(Replay, "sample", spy_sample)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("uneven", [False, True])
def test_batches_of_a_run_are_transitions_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_envs: int, uneven: bool
) -> None:
    spy = Spy(monkeypatch)
    env_id = toys.register("Counter", length=5, apart=True, uneven=uneven)
    options = {"env_id": env_id, "num_envs": num_envs, "buffer_size": 30, "total_timesteps": 150}
    train(tmp_path, "td3", **options)
    assert len(spy.batches) == 130
    newest = 0
    for steps, batch in spy.batches:
        episode, t = batch.obs.T
        np.testing.assert_array_equal(t, batch.reward)
        np.testing.assert_array_equal(batch.next_obs, batch.obs + np.array([0, 1]))
        assert t.min() >= 0
        assert t.max() < 5 + 2 * uneven
        assert not batch.terminated.any()  # a time limit is no end
        window = spy.added[max(0, steps - 30 // num_envs) : steps]
        rows = {tuple(row) for step in window for row in step["obs"].tolist()}
        assert rows >= {tuple(row) for row in batch.obs.tolist()}
        last = {tuple(row) for row in window[-1]["obs"].tolist()}
        newest += len(last & set(zip(episode.tolist(), t.tolist(), strict=True)))
    assert newest > 0  # the newest row takes part


@pytest.mark.parametrize(("toy", "share"), [("Const", 0.0), ("ConstTerm", 0.2), ("Both", 0.2)])
def test_only_terminations_reach_the_algorithm_as_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: str, share: float
) -> None:
    spy = Spy(monkeypatch)
    train(tmp_path, env_id=toys.register(toy, length=5), num_envs=3)
    seen = np.concatenate([batch.terminated for _, batch in spy.batches])
    assert len(seen) == 8 * len(spy.batches)
    assert seen.mean() == pytest.approx(share, abs=0.1)
    assert seen.any() == (share > 0)


@pytest.mark.parametrize("algorithm", ["ddpg", "sac"])
def test_stored_actions_are_those_played_in_the_same_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """Random ones of the warm-up and the policy's: both in [-1, 1] and scaled once."""
    spy = Spy(monkeypatch)
    played: list[np.ndarray] = []
    env_id = toys.register("One", log=played.append)
    train(tmp_path, algorithm, env_id=env_id)
    spec = Environment(env_id).spec
    stored = np.concatenate([step["action"] for step in spy.added])
    assert len(stored) == len(played) == 60
    assert np.abs(stored).max() <= 1.0
    np.testing.assert_array_equal(scale_action(stored, spec), played)
    # A step of the warm-up covers the box: the chance that 20 draws miss a third is 0.0003.
    for dimension in stored[:20].T:
        assert dimension.min() < -1 / 3
        assert dimension.max() > 1 / 3
