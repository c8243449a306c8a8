"""SAC: soft actor-critic, entropy coefficient learned (Haarnoja et al. 2018, arXiv:1812.05905).

a ~ pi(s); store (s, a, r, s', terminated)
critics:  a' ~ pi(s');  y = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s'))
          minimise mean (Q_i(s, a) - y)^2
every policy_frequency-th update, policy_frequency times:
    actor:    minimise mean (alpha log pi(a|s) - min_i Q_i(s, a)), a ~ pi(s)
    alpha:    minimise mean -alpha (log pi(a|s) + target entropy), target entropy = -dim A
every target_network_frequency-th update: theta' <- (1 - tau) theta' + tau theta, for Q_i'
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from polyak.algorithms import initial
from polyak.algorithms.common_jax import (
    MLP,
    Scalar,
    adam,
    compiled,
    minimize,
    play,
    polyak_average,
)
from polyak.algorithms.configs import SACConfig
from polyak.algorithms.interface import Batch

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Actor(MLP):
    """pi(a|s): a Gaussian squashed by tanh."""

    def __call__(self, obs: Array) -> tuple[Array, Array]:
        """(B, O) -> mean (B, A) and log standard deviation (B, A) before the squashing."""
        mean, raw = jnp.split(self.layers(obs), 2, axis=-1)
        # A smooth squash: clamping would leave no gradient at the bounds.
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (jnp.tanh(raw) + 1.0)
        return mean, log_std

    def sample(self, obs: Array, noise: Array) -> tuple[Array, Array]:
        """Action (B, A) in [-1, 1] and its log-density (B,), from standard normal noise (B, A).

        Reparametrised: u = mean + std * noise, a = tanh(u) (Haarnoja et al. 2018, appendix C),
        with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which is exact where tanh
        saturates. The density is that of the action in [-1, 1], whatever the environment's bounds.
        """
        mean, log_std = self(obs)
        u = mean + jnp.exp(log_std) * noise
        log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2.0 * math.pi)
        log_slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return jnp.tanh(u), (log_normal - log_slope).sum(axis=-1)


class Critic(MLP):
    """Q_i(s, a): two independent critics, stacked."""

    def __call__(self, obs: Array, action: Array) -> Array:
        """(B, O), (B, A) -> (E, B)."""
        return self.layers(jnp.concatenate([obs, action], axis=-1)).squeeze(-1)


class State(NamedTuple):
    """Everything that learns."""

    actor: Actor
    critic: Critic
    target_critic: Critic
    log_alpha: Scalar
    actor_optimizer: Any
    critic_optimizer: Any
    alpha_optimizer: Any
    updates: int


def init(
    config: SACConfig, obs_dim: int, action_dim: int, generator: np.random.Generator, device: Any
) -> State:
    """New networks; the target begins as a copy. A learned alpha begins at 1."""
    hidden = (config.hidden_dim, config.hidden_dim)
    actor_weights = initial.mlp(generator, (obs_dim, *hidden, 2 * action_dim))
    critic_weights = initial.mlp(generator, (obs_dim + action_dim, *hidden, 1), ensemble=2)
    actor, critic = Actor(actor_weights, device), Critic(critic_weights, device)
    fixed = math.log(config.alpha) if config.alpha > 0.0 else -math.inf
    log_alpha = Scalar(0.0 if config.autotune else fixed, device)
    return State(
        actor=actor,
        critic=critic,
        target_critic=Critic(critic_weights, device),
        log_alpha=log_alpha,
        actor_optimizer=adam(config.actor_lr).init(actor),
        critic_optimizer=adam(config.critic_lr).init(critic),
        alpha_optimizer=adam(config.critic_lr).init(log_alpha),
        updates=0,
    )


def act(config: SACConfig, actor: Actor, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Actions (N, A) in [-1, 1] for obs (N, O) and standard normal noise (N, A)."""
    del config  # the policy brings its own noise scale
    mean, log_std = play(actor, obs)
    return np.tanh(np.asarray(mean) + np.exp(np.asarray(log_std)) * noise)


