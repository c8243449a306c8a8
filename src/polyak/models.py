"""Saved agents: weights without code.

A folder with `model.safetensors` (float32 arrays by name) and `agent.json` (what they mean).
Loading reads numbers and text and executes nothing.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyak import algorithms, arrays, runs
from polyak.algorithms import initial
from polyak.algorithms.configs import Config
from polyak.algorithms.initial import Weights
from polyak.algorithms.interface import Algorithm
from polyak.environments import PLAY, Environment, Spec, scale_action, seeds_for
from polyak.errors import PolyakError
from polyak.evaluation import Evaluation, Policy, evaluate
from polyak.settings import Setup, read_config

FORMAT = 1
WEIGHTS, INFO = "model.safetensors", "agent.json"

LARGEST_SPACE = 10_000_000
"""Numbers in an observation or action beyond which a description is taken for damaged."""


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
        PolyakError: the folder cannot be written, or a weight is not finite.
    """
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise PolyakError(
                f"training diverged: {name} is not finite at step {step}: lower --learning-rate"
            )
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
        arrays.write(path / WEIGHTS, arrays.encode(weights))
        runs.write_json(path / INFO, info)
    except OSError as error:
        raise PolyakError(f"cannot save the agent in {path}: {error}") from error


def check_writable(path: Path) -> None:
    """Makes the folder that an agent will be saved in, before hours of training find that it can't.

    Raises:
        PolyakError: it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        trial = path / (WEIGHTS + ".tmp")
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise PolyakError(f"cannot save an agent in {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Agent:
    """A saved agent, ready to act."""

    info: dict[str, Any]
    spec: Spec
    weights: Weights
    """The actor's, as NumPy arrays: `0.weight` (out, in), `0.bias` (out,), `1.weight`, ..."""
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
        batched = obs.ndim == len(self.spec.obs_shape) + 1
        if obs.shape[int(batched) :] != self.spec.obs_shape:
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
        backend: compute with this library; by default with the one that trained it or, where that
            is not installed, with one that is.

    Raises:
        PolyakError: nothing there, damaged, or not what it says.
    """
    folder = find(Path(path))
    info = runs.read_json(folder / INFO)
    try:
        spec, config = _described(info)
    except KeyError as error:
        raise PolyakError(f"{folder / INFO} does not describe an agent: no {error}") from error
    except (TypeError, ValueError, AttributeError, PolyakError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PolyakError(f"{folder / INFO} does not describe an agent: {reason}") from error
    device = "cpu"  # one observation at a time is faster there
    if backend is None:
        known = (info["backend"], *algorithms.BACKENDS)
        backend = next((name for name in known if algorithms.installed(name)), info["backend"])
    module = algorithms.load(info["algorithm"], backend)
    hidden = (config.hidden_dim, config.hidden_dim)
    shapes = initial.shapes((spec.obs_dim, *hidden, config.actor_outputs * spec.action_dim))
    weights = _read_weights(folder / WEIGHTS, "actor.", shapes)
    return Agent(info, spec, weights, module, config, module.Actor(weights, device))


def find(path: Path) -> Path:
    """The folder of the saved agent that `path` means: itself, or a run's `final` or `best`.

    Raises:
        PolyakError: there is none.
    """
    for folder in (path, path / "final", path / "best"):
        if (folder / INFO).is_file():
            return folder
    raise PolyakError(f"no saved agent in {path}: give a run folder or a folder with {INFO}")


def _described(info: dict[str, Any]) -> tuple[Spec, Config]:
    """What `agent.json` says, after everything in it was found to be of its kind and size.

    Raises:
        ValueError, KeyError, TypeError, PolyakError: something is not.
    """
    if info["format"] != FORMAT:
        raise ValueError(f"format {info['format']!r}; this version reads {FORMAT}")
    algorithm, backend = info["algorithm"], info["backend"]
    if (algorithm, backend) not in algorithms.ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r} in {backend!r}")
    config = read_config(algorithm, info["config"])
    dtype = np.dtype(_text("action_dtype", info["action_dtype"]))
    if dtype.kind != "f":
        raise ValueError(f"action_dtype {dtype} is no float")
    bounds = {
        name: np.array([_number(name, value) for value in info[name]], np.float64)
        for name in ("action_low", "action_high")
    }
    spec = Spec(
        env_id=_text("env_id", info["env_id"]),
        obs_shape=_shape("obs_shape", info["obs_shape"]),
        action_shape=_shape("action_shape", info["action_shape"]),
        action_dtype=dtype.name,
        action_low=bounds["action_low"],
        action_high=bounds["action_high"],
    )
    if not spec.action_low.shape == spec.action_high.shape == (spec.action_dim,):
        raise ValueError("action bounds do not fit the action's shape")
    if not (spec.action_low < spec.action_high).all():
        raise ValueError("action bounds are not in order")
    _whole("seed", info["seed"])
    if not isinstance(info["results"], dict):
        raise TypeError("results are no object")
    for result in info["results"].values():
        for seed, value in zip(result["seeds"], result["returns"], strict=True):
            _whole("a result's seed", seed)
            _number("a result's return", value)
    return spec, config


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a whole number")
    return value


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a finite number")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {str(value)[:40]!r}, not text")
    return value


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 32:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a shape")
    shape = tuple(_whole(name, length) for length in value)
    if not 1 <= math.prod(shape) <= LARGEST_SPACE:
        raise ValueError(f"{name} {shape} is empty or too large")
    return shape


def _read_weights(path: Path, prefix: str, shapes: dict[str, tuple[int, ...]]) -> Weights:
    """The arrays under a prefix, after their names, types and shapes were found as expected."""
    weights: Weights = {}
    with arrays.opened(path) as file:
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
    backend: str | None = None,
) -> Evaluation:
    """Evaluates a saved agent, noise off.

    Args:
        path: see `load`.
        episodes: how many; by default as many as in its last evaluation, with the same seeds, which
            gives the same returns if it was trained on a CPU too.
        seed: draws other episodes.
        trust_env: see `trusted_env_id`.
        backend: see `load`.

    Raises:
        PolyakError: no such agent, or its environment is not to be had.
    """
    agent = load(path, backend)
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
