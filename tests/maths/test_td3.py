"""TD3's smoothed target policy, seen through a critic that answers with the action it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from polyak.algorithms.interface import Batch
from tests.maths.cases import Case, constant_actor, draw_networks, only, reading_critic

pytestmark = only("td3")


def next_actions(
    case: Case, noise: np.ndarray, mean: float | np.ndarray = 0.0, **settings: float
) -> np.ndarray:
    """The target actions (B, A) of a target policy that always plays `mean`."""
    size, action_dim = noise.shape
    nets = draw_networks(case, action_dim)
    nets.target_actor = constant_actor(np.arctanh(np.broadcast_to(mean, action_dim)))
    zeros = np.zeros(size)
    batch = Batch(np.zeros((size, 4)), np.zeros(noise.shape), zeros, np.zeros((size, 4)), zeros)
    config = case.config(gamma=1.0, **settings)
    read = []
    for dim in range(action_dim):
        nets.target_critics = [reading_critic(action_dim, dim)] * 2
        read.append(case.td_target(config, nets, batch, noise))
    return np.stack(read, axis=1)


def test_noise_is_drawn_for_each_row_and_dimension(case: Case) -> None:
    noise = np.random.default_rng(0).normal(size=(7, 3))
    found = next_actions(case, noise, mean=np.array([0.1, -0.2, 0.3]))
    expected = np.array([0.1, -0.2, 0.3]) + np.clip(0.2 * noise, -0.5, 0.5)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("policy_noise", [0.0, 0.1, 0.2])
def test_noise_is_scaled(case: Case, policy_noise: float) -> None:
    noise = np.linspace(-2.0, 2.0, 9)[:, None]
    found = next_actions(case, noise, policy_noise=policy_noise)
    np.testing.assert_allclose(found, policy_noise * noise, atol=1e-6)


@pytest.mark.parametrize("noise_clip", [0.0, 0.25, 0.5])
def test_noise_is_clipped_after_scaling(case: Case, noise_clip: float) -> None:
    noise = np.array([[-9.0], [-2.4], [-0.5], [0.5], [2.4], [9.0]])
    found = next_actions(case, noise, noise_clip=noise_clip)
    np.testing.assert_allclose(found, np.clip(0.2 * noise, -noise_clip, noise_clip), atol=1e-6)


@pytest.mark.parametrize("mean", [-0.9, 0.9])
def test_the_sum_stays_in_the_box(case: Case, mean: float) -> None:
    noise = np.array([[-9.0], [-0.25], [0.0], [0.25], [9.0]])
    found = next_actions(case, noise, mean=mean)
    expected = np.clip(mean + np.clip(0.2 * noise, -0.5, 0.5), -1.0, 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(found).max() == 1.0
