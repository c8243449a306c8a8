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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polyak.algorithms import initial
from polyak.algorithms.common_torch import MLP, Adam, Scalar, polyak_average, tensor, tensors
from polyak.algorithms.configs import SACConfig
from polyak.algorithms.interface import Batch

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Actor(MLP):
    """pi(a|s): a Gaussian squashed by tanh."""

    def __call__(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, O) -> mean (B, A) and log standard deviation (B, A) before the squashing."""
        mean, raw = self.layers(obs).chunk(2, dim=-1)
        # A smooth squash: clamping would leave no gradient at the bounds.
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(raw) + 1.0)
        return mean, log_std

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action (B, A) in [-1, 1] and its log-density (B,), from standard normal noise (B, A).

        Reparametrised: u = mean + std * noise, a = tanh(u) (Haarnoja et al. 2018, appendix C),
        with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which is exact where tanh
        saturates. The density is that of the action in [-1, 1], whatever the environment's bounds.
        """
        mean, log_std = self(obs)
        u = mean + log_std.exp() * noise
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
        log_slope = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
        return torch.tanh(u), (log_normal - log_slope).sum(dim=-1)


class Critic(MLP):
    """Q_i(s, a): two independent critics, stacked."""

    def __call__(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B, O), (B, A) -> (E, B)."""
        return self.layers(obs, action).squeeze(-1)


@dataclass
class State:
    """Everything that learns."""

    actor: Actor
    critic: Critic
    target_critic: Critic
    log_alpha: Scalar
    actor_optimizer: Adam
    critic_optimizer: Adam
    alpha_optimizer: Adam
    updates: int
    device: torch.device


def init(
    config: SACConfig,
    obs_dim: int,
    action_dim: int,
    generator: np.random.Generator,
    device: torch.device,
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
        actor_optimizer=Adam(actor, config.actor_lr),
        critic_optimizer=Adam(critic, config.critic_lr),
        alpha_optimizer=Adam(log_alpha, config.critic_lr),
        updates=0,
        device=device,
    )


@torch.no_grad()
def act(config: SACConfig, actor: Actor, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Actions (N, A) in [-1, 1] for obs (N, O) and standard normal noise (N, A)."""
    del config  # the policy brings its own noise scale
    device = actor.flat.device
    mean, log_std = actor(torch.from_numpy(obs).to(device))
    action = torch.tanh(mean + log_std.exp() * torch.from_numpy(noise).to(device))
    return action.cpu().numpy()


@torch.no_grad()
def td_target(
    config: SACConfig,
    actor: Actor,
    target_critic: Critic,
    alpha: Tensor,
    batch: Batch,
    noise: Tensor,
) -> Tensor:
    """y (B,) = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s'))."""
    next_action, log_prob = actor.sample(batch.next_obs, noise)
    next_value = target_critic(batch.next_obs, next_action).amin(dim=-2)  # (..., E, B) -> (..., B)
    soft_value = next_value - alpha.unsqueeze(-1) * log_prob
    return batch.reward + config.gamma * (1.0 - batch.terminated) * soft_value


def critic_loss(critic: Critic, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over critics of the mean squared TD error; also each one's error and mean Q, (E,)."""
    value = critic(batch.obs, batch.action)  # (..., E, B)
    error = (value - target.unsqueeze(-2)).square().mean(dim=-1)
    return error.sum(dim=-1), error, value.mean(dim=-1)


def actor_loss(
    actor: Actor, critic: Critic, alpha: Tensor, obs: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean (alpha log pi(a|s) - min_i Q_i(s, a)), a ~ pi(s); also log pi (B,)."""
    action, log_prob = actor.sample(obs, noise)
    value = critic(obs, action).amin(dim=-2)  # (..., E, B) -> (..., B)
    return (alpha.unsqueeze(-1) * log_prob - value).mean(dim=-1), log_prob


def alpha_loss(log_alpha: Scalar, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Mean -alpha (log pi + target entropy): alpha grows while the entropy is below its target."""
    alpha = log_alpha().exp()
    return -(alpha.unsqueeze(-1) * (log_prob.detach() + target_entropy)).mean(dim=-1)


def critic_step(config: SACConfig, state: State, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    """One gradient step of both critics."""
    alpha = state.log_alpha().detach().exp()
    target = td_target(config, state.actor, state.target_critic, alpha, batch, noise)
    loss, error, value = critic_loss(state.critic, batch, target)
    state.critic_optimizer.minimize(loss)
    return {
        "losses/qf1_loss": error[..., 0].detach(),
        "losses/qf2_loss": error[..., 1].detach(),
        "losses/qf_loss": error.mean(dim=-1).detach(),
        "losses/qf1_values": value[..., 0].detach(),
        "losses/qf2_values": value[..., 1].detach(),
    }


def actor_step(config: SACConfig, state: State, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
    """One gradient step of the actor, then one of alpha on the same actions."""
    alpha = state.log_alpha().detach().exp()
    loss, log_prob = actor_loss(state.actor, state.critic.frozen(), alpha, batch.obs, noise)
    state.actor_optimizer.minimize(loss)
    metrics = {"losses/actor_loss": loss.detach(), "losses/alpha": alpha}
    if config.autotune:
        loss = alpha_loss(state.log_alpha, log_prob, target_entropy=-float(noise.shape[-1]))
        state.alpha_optimizer.minimize(loss)
        metrics["losses/alpha_loss"] = loss.detach()
    return metrics


def update(
    config: SACConfig, state: State, batch: Batch, noise: np.ndarray
) -> tuple[State, dict[str, Tensor]]:
    """One update of the critics and, when they are due, of actor, alpha and targets.

    `noise` (1 + policy_frequency, B, A), standard normal: the first for the next action, the others
    for the updates of the actor, which come `policy_frequency` at a time so that it is updated as
    often as the critics.
    """
    batch = tensors(batch, state.device)
    draws = tensor(noise, state.device)
    metrics = critic_step(config, state, batch, draws[0])
    state.updates += 1
    if state.updates % config.policy_frequency == 0:
        for draw in draws[1:]:
            metrics |= actor_step(config, state, batch, draw)
    if state.updates % config.target_network_frequency == 0:
        polyak_average(state.target_critic, state.critic, config.tau)
    return state, metrics
