"""Actions: deterministic without noise, explored with it, each environment for itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.maths import reference
from tests.maths.cases import OBS, Case, constant_actor, draw_networks, only


def example(case: Case, rows: int = 5) -> tuple[reference.Weights, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    actor = draw_networks(case, 3).actor
    return actor, rng.normal(size=(rows, OBS)), rng.normal(size=(rows, 3))


def test_without_noise_it_is_the_policy_s_own_action(case: Case) -> None:
    actor, obs, noise = example(case)
    found = case.act(case.config(), actor, obs, 0.0 * noise)
    expected = [np.tanh(reference.forward(actor, row)[0][:3]) for row in obs]
    assert found.shape == (5, 3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    again = case.act(case.config(), actor, obs, 0.0 * noise)
    np.testing.assert_array_equal(found, again)


@only("ddpg", "td3")
@pytest.mark.parametrize("scale", [0.0, 0.1, 0.5])
def test_noise_is_scaled_and_the_sum_clipped(case: Case, scale: float) -> None:
    actor, obs, noise = example(case)
    found = case.act(case.config(exploration_noise=scale), actor, obs, 4.0 * noise)
    mean = np.array([reference.mu(actor, row) for row in obs])
    np.testing.assert_allclose(found, np.clip(mean + scale * 4.0 * noise, -1.0, 1.0), atol=1e-6)
    assert (np.abs(found).max() == 1.0) == (scale == 0.5)


@only("sac")
def test_noise_is_scaled_by_the_policy_s_own_spread(case: Case) -> None:
    actor, obs, noise = example(case)
    found = case.act(case.config(), actor, obs, noise)
    pairs = zip(obs, noise, strict=True)
    expected = [reference.sample(actor, row, draw)[0] for row, draw in pairs]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_extreme_policies_stay_in_the_box(case: Case) -> None:
    outputs = case.config().actor_outputs * 3
    noise = 10.0 * np.random.default_rng(0).normal(size=(5, 3))
    for size in (-1e6, 1e6):
        actor = constant_actor(np.full(outputs, size))
        found = case.act(case.config(), actor, np.zeros((5, OBS)), noise)
        assert np.abs(found).max() <= 1.0


def test_each_environment_has_its_own_noise(case: Case) -> None:
    actor, obs, noise = example(case)
    before = case.act(case.config(), actor, obs, noise)
    noise[2] += 0.5
    after = case.act(case.config(), actor, obs, noise)
    assert (before[2] != after[2]).all()
    np.testing.assert_array_equal(np.delete(before, 2, axis=0), np.delete(after, 2, axis=0))
    # The same observation and other noise: another action.
    same = case.act(case.config(), actor, obs[[0] * 5], noise)
    assert len(np.unique(same[:, 0])) == 5


def test_many_environments_act_as_each_would_alone(case: Case) -> None:
    actor, obs, noise = example(case)
    together = case.act(case.config(), actor, obs, noise)
    for i in range(5):
        alone = case.act(case.config(), actor, obs[i : i + 1], noise[i : i + 1])
        np.testing.assert_allclose(together[i : i + 1], alone, rtol=0, atol=1e-6)


def test_what_is_handed_in_stays_as_it_was(case: Case) -> None:
    actor, obs, noise = example(case)
    obs, noise = obs.astype(np.float32), noise.astype(np.float32)
    copies = obs.copy(), noise.copy()
    action = case.module.act(case.config(), case.actor(actor), obs, noise)
    np.testing.assert_array_equal(obs, copies[0])
    np.testing.assert_array_equal(noise, copies[1])
    assert not np.shares_memory(action, noise)
