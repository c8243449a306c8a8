"""SAC's policy as a probability distribution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, special, stats

from tests.maths.cases import Case, constant_actor, draw_networks, only
from tests.maths.reference import Weights

pytestmark = only("sac")


def actor(mean: list[float], log_std: list[float]) -> Weights:
    """A policy that is the same in every state: what log std is squashed from is inverted."""
    with np.errstate(divide="ignore"):
        raw = np.arctanh((np.array(log_std) + 5.0) / 3.5 - 1.0)
    return constant_actor(np.concatenate([mean, np.clip(raw, -50.0, 50.0)]))


def log_density(case: Case, policy: Weights, noise: np.ndarray) -> np.ndarray:
    """log pi (B,) of the actions that this noise (B, A) leads to."""
    nets = draw_networks(case, noise.shape[1])
    obs = np.zeros((len(noise), policy["0.weight"].shape[1]))
    _, log_prob = case.actor_loss(case.actor(policy), nets, obs, noise)
    result: np.ndarray = case.adapter.array(log_prob)
    assert result.shape == (len(noise),)
    return result


def by_scipy(mean: np.ndarray, log_std: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Density of u over the slope of a = tanh(u): 1 - a^2 = 4 sigmoid(2u) sigmoid(-2u)."""
    u = mean + np.exp(log_std) * noise
    slope = np.log(4.0) + special.log_expit(2.0 * u) + special.log_expit(-2.0 * u)
    density: np.ndarray = stats.norm.logpdf(u, mean, np.exp(log_std)) - slope
    return density.sum(axis=1)


@pytest.mark.parametrize("log_std", [-4.9, -1.0, 0.0, 1.9])
def test_log_density_by_change_of_variables(case: Case, log_std: float) -> None:
    mean = np.array([0.3, -1.2, 2.0])
    noise = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    found = log_density(case, actor(list(mean), [log_std] * 3), noise)
    expected = by_scipy(mean, np.full(3, log_std), noise.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("u", [-30.0, -10.0, 10.0, 30.0])
def test_log_density_where_tanh_is_saturated(case: Case, u: float) -> None:
    # In float32, 1 - tanh(10)^2 is 0: taking its logarithm would give infinity.
    noise = np.zeros((1, 1))
    found = log_density(case, actor([u], [-1.0]), noise)
    expected = by_scipy(np.array([u]), np.array([-1.0]), noise)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("u", [-30.0, 30.0])
def test_gradient_where_tanh_is_saturated(case: Case, u: float) -> None:
    """By the mean it is -2 alpha sign(u) per unit of log density: pulled back, and not by nan."""
    nets = draw_networks(case, 1)
    nets.actor = actor([u], [-1.0])
    gradient = case.adapter.gradient(
        lambda a: case.actor_loss(a, nets, np.zeros((1, 4)), np.zeros((1, 1))),
        case.actor(nets.actor),
    )
    assert all(np.isfinite(array).all() for array in gradient.values())
    expected = 2.0 * np.exp(nets.log_alpha) * np.sign(u)
    np.testing.assert_allclose(gradient["2.bias"][0], expected, rtol=1e-4)


@pytest.mark.parametrize("mean", [0.0, 0.8, -2.0])
@pytest.mark.parametrize("log_std", [-2.0, 0.0, 1.0])
def test_density_integrates_to_1_over_the_box(case: Case, mean: float, log_std: float) -> None:
    noise = np.linspace(-6.0, 6.0, 4001, dtype=np.float32)
    action = np.tanh(mean + np.exp(log_std) * noise.astype(np.float64))
    density = np.exp(log_density(case, actor([mean], [log_std]), noise[:, None]))
    assert integrate.trapezoid(density, action) == pytest.approx(1.0, abs=1e-3)


def test_density_of_two_actions_integrates_to_1_over_the_square(case: Case) -> None:
    mean, log_std = [0.5, -0.3], [-0.5, 0.2]
    noise = np.linspace(-6.0, 6.0, 201, dtype=np.float32)
    first, second = np.meshgrid(noise, noise, indexing="ij")
    grid = np.stack([first.ravel(), second.ravel()], axis=1)
    density = np.exp(log_density(case, actor(mean, log_std), grid)).reshape(first.shape)
    actions = [
        np.tanh(m + np.exp(s) * noise.astype(np.float64))
        for m, s in zip(mean, log_std, strict=True)
    ]
    inner = integrate.trapezoid(density, actions[1], axis=1)
    assert integrate.trapezoid(inner, actions[0]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("raw", "log_std"), [(-1e4, -5.0), (-50.0, -5.0), (0.0, -1.5), (50.0, 2.0), (1e4, 2.0)]
)
def test_log_std_stays_between_minus_5_and_2(case: Case, raw: float, log_std: float) -> None:
    # At zero mean and zero noise the density is that of the normal distribution at its mean.
    found = log_density(case, constant_actor(np.array([0.0, raw])), np.zeros((1, 1)))
    assert -found[0] - 0.5 * np.log(2.0 * np.pi) == pytest.approx(log_std, abs=1e-4)


def test_log_std_keeps_a_gradient_near_its_bounds(case: Case) -> None:
    for raw in (-4.0, 4.0):
        nets = draw_networks(case, 1)
        nets.actor = constant_actor(np.array([0.0, raw]))
        gradient = case.adapter.gradient(
            lambda a, nets=nets: case.actor_loss(a, nets, np.zeros((1, 4)), np.zeros((1, 1))),
            case.actor(nets.actor),
        )
        expected = -np.exp(nets.log_alpha) * 3.5 / np.cosh(raw) ** 2
        np.testing.assert_allclose(gradient["2.bias"][1], expected, rtol=1e-3)


def test_actions_follow_their_density(case: Case) -> None:
    """The share of sampled actions below a bound is what the policy says it is."""
    mean, std = 0.4, 0.7
    noise = np.random.default_rng(0).standard_normal((4000, 1))
    action = case.act(case.config(), actor([mean], [np.log(std)]), np.zeros((4000, 4)), noise)
    expected = stats.norm(mean, std)
    result = stats.kstest(
        action[:, 0], lambda a: expected.cdf(np.arctanh(np.clip(a, -1 + 1e-12, 1 - 1e-12)))
    )
    assert result.pvalue > 0.01
