"""Steps: Adam, the moving average, and whole updates against float64 by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from polyak.algorithms.interface import Batch
from tests.maths import reference
from tests.maths.cases import Case, constant_actor, draw_batch, draw_networks, draw_noise, only
from tests.maths.reference import Networks, Weights

SIZE, ACTIONS = 7, 2


def run(
    case: Case, config: Any, nets: Networks, updates: int
) -> tuple[list[dict[str, np.ndarray]], list[dict[str, float]]]:
    """All weights before and after each update, and each one's metrics."""
    state = case.state(config, nets)
    weights, metrics = [case.read(state)], []
    for k in range(updates):
        state, new = case.update(config, state, rows(k), noises(config, k))
        weights.append(case.read(state))
        metrics.append(new)
    return weights, metrics


def rows(k: int) -> Batch:
    return draw_batch(SIZE, ACTIONS, seed=100 + k)


def noises(config: Any, k: int) -> np.ndarray:
    return draw_noise(config.noises_per_update, SIZE, ACTIONS, seed=200 + k)


def named(case: Case, nets: Networks) -> dict[str, np.ndarray]:
    """The reference's networks under the names of `Case.read`."""
    groups: dict[str, Weights] = {
        "actor": nets.actor,
        "critic": reference.stack(nets.critics),
        "target_critic": reference.stack(nets.target_critics),
    }
    if case.algorithm == "sac":
        groups["log_alpha"] = {"": np.array(nets.log_alpha)}
    else:
        groups["target_actor"] = nets.target_actor
    return {f"{group}.{name}": a for group, w in groups.items() for name, a in w.items()}


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """The networks of which any weight is another."""
    return {name.split(".")[0] for name in before if not np.array_equal(before[name], after[name])}


def test_adam_takes_kingma_and_bas_steps(case: Case) -> None:
    rng = np.random.default_rng(0)
    weights = {"0.weight": rng.normal(size=(3, 4)), "0.bias": rng.normal(size=3)}
    start = reference.single(weights)
    # Gradients down to the size of epsilon, 1e-8, where it decides about the step.
    sizes = 10.0 ** rng.uniform(-9.0, 1.0, (3, 4)), np.array([1e-8, 1e-4, 0.0])
    gradients = [
        reference.single(
            {"0.weight": sizes[0] * rng.normal(size=(3, 4)), "0.bias": sizes[1] * rng.normal()}
        )
        for _ in range(5)
    ]
    found = case.adapter.adam(start, 0.01, gradients)
    adam, expected = reference.Adam(0.01), reference.double(start)
    for after, gradient in zip(found, gradients, strict=True):
        expected = adam.step(expected, reference.double(gradient))
        for name in expected:
            # float32 holds these weights to 1e-7; a step is 0.01.
            np.testing.assert_allclose(after[name], expected[name], rtol=0, atol=1e-6)
    assert found[-1]["0.bias"][2] == start["0.bias"][2]


@pytest.mark.parametrize("tau", [0.005, 0.3])
def test_moving_average(case: Case, tau: float) -> None:
    rng = np.random.default_rng(1)
    target, network = (
        reference.single({"0.weight": rng.normal(size=(3, 4)), "0.bias": rng.normal(size=3)})
        for _ in range(2)
    )
    found = case.adapter.average(target, network, tau)
    expected = reference.average(reference.double(target), reference.double(network), tau)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-7)


def test_tau_1_copies_the_networks_bit_by_bit(case: Case) -> None:
    config = case.config(tau=1.0, policy_frequency=1)
    weights, _ = run(case, config, draw_networks(case, ACTIONS), 2)
    followed = [name for name in weights[-1] if name.startswith("target_")]
    assert followed
    for name in followed:
        np.testing.assert_array_equal(weights[-1][name], weights[-1][name.removeprefix("target_")])


@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_whole_updates(case: Case, frequency: int) -> None:
    config = case.config(
        policy_frequency=frequency, actor_lr=1e-3, critic_lr=3e-3, tau=0.1, gamma=0.9
    )
    nets = draw_networks(case, ACTIONS)
    found, metrics = run(case, config, nets, 6)
    learner = reference.Learner(case.algorithm, config, copy.deepcopy(nets))
    for k in range(6):
        errors, values = learner.update(rows(k), noises(config, k))
        expected = named(case, learner.nets)
        assert found[k + 1].keys() == expected.keys()
        for name, array in expected.items():
            # Steps are 1e-3 and 3e-3; in float32 they agree to less than a thousandth of that.
            np.testing.assert_allclose(
                found[k + 1][name], array, rtol=0, atol=1e-6, err_msg=f"{name}, update {k + 1}"
            )
        wanted = {"losses/qf_loss": sum(errors) / len(errors)}
        for i in range(len(errors)):
            wanted[f"losses/qf{i + 1}_loss"] = errors[i]
            wanted[f"losses/qf{i + 1}_values"] = values[i]
        for key, value in wanted.items():
            assert metrics[k][key] == pytest.approx(value, rel=1e-3, abs=1e-3), key
        own = {"losses/actor_loss"}
        own |= {"losses/alpha", "losses/alpha_loss"} if case.algorithm == "sac" else set()
        due = (k + 1) % frequency == 0
        assert set(metrics[k]) == wanted.keys() | (own if due else set())


