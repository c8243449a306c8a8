"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

a = clip(mu(s) + exploration_noise * N(0, 1), -1, 1); store (s, a, r, s', terminated)
critics:  a' = clip(mu'(s') + clip(policy_noise * N(0, 1), -noise_clip, noise_clip), -1, 1)
          y = r + gamma (1 - terminated) min_i Q_i'(s', a');  minimise mean (Q_i(s, a) - y)^2
every policy_frequency-th update:
    actor:    minimise -mean Q_1(s, mu(s))
    targets:  theta' <- (1 - tau) theta' + tau theta, for Q_i' and mu'
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from polyak.algorithms import initial
from polyak.algorithms.common_jax import MLP, adam, compiled, minimize, play, polyak_average
from polyak.algorithms.configs import TD3Config
from polyak.algorithms.interface import Batch


class Actor(MLP):
    """mu(s), the deterministic policy."""

    def __call__(self, obs: Array) -> Array:
        """(B, O) -> (B, A) in [-1, 1]."""
        return jnp.tanh(self.layers(obs))


class Critic(MLP):
    """Q_i(s, a): two independent critics, stacked."""

    def __call__(self, obs: Array, action: Array) -> Array:
        """(B, O), (B, A) -> (E, B)."""
        return self.layers(jnp.concatenate([obs, action], axis=-1)).squeeze(-1)

    def first(self, obs: Array, action: Array) -> Array:
        """Q_1 alone: (B, O), (B, A) -> (B,)."""
        return self.layers(jnp.concatenate([obs, action], axis=-1), only=0).squeeze(-1)


class State(NamedTuple):
    """Everything that learns."""

    actor: Actor
    critic: Critic
    target_actor: Actor
    target_critic: Critic
    actor_optimizer: Any
    critic_optimizer: Any
    updates: int


def init(
    config: TD3Config, obs_dim: int, action_dim: int, generator: np.random.Generator, device: Any
) -> State:
    """New networks; the targets begin as copies."""
    hidden = (config.hidden_dim, config.hidden_dim)
    actor_weights = initial.mlp(generator, (obs_dim, *hidden, action_dim))
    critic_weights = initial.mlp(generator, (obs_dim + action_dim, *hidden, 1), ensemble=2)
    actor, critic = Actor(actor_weights, device), Critic(critic_weights, device)
    return State(
        actor=actor,
        critic=critic,
        target_actor=Actor(actor_weights, device),
        target_critic=Critic(critic_weights, device),
        actor_optimizer=adam(config.actor_lr).init(actor),
        critic_optimizer=adam(config.critic_lr).init(critic),
        updates=0,
    )


def act(config: TD3Config, actor: Actor, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Actions (N, A) in [-1, 1] for obs (N, O) and standard normal noise (N, A)."""
    mean = np.asarray(play(actor, obs))
    return np.clip(mean + config.exploration_noise * noise, -1.0, 1.0, dtype=np.float32)


def td_target(
    config: TD3Config, target_actor: Actor, target_critic: Critic, batch: Batch, noise: Array
) -> Array:
    """y (B,) = r + gamma (1 - terminated) min_i Q_i'(s', a'), a' smoothed by `noise` (B, A)."""
    smoothing = (config.policy_noise * noise).clip(-config.noise_clip, config.noise_clip)
    next_action = (target_actor(batch.next_obs) + smoothing).clip(-1.0, 1.0)
    next_value = target_critic(batch.next_obs, next_action).min(axis=0)  # (E, B) -> (B,)
    return batch.reward + config.gamma * (1.0 - batch.terminated) * next_value


def critic_loss(critic: Critic, batch: Batch, target: Array) -> tuple[Array, Array, Array]:
    """Sum over critics of the mean squared TD error; also each one's error and mean Q, (E,)."""
    value = critic(batch.obs, batch.action)  # (E, B)
    error = jnp.square(value - target[None]).mean(axis=1)
    return error.sum(), error, value.mean(axis=1)


def actor_loss(actor: Actor, critic: Critic, obs: Array) -> Array:
    """-mean Q_1(s, mu(s)): the deterministic policy gradient (Silver et al. 2014, eq. 9)."""
    return -critic.first(obs, actor(obs)).mean()


def critic_step(
    config: TD3Config, state: State, batch: Batch, noise: Array
) -> tuple[State, dict[str, Array]]:
    """One gradient step of both critics."""
    target = td_target(config, state.target_actor, state.target_critic, batch, noise)
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


def actor_step(config: TD3Config, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
    """One gradient step of the actor, then the targets follow."""
    actor, optimizer, loss = minimize(
        lambda actor: actor_loss(actor, state.critic, batch.obs),
        state.actor,
        state.actor_optimizer,
        config.actor_lr,
    )
    state = state._replace(
        actor=actor,
        actor_optimizer=optimizer,
        target_actor=polyak_average(state.target_actor, actor, config.tau),
        target_critic=polyak_average(state.target_critic, state.critic, config.tau),
    )
    return state, {"losses/actor_loss": loss}


@compiled
def update(
    config: TD3Config, state: State, batch: Batch, noise: Array
) -> tuple[State, dict[str, Array]]:
    """One update of the critics and every `policy_frequency`-th time of actor and targets.

    `noise` (1, B, A), standard normal, smooths the target policy.
    """
    state, metrics = critic_step(config, state, batch, noise[0])
    state = state._replace(updates=state.updates + 1)
    if state.updates % config.policy_frequency == 0:
        state, new = actor_step(config, state, batch)
        metrics |= new
    return state, metrics
