"""Every algorithm in every backend as one kind of thing, and numbers to try it on."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import polyak
from polyak import algorithms
from polyak.algorithms.configs import CONFIGS
from polyak.algorithms.interface import Batch
from polyak.runs import Run
from tests.maths.reference import Networks, Weights, forward, single, stack, unstack

OBS = 4
HIDDEN = 6


@dataclass(frozen=True)
class Case:
    """An algorithm in a backend. Takes and gives NumPy arrays; networks as in `reference`."""

    algorithm: str
    backend: str
    module: Any
    adapter: Any

    @property
    def critics(self) -> int:
        return 1 if self.algorithm == "ddpg" else 2

    def config(self, **settings: Any) -> Any:
        return CONFIGS[self.algorithm](**{"hidden_dim": HIDDEN} | settings)

    def td_target(self, config: Any, nets: Networks, batch: Batch, noise: np.ndarray) -> np.ndarray:
        """y, with whatever networks this algorithm's targets are made of."""
        policy = nets.actor if self.algorithm == "sac" else nets.target_actor
        arguments = [self.actor(policy), self.critic(nets.target_critics)]
        if self.algorithm == "sac":
            arguments.append(self.adapter.tensor(np.exp(nets.log_alpha)))
        arguments.append(self.adapter.batch(batch))
        if self.algorithm != "ddpg":
            arguments.append(self.adapter.tensor(noise))
        result: np.ndarray = self.adapter.array(self.module.td_target(config, *arguments))
        return result

    def critic_loss(self, critic: Any, batch: Batch, target: np.ndarray) -> Any:
        """What the module returns, still in the backend."""
        return self.module.critic_loss(
            critic, self.adapter.batch(batch), self.adapter.tensor(target)
        )

    def actor_loss(self, actor: Any, nets: Networks, obs: np.ndarray, noise: np.ndarray) -> Any:
        """The loss, and with SAC the log-densities, still in the backend."""
        arguments = [actor, self.critic(nets.critics)]
        if self.algorithm == "sac":
            arguments.append(self.adapter.tensor(np.exp(nets.log_alpha)))
        arguments.append(self.adapter.tensor(obs))
        if self.algorithm == "sac":
            arguments.append(self.adapter.tensor(noise))
        return self.module.actor_loss(*arguments)

    def actor(self, weights: Weights) -> Any:
        return self.module.Actor(single(weights), self.adapter.DEVICE)

    def critic(self, weights: list[Weights]) -> Any:
        return self.module.Critic(single(stack(weights)), self.adapter.DEVICE)

    def act(self, config: Any, actor: Weights, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        result: np.ndarray = self.module.act(
            config, self.actor(actor), obs.astype(np.float32), noise.astype(np.float32)
        )
        return result

    def init(self, config: Any, obs_dim: int = OBS, action_dim: int = 2, seed: int = 0) -> Any:
        generator = np.random.default_rng(seed)
        return self.module.init(config, obs_dim, action_dim, generator, self.adapter.DEVICE)

    def state(self, config: Any, nets: Networks) -> Any:
        """A new state with these networks."""
        actions = len(nets.actor["2.bias"]) // config.actor_outputs
        state = self.init(config, nets.actor["0.weight"].shape[1], actions)
        state = self.adapter.write(state, "actor", nets.actor)
        state = self.adapter.write(state, "critic", stack(nets.critics))
        state = self.adapter.write(state, "target_critic", stack(nets.target_critics))
        if self.algorithm == "sac":
            return self.adapter.write_log_alpha(state, nets.log_alpha)
        return self.adapter.write(state, "target_actor", nets.target_actor)

    def read(self, state: Any) -> dict[str, np.ndarray]:
        """All that learns, by name: `actor.0.weight`, ..., `log_alpha.`."""
        names = ["actor", "critic", "target_critic"]
        names += [] if self.algorithm == "sac" else ["target_actor"]
        found = {
            f"{name}.{key}": array
            for name in names
            for key, array in self.adapter.read(getattr(state, name)).items()
        }
        if self.algorithm == "sac":
            found["log_alpha."] = np.array(self.adapter.log_alpha(state))
        return found

    def update(self, config: Any, state: Any, batch: Batch, noise: np.ndarray) -> tuple[Any, Any]:
        """One update from float32 arrays; returns state and metrics as numbers."""
        rows = Batch(*(np.array(array, np.float32) for array in batch))
        state, metrics = self.module.update(config, state, rows, noise.astype(np.float32))
        return state, {name: float(value) for name, value in metrics.items()}


def load(algorithm: str, backend: str) -> Case:
    adapter = importlib.import_module(f"tests.maths.adapter_{backend}")
    return Case(algorithm, backend, algorithms.load(algorithm, backend), adapter)


def only(*names: str) -> pytest.MarkDecorator:
    """Runs a test on some algorithms instead of all, in every backend."""
    pairs = [pair for pair in algorithms.ALGORITHMS if pair[0] in names]
    return pytest.mark.parametrize("case", pairs, indirect=True, ids="-".join)


def draw_mlp(rng: np.random.Generator, *sizes: int) -> Weights:
    """Weights that float32 holds exactly, so that both sides compute with the same."""
    weights: Weights = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"{layer}.weight"] = rng.normal(0.0, inputs**-0.5, (outputs, inputs))
        weights[f"{layer}.bias"] = rng.normal(0.0, 0.3, outputs)
    return {name: array.astype(np.float32).astype(np.float64) for name, array in weights.items()}


