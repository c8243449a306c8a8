"""Saved agents: weights without code.

A folder with `model.safetensors` (float32 arrays by name) and `agent.json` (what they mean).
Loading reads numbers and text and executes nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from polyak import algorithms, runs
from polyak.algorithms import initial
from polyak.algorithms.configs import CONFIGS
from polyak.algorithms.initial import Weights
from polyak.algorithms.interface import Algorithm
from polyak.environments import PLAY, Environment, Spec, scale_action, seeds_for
from polyak.errors import PolyakError
from polyak.evaluation import Evaluation, Policy, evaluate
from polyak.settings import Setup

FORMAT = 1
WEIGHTS, INFO = "model.safetensors", "agent.json"


def save(
    path: Path,
    weights: Weights,
    setup: Setup,
    spec: Spec,
    step: int,
    results: Mapping[str, Evaluation],
) -> None:
    """Saves an agent in folder `path`, replacing one that is there.

    Args:
        path: a folder, made if need be.
        weights: as `Backend.export` gives them.
        setup: what it was trained with.
        spec: the environment it was trained in.
        step: environment steps it was trained for.
        results: evaluations by name, kept beside it.

    Raises:
        PolyakError: the folder cannot be written.
    """
    info: dict[str, Any] = {
        "format": FORMAT,
        "algorithm": setup.settings.algorithm,
        "backend": setup.settings.backend,
        "exp_name": setup.settings.exp_name,
        "env_id": spec.env_id,
        "seed": setup.settings.seed,
        "step": step,
        "obs_shape": list(spec.obs_shape),
        "action_shape": list(spec.action_shape),
        "action_dtype": spec.action_dtype,
        "action_low": spec.action_low.tolist(),
        "action_high": spec.action_high.tolist(),
        "config": dataclasses.asdict(setup.config),
        "results": {name: result._asdict() for name, result in results.items()},
        "versions": runs.versions(),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        temporary = path / (WEIGHTS + ".tmp")
        safetensors.numpy.save_file(weights, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path / WEIGHTS)
        runs.write_json(path / INFO, info)
    except (OSError, safetensors.SafetensorError) as error:
        raise PolyakError(f"cannot save the agent in {path}: {error}") from error


@dataclass(frozen=True)
class Agent:
    """A saved agent, ready to act."""

    info: dict[str, Any]
    spec: Spec
    _module: Algorithm
    _config: Any
    _actor: Any

    def act(self, obs: np.ndarray) -> np.ndarray:
        """The deterministic action in the environment's own units, shape and dtype.

        Args:
            obs: an observation of the environment's shape, or a batch of them on a leading axis.

        Raises:
            ValueError: the shape is neither.
        """
        obs = np.asarray(obs, dtype=np.float32)
        batched = obs.shape[1:] == self.spec.obs_shape
        if not batched and obs.shape != self.spec.obs_shape:
            raise ValueError(f"observation has shape {obs.shape}, not {self.spec.obs_shape}")
        rows = obs.reshape(-1, self.spec.obs_dim)
        noise = np.zeros((len(rows), self.spec.action_dim), np.float32)
        action = self._module.act(self._config, self._actor, rows, noise)
        scaled = scale_action(action, self.spec)
        return scaled if batched else scaled[0]

    def policy(self, generator: np.random.Generator | None = None) -> Policy:
        """Observation (O,) to action (A,) in [-1, 1]; see `policy`."""
        return policy(self._module, self._config, self._actor, self.spec.action_dim, generator)


def policy(
    module: Algorithm,
    config: Any,
    actor: Any,
    action_dim: int,
    generator: np.random.Generator | None = None,
) -> Policy:
    """An actor as a function of one observation: deterministic, or with `generator`'s noise."""
    noise = np.zeros((1, action_dim), np.float32)

    def act(obs: np.ndarray) -> np.ndarray:
        if generator is not None:
            generator.standard_normal(dtype=np.float32, out=noise)
        return module.act(config, actor, obs[None], noise)[0]

    return act


def load(path: str | Path, backend: str | None = None) -> Agent:
    """Loads a saved agent, or the final (else the best) one of a run folder.

    Args:
        path: a folder with `agent.json`, or a run folder.
        backend: compute with this library instead of the one that trained it.

    Raises:
        PolyakError: nothing there, damaged, or not what it says.
    """
    folder = find(Path(path))
    info = runs.read_json(folder / INFO)
    try:
        spec, config = _described(info)
    except (KeyError, TypeError, ValueError, PolyakError) as error:
        raise PolyakError(f"{folder / INFO} does not describe an agent: {error!r}") from error
    device = "cpu"  # one observation at a time is faster there
    backend = backend or info["backend"]
    module = algorithms.load(info["algorithm"], backend)
    hidden = (config.hidden_dim, config.hidden_dim)
    shapes = initial.shapes((spec.obs_dim, *hidden, config.actor_outputs * spec.action_dim))
    weights = _read_weights(folder / WEIGHTS, "actor.", shapes)
    return Agent(info, spec, module, config, module.Actor(weights, device))