def td_target(
    config: SACConfig,
    actor: Actor,
    target_critic: Critic,
    alpha: Array,
    batch: Batch,
    noise: Array,
) -> Array:
    """y (B,) = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s'))."""
    next_action, log_prob = actor.sample(batch.next_obs, noise)
    next_value = target_critic(batch.next_obs, next_action).min(axis=0)  # (E, B) -> (B,)
    soft_value = next_value - alpha * log_prob
    return batch.reward + config.gamma * (1.0 - batch.terminated) * soft_value


def critic_loss(critic: Critic, batch: Batch, target: Array) -> tuple[Array, Array, Array]:
    """Sum over critics of the mean squared TD error; also each one's error and mean Q, (E,)."""
    value = critic(batch.obs, batch.action)  # (E, B)
    error = jnp.square(value - target[None]).mean(axis=1)
    return error.sum(), error, value.mean(axis=1)


def actor_loss(
    actor: Actor, critic: Critic, alpha: Array, obs: Array, noise: Array
) -> tuple[Array, Array]:
    """Mean (alpha log pi(a|s) - min_i Q_i(s, a)), a ~ pi(s); also log pi (B,)."""
    action, log_prob = actor.sample(obs, noise)
    value = critic(obs, action).min(axis=0)  # (E, B) -> (B,)
    return (alpha * log_prob - value).mean(), log_prob


def alpha_loss(log_alpha: Scalar, log_prob: Array, target_entropy: float) -> Array:
    """Mean -alpha (log pi + target entropy): alpha grows while the entropy is below its target."""
    return -(jnp.exp(log_alpha()) * (log_prob + target_entropy)).mean()


def critic_step(
    config: SACConfig, state: State, batch: Batch, noise: Array
) -> tuple[State, dict[str, Array]]:
    """One gradient step of both critics."""
    alpha = jnp.exp(state.log_alpha())
    target = td_target(config, state.actor, state.target_critic, alpha, batch, noise)
    critic, optimizer, (_, error, value) = minimize(
        lambda critic: critic_loss(critic, batch, target),
        state.critic,
        state.critic_optimizer,
        config.critic_lr,
    )
    metrics = {
        "losses/qf1_loss": error[0],
        "losses/qf2_loss": error[1],
        "losses/qf_loss": error.mean(),
        "losses/qf1_values": value[0],
        "losses/qf2_values": value[1],
    }
    return state._replace(critic=critic, critic_optimizer=optimizer), metrics


def actor_step(
    config: SACConfig, state: State, batch: Batch, noise: Array
) -> tuple[State, dict[str, Array]]:
    """One gradient step of the actor, then one of alpha on the same actions."""
    alpha = jnp.exp(state.log_alpha())
    actor, optimizer, (loss, log_prob) = minimize(
        lambda actor: actor_loss(actor, state.critic, alpha, batch.obs, noise),
        state.actor,
        state.actor_optimizer,
        config.actor_lr,
    )
    state = state._replace(actor=actor, actor_optimizer=optimizer)
    metrics = {"losses/actor_loss": loss, "losses/alpha": alpha}
    if config.autotune:
        log_alpha, optimizer, loss = minimize(
            lambda log_alpha: alpha_loss(
                log_alpha, log_prob, target_entropy=-float(noise.shape[1])
            ),
            state.log_alpha,
            state.alpha_optimizer,
            config.critic_lr,
        )
        state = state._replace(log_alpha=log_alpha, alpha_optimizer=optimizer)
        metrics["losses/alpha_loss"] = loss
    return state, metrics


@compiled
def update(
    config: SACConfig, state: State, batch: Batch, noise: Array
) -> tuple[State, dict[str, Array]]:
    """One update of the critics and, when they are due, of actor, alpha and targets.

    `noise` (1 + policy_frequency, B, A), standard normal: the first for the next action, the others
    for the updates of the actor, which come `policy_frequency` at a time so that it is updated as
    often as the critics.
    """
    state, metrics = critic_step(config, state, batch, noise[0])
    state = state._replace(updates=state.updates + 1)
    if state.updates % config.policy_frequency == 0:
        for draw in noise[1:]:
            state, new = actor_step(config, state, batch, draw)
            metrics |= new
    if state.updates % config.target_network_frequency == 0:
        target = polyak_average(state.target_critic, state.critic, config.tau)
        state = state._replace(target_critic=target)
    return state, metrics