def draw_networks(case: Case, action_dim: int, seed: int = 2, gap: float = 0.0) -> Networks:
    """Networks that have nothing in common; the last critic lies `gap` above the first."""
    rng = np.random.default_rng(seed)
    outputs = action_dim * (2 if case.algorithm == "sac" else 1)
    nets = Networks(
        actor=draw_mlp(rng, OBS, HIDDEN, HIDDEN, outputs),
        critics=[draw_mlp(rng, OBS + action_dim, HIDDEN, HIDDEN, 1) for _ in range(case.critics)],
        target_actor=draw_mlp(rng, OBS, HIDDEN, HIDDEN, outputs),
        target_critics=[
            draw_mlp(rng, OBS + action_dim, HIDDEN, HIDDEN, 1) for _ in range(case.critics)
        ],
        log_alpha=-0.5,
    )
    for critics in (nets.critics, nets.target_critics):
        for critic in critics:  # around the same height, so that they cross often
            inputs = rng.normal(size=(50, OBS + action_dim))
            mean = np.mean([forward(critic, x)[0] for x in inputs])
            critic["2.bias"] -= mean.astype(np.float32)
        critics[-1]["2.bias"] += gap
    return nets


def draw_batch(size: int, action_dim: int, seed: int = 1) -> Batch:
    """Transitions of which some ended, float64 numbers that float32 holds exactly."""
    rng = np.random.default_rng(seed)
    arrays = (
        rng.normal(size=(size, OBS)),
        rng.uniform(-1.0, 1.0, (size, action_dim)),
        rng.normal(0.0, 2.0, size),
        rng.normal(size=(size, OBS)),
        (np.arange(size) % 3 == 1),
    )
    return Batch(*(array.astype(np.float32).astype(np.float64) for array in arrays))


def draw_noise(*shape: int, seed: int = 2) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return noise.astype(np.float64)


def zeros(*sizes: int) -> Weights:
    weights = draw_mlp(np.random.default_rng(0), *sizes)
    return {name: np.zeros_like(array) for name, array in weights.items()}


def constant_actor(outputs: np.ndarray) -> Weights:
    """A network that answers the same to everything: before the tanh, where there is one."""
    weights = zeros(OBS, HIDDEN, HIDDEN, len(outputs))
    return weights | {"2.bias": np.asarray(outputs, np.float64)}


def reading_critic(action_dim: int, dim: int) -> Weights:
    """A critic with Q(s, a) = a[dim], to see which actions it was asked about."""
    weights = zeros(OBS + action_dim, HIDDEN, HIDDEN, 1)
    weights["0.weight"][:2, OBS + dim] = (1.0, -1.0)  # the positive and the negative part
    weights["1.weight"][:2, :2] = np.eye(2)
    weights["2.weight"][0, :2] = (1.0, -1.0)
    return weights


def train(case: Case, env_id: str, folder: Path, **settings: Any) -> Run:
    """A small run through the public function, on one core and without evaluations."""
    chosen = {"hidden_dim": 8, "batch_size": 8, "eval_interval": 0, "seed": 3} | settings
    return polyak.train(
        case.algorithm,
        backend=case.backend,
        env_id=env_id,
        device="cpu",
        runs_dir=str(folder),
        **chosen,
    )


def trained(run: Run) -> dict[str, np.ndarray]:
    """The final weights: `actor.0.weight`, `critic.0.bias`, ..."""
    weights: dict[str, np.ndarray] = load_file(run.path / "final" / "model.safetensors")
    return weights


def trained_critics(run: Run) -> list[Weights]:
    prefix = "critic."
    weights = {k.removeprefix(prefix): w for k, w in trained(run).items() if k.startswith(prefix)}
    return unstack({name: w.astype(np.float64) for name, w in weights.items()})
