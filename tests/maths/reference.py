"""The three algorithms in float64 NumPy: one row at a time, gradients by hand, nothing clever.

Written from the papers' equations, not from the code under test, and for reading beside them.
Networks are dictionaries `0.weight`, `0.bias`, ... without the axis of stacked critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyak.algorithms.interface import Batch

Weights = dict[str, np.ndarray]


@dataclass
class Networks:
    """What learns. `target_actor` stays unused by SAC, `log_alpha` by the other two."""

    actor: Weights
    critics: list[Weights]
    target_actor: Weights
    target_critics: list[Weights]
    log_alpha: float = 0.0


def forward(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """x (in,) -> output (out,) and what went into each layer."""
    inputs = []
    last = len(weights) // 2 - 1
    for layer in range(last + 1):
        inputs.append(x)
        x = weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"]
        if layer < last:
            x = np.where(x > 0.0, x, 0.0)
    return x, inputs


def backward(
    weights: Weights, inputs: list[np.ndarray], slope: np.ndarray
) -> tuple[Weights, np.ndarray]:
    """Gradients by the weights and by x, given the gradient by the output."""
    gradient: Weights = {}
    for layer in reversed(range(len(inputs))):
        gradient[f"{layer}.weight"] = np.outer(slope, inputs[layer])
        gradient[f"{layer}.bias"] = slope
        slope = weights[f"{layer}.weight"].T @ slope
        if layer > 0:
            slope = np.where(inputs[layer] > 0.0, slope, 0.0)
    return gradient, slope


def accumulate(total: Weights, more: Weights) -> Weights:
    return {name: total.get(name, 0.0) + array for name, array in more.items()}


def q(critic: Weights, obs: np.ndarray, action: np.ndarray) -> float:
    return float(forward(critic, np.concatenate([obs, action]))[0][0])


def mu(actor: Weights, obs: np.ndarray) -> np.ndarray:
    return np.tanh(forward(actor, obs)[0])


def log_slope(u: np.ndarray) -> np.ndarray:
    """log d tanh(u) / du = -2 log cosh u, without overflow."""
    return -2.0 * (np.abs(u) + np.log1p(np.exp(-2.0 * np.abs(u))) - math.log(2.0))


def mean_and_log_std(actor: Weights, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, raw = np.split(forward(actor, obs)[0], 2)
    return mean, -5.0 + 3.5 * (np.tanh(raw) + 1.0)


def sample(actor: Weights, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float]:
    """SAC's action and its log-density."""
    mean, log_std = mean_and_log_std(actor, obs)
    u = mean + np.exp(log_std) * noise
    log_prob = 0.0
    for i in range(len(u)):
        log_prob += -0.5 * noise[i] ** 2 - log_std[i] - 0.5 * math.log(2.0 * math.pi)
        log_prob -= float(log_slope(u[i]))
    return np.tanh(u), log_prob


def td_target(
    algorithm: str, config: Any, nets: Networks, batch: Batch, noise: np.ndarray
) -> np.ndarray:
    """y (B,)."""
    target = np.zeros(len(batch.reward))
    for b in range(len(target)):
        obs, entropy_bonus = batch.next_obs[b], 0.0
        if algorithm == "sac":
            action, log_prob = sample(nets.actor, obs, noise[b])
            entropy_bonus = -math.exp(nets.log_alpha) * log_prob
        else:
            action = mu(nets.target_actor, obs)
        if algorithm == "td3":
            for i in range(len(action)):
                eps = config.policy_noise * noise[b, i]
                eps = min(max(eps, -config.noise_clip), config.noise_clip)
                action[i] = min(max(action[i] + eps, -1.0), 1.0)
        value = min(q(critic, obs, action) for critic in nets.target_critics) + entropy_bonus
        target[b] = batch.reward[b]
        if not batch.terminated[b]:
            target[b] += config.gamma * value
    return target


def critic_errors(
    nets: Networks, batch: Batch, target: np.ndarray
) -> tuple[list[float], list[float], list[Weights]]:
    """Of each critic: mean squared error, mean Q, gradient of the error."""
    errors, values, gradients = [], [], []
    for critic in nets.critics:
        error, value = 0.0, 0.0
        gradient: Weights = {}
        for b in range(len(target)):
            output, inputs = forward(critic, np.concatenate([batch.obs[b], batch.action[b]]))
            off = output[0] - target[b]
            error += off**2 / len(target)
            value += output[0] / len(target)
            row, _ = backward(critic, inputs, np.array([2.0 * off / len(target)]))
            gradient = accumulate(gradient, row)
        errors.append(error)
        values.append(value)
        gradients.append(gradient)
    return errors, values, gradients


