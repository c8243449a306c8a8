"""Targets, losses and gradients against float64 by hand, and gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.maths import reference
from tests.maths.cases import Case, draw_batch, draw_networks, draw_noise, only
from tests.maths.reference import Weights

sizes = pytest.mark.parametrize(("size", "action_dim"), [(3, 1), (7, 1), (3, 3), (7, 3)])
# 0: which critic is smaller differs from row to row. Otherwise the wrong critic is off by 100.
gaps = pytest.mark.parametrize("gap", [0.0, 100.0, -100.0])
differences = pytest.mark.parametrize(
    ("size", "action_dim", "gap"), [(3, 3, 0.0), (7, 1, 0.0), (3, 1, 100.0)]
)


def close(found: Weights, expected: Weights, scale: float = 1.0) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-6 * scale, err_msg=name)


@sizes
@gaps
def test_td_target(case: Case, size: int, action_dim: int, gap: float) -> None:
    nets, batch = draw_networks(case, action_dim, gap=gap), draw_batch(size, action_dim)
    config, noise = case.config(gamma=0.9), draw_noise(size, action_dim)
    found = case.td_target(config, nets, batch, noise)
    expected = reference.td_target(case.algorithm, config, nets, batch, noise)
    assert found.shape == (size,)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_target_of_a_terminated_row_is_its_reward(case: Case) -> None:
    nets, batch = draw_networks(case, 2, gap=100.0), draw_batch(7, 2)
    found = case.td_target(case.config(), nets, batch, draw_noise(7, 2))
    ended = batch.terminated == 1.0
    assert ended.any() and not ended.all()
    np.testing.assert_array_equal(found[ended], batch.reward[ended])
    assert (np.abs(found - batch.reward)[~ended] > 1e-3).all()


@sizes
@gaps
def test_critic_loss_and_its_gradient(case: Case, size: int, action_dim: int, gap: float) -> None:
    nets, batch = draw_networks(case, action_dim, gap=gap), draw_batch(size, action_dim)
    target = np.random.default_rng(5).normal(size=size).astype(np.float32).astype(np.float64)
    critic = case.critic(nets.critics)
    loss, error, value = map(case.adapter.array, case.critic_loss(critic, batch, target))
    errors, values, gradients = reference.critic_errors(nets, batch, target)
    np.testing.assert_allclose(loss, sum(errors), rtol=2e-5)
    np.testing.assert_allclose(error, errors, rtol=2e-5)
    np.testing.assert_allclose(value, values, rtol=2e-5, atol=1e-6)

    found = case.adapter.gradient(lambda c: case.critic_loss(c, batch, target), critic)
    close(found, reference.stack(gradients), scale=1.0 + abs(gap))


@sizes
@gaps
def test_actor_loss_and_its_gradient(case: Case, size: int, action_dim: int, gap: float) -> None:
    nets, obs = draw_networks(case, action_dim, gap=gap), draw_batch(size, action_dim).obs
    noise = draw_noise(size, action_dim)
    actor = case.actor(nets.actor)
    expected, by_hand, log_probs = reference.actor_loss(case.algorithm, nets, obs, noise)
    result = case.actor_loss(actor, nets, obs, noise)
    if case.algorithm == "sac":
        result, log_prob = result
        np.testing.assert_allclose(case.adapter.array(log_prob), log_probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(case.adapter.array(result), expected, rtol=1e-5, atol=1e-5)

    found = case.adapter.gradient(lambda a: case.actor_loss(a, nets, obs, noise), actor)
    close(found, by_hand)


@differences
def test_gradient_of_the_critic_loss_by_differences(
    case: Case, size: int, action_dim: int, gap: float
) -> None:
    nets, batch = draw_networks(case, action_dim, gap=gap), draw_batch(size, action_dim)
    target = np.zeros(size)
    critic = case.critic(nets.critics)
    found = case.adapter.gradient(lambda c: case.critic_loss(c, batch, target), critic)
    for weights, gradient in zip(nets.critics, reference.unstack(found), strict=True):

        def error(moved: Weights) -> float:
            alone = reference.Networks(nets.actor, [moved], {}, [])
            return reference.critic_errors(alone, batch, target)[0][0]

        close(gradient, reference.differences(error, weights), scale=1.0 + abs(gap))


@differences
def test_gradient_of_the_actor_loss_by_differences(
    case: Case, size: int, action_dim: int, gap: float
) -> None:
    nets, obs = draw_networks(case, action_dim, gap=gap), draw_batch(size, action_dim).obs
    noise = draw_noise(size, action_dim)
    found = case.adapter.gradient(
        lambda a: case.actor_loss(a, nets, obs, noise), case.actor(nets.actor)
    )

    def loss(moved: Weights) -> float:
        others = reference.Networks(moved, nets.critics, {}, [], nets.log_alpha)
        return reference.actor_loss(case.algorithm, others, obs, noise)[0]

    close(found, reference.differences(loss, nets.actor))


@only("td3", "sac")
@pytest.mark.parametrize(("size", "action_dim"), [(7, 1), (7, 3)])
def test_without_a_gap_each_critic_is_the_smaller_one_somewhere(
    case: Case, size: int, action_dim: int
) -> None:
    # Else the minimum of the tests above could as well be one of the two.
    nets, batch = draw_networks(case, action_dim), draw_batch(size, action_dim)
    for critics, obs in ((nets.critics, batch.obs), (nets.target_critics, batch.next_obs)):
        actor = nets.actor if case.algorithm == "sac" else nets.target_actor
        smaller = set()
        for b in range(size):
            action = np.tanh(reference.forward(actor, obs[b])[0][:action_dim])
            smaller.add(int(np.argmin([reference.q(critic, obs[b], action) for critic in critics])))
        assert smaller == {0, 1}


@only("sac")
@pytest.mark.parametrize("size", [3, 7])
def test_alpha_loss_and_its_gradient(case: Case, size: int) -> None:
    log_prob = np.random.default_rng(0).normal(2.0, 3.0, size).astype(np.float32)
    expected = reference.alpha_loss(-0.75, log_prob.astype(np.float64), -3.0)

    def loss(log_alpha: object) -> object:
        return case.module.alpha_loss(log_alpha, case.adapter.tensor(log_prob), -3.0)

    scalar = case.adapter.scalar(-0.75)
    np.testing.assert_allclose(case.adapter.array(loss(scalar)), expected, rtol=1e-5)
    (found,) = case.adapter.gradient(loss, scalar).values()
    by_difference = (
        reference.alpha_loss(-0.75 + 1e-6, log_prob.astype(np.float64), -3.0)
        - reference.alpha_loss(-0.75 - 1e-6, log_prob.astype(np.float64), -3.0)
    ) / 2e-6
    np.testing.assert_allclose(found, by_difference, rtol=1e-5)