def find(path: Path) -> Path:
    """The folder of the saved agent that `path` means: itself, or a run's `final` or `best`.

    Raises:
        PolyakError: there is none.
    """
    for folder in (path, path / "final", path / "best"):
        if (folder / INFO).is_file():
            return folder
    raise PolyakError(f"no saved agent in {path}: give a run folder or a folder with {INFO}")


def _described(info: dict[str, Any]) -> tuple[Spec, Any]:
    if info["format"] != FORMAT:
        raise ValueError(f"format {info['format']!r}; this version reads {FORMAT}")
    if (info["algorithm"], info["backend"]) not in algorithms.ALGORITHMS:
        raise ValueError(f"unknown algorithm {info['algorithm']!r} in {info['backend']!r}")
    config = CONFIGS[info["algorithm"]](**info["config"])
    spec = Spec(
        env_id=str(info["env_id"]),
        obs_shape=tuple(int(n) for n in info["obs_shape"]),
        action_shape=tuple(int(n) for n in info["action_shape"]),
        action_dtype=str(np.dtype(info["action_dtype"])),
        action_low=np.array(info["action_low"], dtype=np.float64),
        action_high=np.array(info["action_high"], dtype=np.float64),
    )
    if not spec.action_low.shape == spec.action_high.shape == (spec.action_dim,):
        raise ValueError("action bounds do not fit the action's shape")
    return spec, config


def _read_weights(path: Path, prefix: str, shapes: dict[str, tuple[int, ...]]) -> Weights:
    """The arrays under a prefix, after their names, types and shapes were found as expected."""
    weights: Weights = {}
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            for name, shape in shapes.items():
                if prefix + name not in names:
                    raise PolyakError(f"{path} has no {prefix + name}")
                entry = file.get_slice(prefix + name)
                if tuple(entry.get_shape()) != shape or entry.get_dtype() != "F32":
                    raise PolyakError(
                        f"{path}: {prefix + name} is {entry.get_dtype()} "
                        f"{tuple(entry.get_shape())}, not F32 {shape}"
                    )
                weights[name] = file.get_tensor(prefix + name)
    except FileNotFoundError as error:
        raise PolyakError(f"no {path}") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise PolyakError(f"{path} cannot be read as safetensors: {error}") from error
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise PolyakError(f"{path}: {prefix + name} holds numbers that are not finite")
    return weights


def evaluate_saved(
    path: str | Path,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    trust_env: bool = False,
) -> Evaluation:
    """Evaluates a saved agent, noise off.

    Args:
        path: see `load`.
        episodes: how many; by default as many as in its last evaluation, with the same seeds, which
            gives the same returns.
        seed: draws other episodes.
        trust_env: see `trusted_env_id`.

    Raises:
        PolyakError: no such agent, or its environment is not to be had.
    """
    agent = load(path)
    with closing(Environment(trusted_env_id(agent, trust_env))) as env:
        check_fits(agent, env.spec)
        return evaluate(agent.policy(), env, seeds(agent, episodes, seed))


def trusted_env_id(agent: Agent, trust: bool) -> str:
    """The agent's environment id.

    Raises:
        PolyakError: it names a module, which building it would import and so run, without `trust`.
    """
    env_id = agent.spec.env_id
    if ":" in env_id and not trust:
        raise PolyakError(
            f"the agent's environment {env_id!r} would run the module "
            f"{env_id.rpartition(':')[0]!r}: add --trust-env if that is yours"
        )
    return env_id


def check_fits(agent: Agent, spec: Spec) -> None:
    """Refuses an environment whose spaces are not those that the agent was trained in.

    Raises:
        PolyakError: shapes or action bounds differ.
    """
    for name in ("obs_shape", "action_shape", "action_low", "action_high"):
        trained, now = getattr(agent.spec, name), getattr(spec, name)
        if not np.array_equal(trained, now):
            raise PolyakError(
                f"{spec.env_id} has {name} {now}, but the agent was trained with {trained}"
            )


def seeds(agent: Agent, episodes: int | None, seed: int | None) -> list[int]:
    """Seeds to play: those of its last evaluation as far as they go, or new ones from `seed`."""
    result = agent.info["results"].get("evaluation")
    if seed is None and result and (episodes or 0) <= len(result["seeds"]):
        return [int(s) for s in result["seeds"][:episodes]]
    return seeds_for(agent.info["seed"] if seed is None else seed, PLAY, episodes or 10)