def actor_loss(
    algorithm: str, nets: Networks, obs: np.ndarray, noise: np.ndarray
) -> tuple[float, Weights, np.ndarray]:
    """The loss, its gradient by the actor's weights, and SAC's log-densities (B,)."""
    loss, log_probs = 0.0, np.zeros(len(obs))
    gradient: Weights = {}
    alpha = math.exp(nets.log_alpha) if algorithm == "sac" else 0.0
    for b in range(len(obs)):
        output, inputs = forward(nets.actor, obs[b])
        if algorithm == "sac":
            action, log_probs[b] = sample(nets.actor, obs[b], noise[b])
        else:
            action = np.tanh(output)
        values = [q(critic, obs[b], action) for critic in nets.critics]
        # TD3 takes the first critic, whatever the second says; SAC the smaller one.
        chosen = int(np.argmin(values)) if algorithm == "sac" else 0
        loss += (alpha * log_probs[b] - values[chosen]) / len(obs)

        critic = nets.critics[chosen]
        _, into = forward(critic, np.concatenate([obs[b], action]))
        _, by_input = backward(critic, into, np.ones(1))
        by_u = -by_input[len(obs[b]) :] * (1.0 - action**2)  # d(-Q)/du, a = tanh(u)
        if algorithm == "sac":
            # log pi = ... - log std - log(1 - tanh(u)^2), u = mean + std * noise
            by_u = by_u + alpha * 2.0 * action
            _, log_std = mean_and_log_std(nets.actor, obs[b])
            by_log_std = by_u * np.exp(log_std) * noise[b] - alpha
            raw = np.split(output, 2)[1]
            by_output = np.concatenate([by_u, by_log_std * 3.5 * (1.0 - np.tanh(raw) ** 2)])
        else:
            by_output = by_u
        row, _ = backward(nets.actor, inputs, by_output / len(obs))
        gradient = accumulate(gradient, row)
    return loss, gradient, log_probs


def alpha_loss(log_alpha: float, log_probs: np.ndarray, target_entropy: float) -> float:
    """-alpha (log pi + target entropy), averaged; by log alpha it has itself as its gradient."""
    total = 0.0
    for log_prob in log_probs:
        total -= math.exp(log_alpha) * (log_prob + target_entropy)
    return total / len(log_probs)


class Adam:
    """Kingma & Ba 2015, algorithm 1."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.steps = 0
        self.first: Weights = {}
        self.second: Weights = {}

    def step(self, weights: Weights, gradient: Weights) -> Weights:
        self.steps += 1
        new = {}
        for name, g in gradient.items():
            self.first[name] = 0.9 * self.first.get(name, 0.0) + 0.1 * g
            self.second[name] = 0.999 * self.second.get(name, 0.0) + 0.001 * g**2
            first = self.first[name] / (1.0 - 0.9**self.steps)
            second = self.second[name] / (1.0 - 0.999**self.steps)
            new[name] = weights[name] - self.learning_rate * first / (np.sqrt(second) + 1e-8)
        return new


def average(target: Weights, network: Weights, tau: float) -> Weights:
    return {name: (1.0 - tau) * target[name] + tau * network[name] for name in target}


class Learner:
    """A whole algorithm, update by update."""

    def __init__(self, algorithm: str, config: Any, nets: Networks) -> None:
        self.algorithm, self.config, self.nets = algorithm, config, nets
        self.updates = 0
        self.actor_adam = Adam(config.actor_lr)
        self.critic_adams = [Adam(config.critic_lr) for _ in nets.critics]
        self.alpha_adam = Adam(config.critic_lr)

    def update(self, batch: Batch, noise: np.ndarray) -> tuple[list[float], list[float]]:
        """One update; returns the critics' errors and mean values before it."""
        nets, config, sac = self.nets, self.config, self.algorithm == "sac"
        self.updates += 1
        target = td_target(self.algorithm, config, nets, batch, noise[0] if len(noise) else noise)
        errors, values, gradients = critic_errors(nets, batch, target)
        for i, adam in enumerate(self.critic_adams):
            nets.critics[i] = adam.step(nets.critics[i], gradients[i])
        due = self.updates % config.policy_frequency == 0
        for k in range(config.policy_frequency if sac else 1):
            if due:
                self._update_actor(batch.obs, noise[1 + k] if sac else noise)
        if sac:
            due = self.updates % config.target_network_frequency == 0
        if due:
            pairs = zip(nets.target_critics, nets.critics, strict=True)
            nets.target_critics = [average(t, c, config.tau) for t, c in pairs]
            if not sac:
                nets.target_actor = average(nets.target_actor, nets.actor, config.tau)
        return errors, values

    def _update_actor(self, obs: np.ndarray, noise: np.ndarray) -> None:
        nets = self.nets
        _, gradient, log_probs = actor_loss(self.algorithm, nets, obs, noise)
        nets.actor = self.actor_adam.step(nets.actor, gradient)
        if self.algorithm == "sac" and self.config.autotune:
            slope = alpha_loss(nets.log_alpha, log_probs, -float(noise.shape[1]))
            # One number is a network too.
            new = self.alpha_adam.step({"": np.array(nets.log_alpha)}, {"": np.array(slope)})
            nets.log_alpha = float(new[""])


def differences(function: Callable[[Weights], float], weights: Weights) -> Weights:
    """The gradient by central differences."""
    gradient = {name: np.zeros_like(array) for name, array in weights.items()}
    for name, array in weights.items():
        for index in np.ndindex(array.shape):
            values = []
            for step in (1e-6, -1e-6):
                moved = array.copy()
                moved[index] += step
                values.append(function(weights | {name: moved}))
            gradient[name][index] = (values[0] - values[1]) / 2e-6
    return gradient


def stack(networks: Sequence[Weights]) -> Weights:
    """Single critics to one set of weights with a leading axis."""
    return {name: np.stack([w[name] for w in networks]) for name in networks[0]}


def unstack(weights: Weights) -> list[Weights]:
    count = len(next(iter(weights.values())))
    return [{name: array[i] for name, array in weights.items()} for i in range(count)]


def double(weights: Weights) -> Weights:
    return {name: array.astype(np.float64) for name, array in weights.items()}


def single(weights: Weights) -> Weights:
    return {name: array.astype(np.float32) for name, array in weights.items()}
