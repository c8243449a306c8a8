"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

a = clip(mu(s) + exploration_noise * N(0, 1), -1, 1); store (s, a, r, s', terminated)
critics:  a' = clip(mu'(s') + clip(policy_noise * N(0, 1), -noise_clip, noise_clip), -1, 1)
          y = r + gamma (1 - terminated) min_i Q_i'(s', a');  minimise mean (Q_i(s, a) - y)^2
every policy_frequency-th update:
    actor:    minimise -mean Q_1(s, mu(s))
    targets:  theta' <- (1 - tau) theta' + tau theta, for Q_i' and mu'
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyak.algorithms import initial
from polyak.algorithms.common_torch import MLP, Adam, polyak_average, tensor, tensors
from polyak.algorithms.configs import TD3Config
from polyak.algorithms.interface import Batch


class Actor(MLP):
    """mu(s), the deterministic policy."""

    def __call__(self, obs: Tensor) -> Tensor:
        """(B, O) -> (B, A) in [-1, 1]."""
        return torch.tanh(self.layers(obs))


class Critic(MLP):
    """Q_i(s, a): two independent critics, stacked."""

    def __call__(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B, O), (B, A) -> (E, B)."""
        return self.layers(obs, action).squeeze(-1)

    def first(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone: (B, O), (B, A) -> (B,)."""
        return self.layers(obs, action, only=0).squeeze(-1)


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
    config: TD3Config,
    obs_dim: int,
    action_dim: int,
    generator: np.random.Generator,
    device: torch.device,
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
        actor_optimizer=Adam(actor, config.actor_lr),
        critic_optimizer=Adam(critic, config.critic_lr),
        updates=0,
        device=device,
    )


@torch.no_grad()
def act(config: TD3Config, actor: Actor, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Actions (N, A) in [-1, 1] for obs (N, O) and standard normal noise (N, A)."""
    mean = actor(torch.from_numpy(obs).to(actor.flat.device)).cpu().numpy()
    return np.clip(mean + config.exploration_noise * noise, -1.0, 1.0, dtype=np.float32)


@torch.no_grad()
def td_target(
    config: TD3Config, target_actor: Actor, target_critic: Critic, batch: Batch, noise: Tensor
) -> Tensor:
    """y (B,) = r + gamma (1 - terminated) min_i Q_i'(s', a'), a' smoothed by `noise` (B, A)."""
    smoothing = (config.policy_noise * noise).clamp(-config.noise_clip, config.noise_clip)
    next_action = (target_actor(batch.next_obs) + smoothing).clamp(-1.0, 1.0)
    next_value = target_critic(batch.next_obs, next_action).amin(dim=-2)  # (..., E, B) -> (..., B)
    return batch.reward + config.gamma * (1.0 - batch.terminated) * next_value


def critic_loss(critic: Critic, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over critics of the mean squared TD error; also each one's error and mean Q, (E,)."""
    value = critic(batch.obs, batch.action)  # (..., E, B)
    error = (value - target.unsqueeze(-2)).square().mean(dim=-1)
    return error.sum(dim=-1), error, value.mean(dim=-1)


def actor_loss(actor: Actor, critic: Critic, obs: Tensor) -> Tensor:
    """-mean Q_1(s, mu(s)): the deterministic policy gradient (Silver et al. 2014, eq. 9)."""
    return -critic.first(obs, actor(obs)).mean(dim=-1)


def critic_step(config: TD3Config, state: State, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    """One gradient step of both critics."""
    target = td_target(config, state.target_actor, state.target_critic, batch, noise)
    loss, error, value = critic_loss(state.critic, batch, target)
    state.critic_optimizer.minimize(loss)
    return {
        "losses/qf1_loss": error[..., 0].detach(),
        "losses/qf2_loss": error[..., 1].detach(),
        "losses/qf_loss": error.mean(dim=-1).detach(),
        "losses/qf1_values": value[..., 0].detach(),
        "losses/qf2_values": value[..., 1].detach(),
    }


def actor_step(config: TD3Config, state: State, batch: Batch) -> dict[str, Tensor]:
    """One gradient step of the actor, then the targets follow."""
    loss = actor_loss(state.actor, state.critic.frozen(), batch.obs)
    state.actor_optimizer.minimize(loss)
    polyak_average(state.target_actor, state.actor, config.tau)
    polyak_average(state.target_critic, state.critic, config.tau)
    return {"losses/actor_loss": loss.detach()}


def update(
    config: TD3Config, state: State, batch: Batch, noise: np.ndarray
) -> tuple[State, dict[str, Tensor]]:
    """One update of the critics and every `policy_frequency`-th time of actor and targets.

    `noise` (1, B, A), standard normal, smooths the target policy.
    """
    batch = tensors(batch, state.device)
    smoothing = tensor(noise[0], state.device)
    metrics = critic_step(config, state, batch, smoothing)
    state.updates += 1
    if state.updates % config.policy_frequency == 0:
        metrics |= actor_step(config, state, batch)
    return state, metrics
