"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1).

a = clip(mu(s) + exploration_noise * N(0, 1), -1, 1); store (s, a, r, s', terminated)
critic:  y = r + gamma (1 - terminated) Q'(s', mu'(s'));  minimise mean (Q(s, a) - y)^2
every policy_frequency-th update:
    actor:    minimise -mean Q(s, mu(s))
    targets:  theta' <- (1 - tau) theta' + tau theta, for Q' and mu'
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyak.algorithms import initial
from polyak.algorithms.common_torch import MLP, Adam, polyak_average, tensors
from polyak.algorithms.configs import DDPGConfig
from polyak.algorithms.interface import Batch


class Actor(MLP):
    """mu(s), the deterministic policy."""

    def __call__(self, obs: Tensor) -> Tensor:
        """(B, O) -> (B, A) in [-1, 1]."""
        return torch.tanh(self.layers(obs))


class Critic(MLP):
    """Q(s, a), E of them; DDPG has one."""

    def __call__(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B, O), (B, A) -> (E, B)."""
        return self.layers(obs, action).squeeze(-1)


@dataclass
class State:
    """Everything that learns."""

    actor: Actor
    critic: Critic
    target_actor: Actor
    target_critic: Critic
    actor_optimizer: Adam
    critic_optimizer: Adam
    updates: int
    device: torch.device


def init(
    config: DDPGConfig,
    obs_dim: int,
    action_dim: int,
    generator: np.random.Generator,
    device: torch.device,
) -> State:
    """New networks; the targets begin as copies."""
    hidden = (config.hidden_dim, config.hidden_dim)
    actor_weights = initial.mlp(generator, (obs_dim, *hidden, action_dim))
    critic_weights = initial.mlp(generator, (obs_dim + action_dim, *hidden, 1), ensemble=1)
    actor, critic = Actor(actor_weights, device), Critic(critic_weights, device)
    return State(
        actor=actor,
        critic=critic,
        target_actor=Actor(actor_weights, device),
        target_critic=Critic(critic_weights, device),
        actor_optimizer=Adam(actor, config.actor_lr),
        critic_optimizer=Adam(critic, config.critic_lr),
        updates=0,
        device=device,
    )


@torch.no_grad()
def act(config: DDPGConfig, actor: Actor, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Actions (N, A) in [-1, 1] for obs (N, O) and standard normal noise (N, A)."""
    mean = actor(torch.from_numpy(obs).to(actor.flat.device)).cpu().numpy()
    return np.clip(mean + config.exploration_noise * noise, -1.0, 1.0, dtype=np.float32)


@torch.no_grad()
def td_target(
    config: DDPGConfig, target_actor: Actor, target_critic: Critic, batch: Batch
) -> Tensor:
    """y (B,) = r + gamma (1 - terminated) Q'(s', mu'(s'))."""
    next_action = target_actor(batch.next_obs)
    next_value = target_critic(batch.next_obs, next_action).squeeze(-2)  # (..., 1, B) -> (..., B)
    return batch.reward + config.gamma * (1.0 - batch.terminated) * next_value


def critic_loss(critic: Critic, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over critics of the mean squared TD error; also each one's error and mean Q, (E,)."""
    value = critic(batch.obs, batch.action)  # (..., E, B)
    error = (value - target.unsqueeze(-2)).square().mean(dim=-1)
    return error.sum(dim=-1), error, value.mean(dim=-1)


def actor_loss(actor: Actor, critic: Critic, obs: Tensor) -> Tensor:
    """-mean Q(s, mu(s)): the deterministic policy gradient (Silver et al. 2014, eq. 9)."""
    return -critic(obs, actor(obs)).squeeze(-2).mean(dim=-1)


def critic_step(config: DDPGConfig, state: State, batch: Batch) -> dict[str, Tensor]:
    """One gradient step of the critic."""
    target = td_target(config, state.target_actor, state.target_critic, batch)
    loss, error, value = critic_loss(state.critic, batch, target)
    state.critic_optimizer.minimize(loss)
    return {
        "losses/qf1_loss": error[..., 0].detach(),
        "losses/qf_loss": error.mean(dim=-1).detach(),
        "losses/qf1_values": value[..., 0].detach(),
    }


def actor_step(config: DDPGConfig, state: State, batch: Batch) -> dict[str, Tensor]:
    """One gradient step of the actor, then the targets follow."""
    loss = actor_loss(state.actor, state.critic.frozen(), batch.obs)
    state.actor_optimizer.minimize(loss)
    polyak_average(state.target_actor, state.actor, config.tau)
    polyak_average(state.target_critic, state.critic, config.tau)
    return {"losses/actor_loss": loss.detach()}


def update(
    config: DDPGConfig, state: State, batch: Batch, noise: np.ndarray
) -> tuple[State, dict[str, Tensor]]:
    """One update of the critic and every `policy_frequency`-th time of actor and targets.

    `noise` is empty, (0, B, A): DDPG's update is deterministic.
    """
    batch = tensors(batch, state.device)
    metrics = critic_step(config, state, batch)
    state.updates += 1
    if state.updates % config.policy_frequency == 0:
        metrics |= actor_step(config, state, batch)
    return state, metrics
