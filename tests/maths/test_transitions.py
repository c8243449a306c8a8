"""Every transition that is learned from is one that happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyak.algorithms import load_backend
from polyak.environments import TRAINING, seeds_for
from tests import toys
from tests.maths.cases import Case, train

LENGTH = 4


def places(seed: int, steps: int) -> list[tuple[int, int]]:
    """Episode and step of each step of a `Counter` that is `apart` and `uneven`."""
    found: list[tuple[int, int]] = []
    episode = 0
    while len(found) < steps:
        found += [(toys.Counter.start(seed) + episode, t) for t in range(LENGTH + episode % 3)]
        episode += 1
    return found[:steps]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("buffer_size", [20, 1000])
def test_replayed_transitions(
    case: Case, num_envs: int, buffer_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, total, starts = 3, 90, 6
    actions: list[np.ndarray] = []
    batches: list[tuple[int, Any]] = []
    backend: Any = load_backend(case.backend)
    learn = backend.learn

    def watched(update: Any, config: Any, state: Any, draws: Any) -> Any:
        for batch, _ in draws:
            batches.append((len(actions), type(batch)(*(np.copy(array) for array in batch))))
        return learn(update, config, state, draws)

    monkeypatch.setattr(backend, "learn", watched)
    env_id = toys.register("Counter", length=LENGTH, apart=True, uneven=True, log=actions.append)
    settings = {"total_timesteps": total, "learning_starts": starts, "buffer_size": buffer_size}
    train(case, env_id, tmp_path, num_envs=num_envs, seed=seed, batch_size=16, **settings)

    # When each transition happened, counted in steps of all environments together from 0.
    happened = {}
    for index, env_seed in enumerate(seeds_for(seed, TRAINING, num_envs)):
        for round_, place in enumerate(places(env_seed, total // num_envs)):
            happened[place] = round_ * num_envs + index
    assert len(actions) == len(happened) == total
    capacity = buffer_size // num_envs * num_envs

    ages = set()
    assert len(batches) == total - starts
    for now, batch in batches:
        for obs, action, reward, next_obs, terminated in zip(*batch, strict=True):
            episode, t = obs.astype(int)
            when = happened[int(episode), int(t)]
            assert now - capacity <= when < now
            np.testing.assert_array_equal(action, actions[when])
            assert reward == t
            np.testing.assert_array_equal(next_obs, [episode, t + 1])
            assert terminated == 0.0
            ages.add(now - when)
    # The newest and the oldest transition take part.
    assert min(ages) == 1
    if buffer_size < total:
        assert max(ages) == capacity