def test_metrics_of_the_actor_are_those_of_its_update(case: Case) -> None:
    config = case.config(policy_frequency=1)
    nets = draw_networks(case, ACTIONS)
    _, (metrics,) = run(case, config, nets, 1)
    learner = reference.Learner(case.algorithm, config, copy.deepcopy(nets))
    learner.update(rows(0), noises(config, 0))
    # The actor is judged by the critics after their step.
    after = reference.Networks(nets.actor, learner.nets.critics, {}, [], nets.log_alpha)
    noise = noises(config, 0)[-1] if case.algorithm == "sac" else np.zeros(0)
    loss, _, log_probs = reference.actor_loss(case.algorithm, after, rows(0).obs, noise)
    assert metrics["losses/actor_loss"] == pytest.approx(loss, rel=1e-4)
    if case.algorithm == "sac":
        assert metrics["losses/alpha"] == pytest.approx(np.exp(nets.log_alpha), rel=1e-5)
        expected = reference.alpha_loss(nets.log_alpha, log_probs, -ACTIONS)
        assert metrics["losses/alpha_loss"] == pytest.approx(expected, rel=1e-4)


def test_an_update_of_the_critic_moves_nothing_else(case: Case) -> None:
    delays = {"policy_frequency": 3}
    delays |= {"target_network_frequency": 5} if case.algorithm == "sac" else {}
    weights, _ = run(case, case.config(**delays), draw_networks(case, ACTIONS), 2)
    assert moved(weights[0], weights[1]) == {"critic"}
    assert moved(weights[1], weights[2]) == {"critic"}


def test_an_update_of_the_actor_does_not_touch_the_critic(case: Case) -> None:
    nets = draw_networks(case, ACTIONS)
    often, _ = run(case, case.config(policy_frequency=1), nets, 1)
    never, _ = run(case, case.config(policy_frequency=2), nets, 1)
    assert "actor" in moved(never[1], often[1])
    assert "critic" not in moved(never[1], often[1])


@only("ddpg", "td3")
@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_actor_and_targets_move_together_every_few_updates(case: Case, frequency: int) -> None:
    weights, _ = run(case, case.config(policy_frequency=frequency), draw_networks(case, ACTIONS), 7)
    for k in range(1, 8):
        late = {"actor", "target_actor", "target_critic"} if k % frequency == 0 else set()
        assert moved(weights[k - 1], weights[k]) == {"critic"} | late


@only("sac")
@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_targets_follow_at_their_own_frequency(case: Case, frequency: int) -> None:
    config = case.config(policy_frequency=2, target_network_frequency=frequency)
    weights, _ = run(case, config, draw_networks(case, ACTIONS), 7)
    for k in range(1, 8):
        late = {"target_critic"} if k % frequency == 0 else set()
        late |= {"actor", "log_alpha"} if k % 2 == 0 else set()
        assert moved(weights[k - 1], weights[k]) == {"critic"} | late


@only("sac")
@pytest.mark.parametrize(("raw", "direction"), [(0.9, -1.0), (-20.0, 1.0)])
@pytest.mark.parametrize("action_dim", [1, 3])
def test_alpha_falls_above_the_target_entropy_and_rises_below(
    case: Case, raw: float, direction: float, action_dim: int
) -> None:
    # A spread of exp(0) has an entropy near that of the uniform policy, log 2 in each dimension; a
    # spread of exp(-5) has -3.6. The target is -1 in each.
    nets = draw_networks(case, action_dim)
    nets.actor = constant_actor(np.repeat([0.0, raw], action_dim))
    config = case.config(policy_frequency=1, actor_lr=1e-9)
    state = case.state(config, nets)
    before = case.adapter.log_alpha(state)
    for k in range(4):
        noise = draw_noise(config.noises_per_update, SIZE, action_dim, seed=k)
        state, _ = case.update(config, state, draw_batch(SIZE, action_dim), noise)
        after = case.adapter.log_alpha(state)
        assert direction * (after - before) > 0.5 * config.critic_lr
        before = after


@only("sac")
@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_a_fixed_alpha_stays(case: Case, alpha: float) -> None:
    config = case.config(policy_frequency=1, autotune=False, alpha=alpha)
    state = case.init(config, action_dim=ACTIONS)
    for k in range(5):
        state, metrics = case.update(config, state, rows(k), noises(config, k))
        assert metrics["losses/alpha"] == pytest.approx(alpha, rel=1e-6)
        assert "losses/alpha_loss" not in metrics
    assert case.adapter.log_alpha(state) == pytest.approx(np.log(alpha), rel=1e-6)


@only("sac")
def test_a_fixed_alpha_of_0_leaves_the_entropy_out(case: Case) -> None:
    # The settings allow it, and it is the plain stochastic policy gradient.
    config = case.config(policy_frequency=1, autotune=False, alpha=0.0)
    state = case.init(config, action_dim=ACTIONS)
    for k in range(3):
        state, metrics = case.update(config, state, rows(k), noises(config, k))
        assert metrics["losses/alpha"] == 0.0
        assert np.isfinite(list(metrics.values())).all()
    networks = {name: a for name, a in case.read(state).items() if name != "log_alpha."}
    assert all(np.isfinite(array).all() for array in networks.values())


@only("sac")
def test_a_learned_alpha_begins_at_1(case: Case) -> None:
    assert case.adapter.log_alpha(case.init(case.config(alpha=0.3))) == 0.0
