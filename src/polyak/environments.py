"""Gymnasium environments as an agent sees them, and the only file that knows Gymnasium.

Agent side: observations are flat float32 vectors, actions lie in [-1, 1]. Environment side:
whatever `Box` the task has, any float dtype, shape and bounds. Nothing else in Polyak knows bounds.

Several environments are stepped one after another by a plain loop rather than by a Gymnasium
`VectorEnv`, whose autoreset modes hide an episode's last observation in three different places.
Here it is simply returned beside the first observation of the next episode.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import math
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space

from polyak import pusher, stopping
from polyak.errors import PolyakError
from polyak.replay import Replay

# An action bound beyond this is a sentinel for "unbounded" (float32's largest is 3.4e38): scaling
# [-1, 1] to it would make every action either zero or absurd.
LARGEST_BOUND = 1e30

DIVERGED = "training diverged: the policy's action is not finite"

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Replay stores rewards as float32."""


TRAINING, EVALUATION, FINAL, PLAY, RESUMED = range(5)
"""What environment seeds are for; see `seeds_for`."""


class Spec(NamedTuple):
    """What an algorithm and a saved agent need to know of an environment."""

    env_id: str
    obs_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    action_dtype: str
    action_low: np.ndarray
    """(A,) float64, in the environment's units."""
    action_high: np.ndarray
    """(A,) float64, in the environment's units."""

    @property
    def obs_dim(self) -> int:
        """O, the length of the flattened observation."""
        return math.prod(self.obs_shape)

    @property
    def action_dim(self) -> int:
        """A, the length of the flattened action."""
        return math.prod(self.action_shape)


def scale_action(action: np.ndarray, spec: Spec) -> np.ndarray:
    """Maps actions (..., A) in [-1, 1] to the environment's units, dtype and shape (..., *shape).

    The form low (1 - t) + high t is exact at both ends and cannot overflow, which the usual
    bias + scale * action is not and can. Clipped in float64 and then rounded: rounding keeps the
    order and the bounds are numbers of the box's dtype, so none of them is stepped over.
    """
    low, high = spec.action_low, spec.action_high
    t = np.multiply(action, 0.5, dtype=np.float64) + 0.5
    scaled = np.minimum(np.maximum(low * (1.0 - t) + high * t, low), high)
    return scaled.astype(spec.action_dtype).reshape((*action.shape[:-1], *spec.action_shape))


class Start(NamedTuple):
    """Where an episode began, so that it can begin there again."""

    seed: int | None
    """The last one that the environment was given."""
    generator: dict[str, Any] | None
    """State of its generator before the reset; None where the seed itself began the episode, empty
    where the state cannot be had."""


class Environment:
    """One environment: float32 observations (O,), actions (A,) in [-1, 1].

    Raises:
        PolyakError: unknown id, an environment that cannot be built, or a space it cannot use.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        self.env = _make(env_id, kwargs)
        try:
            obs_space = _observation_box(env_id, self.env.observation_space)
            action_space = _action_box(env_id, self.env.action_space)
        except PolyakError:
            self.env.close()
            raise
        self.start = Start(None, None)
        """Of the running episode."""
        self.spec = Spec(
            env_id=env_id,
            obs_shape=obs_space.shape,
            action_shape=action_space.shape,
            action_dtype=str(action_space.dtype),
            action_low=action_space.low.astype(np.float64).ravel(),
            action_high=action_space.high.astype(np.float64).ravel(),
        )

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        """The task itself, without Gymnasium's wrappers."""
        return self.env.unwrapped

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Begins an episode and returns its first observation (O,).

        With a seed, everything random in the environment restarts from it; without, the
        environment's own generator goes on.
        """
        own = None if seed is not None else _generator_state(self.unwrapped)
        self.start = Start(self.start.seed if seed is None else seed, own)
        obs, _ = self.env.reset(seed=seed)
        if seed is not None:
            self.env.action_space.seed(seed)
        return self._flat(obs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """One step with action (A,) in [-1, 1].

        Returns observation (O,), reward, terminated, truncated. After an end the caller resets.
        """
        obs, reward, terminated, truncated, _ = self.env.step(scale_action(action, self.spec))
        scalar = np.asarray(reward)
        if scalar.size != 1:
            raise PolyakError(f"{self.spec.env_id} returned {scalar.size} rewards at once")
        return self._flat(obs), float(scalar.item()), bool(terminated), bool(truncated)

    def repeat(
        self, start: Start, obs: np.ndarray, actions: np.ndarray, rewards: np.ndarray
    ) -> bool:
        """Plays the beginning of an episode again; says whether the environment answered the same.

        This restores more than a physics state can hold: Humanoid's reward compares positions that
        MuJoCo computed before its last substep, and any task may count in Python.

        Args:
            start: where the episode began, in this or another environment of the same id.
            obs: (L + 1, O) observations, those to act on and the newest.
            actions: (L, A) in [-1, 1].
            rewards: (L,) float32.
        """
        first = self.reset(start.seed)
        if start.generator is not None:
            # In place: parts of a task may hold the generator as well.
            self.unwrapped.np_random.bit_generator.state = start.generator
            first = self.reset()
        same = np.array_equal(first, obs[0])
        for action, reward, next_obs in zip(actions, rewards, obs[1:], strict=True):
            if same:
                answer, paid, terminated, truncated = self.step(action)
                same = np.array_equal(answer, next_obs) and np.float32(paid) == reward
                same = same and not terminated and not truncated
        return bool(same)

    def render(self) -> np.ndarray:
        """The present frame, (height, width, 3) uint8; needs render_mode="rgb_array"."""
        return np.asarray(self.env.render())

    def close(self) -> None:
        """Frees the environment and its windows."""
        self.env.close()

    @staticmethod
    def _flat(obs: Any) -> np.ndarray:
        # A copy: some environments return a view of a buffer that they overwrite at the next step.
        with np.errstate(over="ignore"):  # becomes inf, which `Environments` reports by its index
            return np.array(obs, dtype=np.float32).ravel()


class Episode(NamedTuple):
    """A finished episode."""

    step: int
    """The environment step, counted over all environments from 1, at which it ended."""
    episodic_return: float
    length: int


class Steps(NamedTuple):
    """One step of every environment. N environments, O observation; one row per environment."""

    obs: np.ndarray
    """(N, O) what to act on next: the first observation of the next episode after an end."""
    next_obs: np.ndarray
    """(N, O) what the action led to: the true last observation after an end."""
    reward: np.ndarray
    """(N,) float32."""
    terminated: np.ndarray
    """(N,) bool: the task ended, nothing follows."""
    truncated: np.ndarray
    """(N,) bool: a limit from outside cut the episode; values go on."""
    episodes: list[Episode]
    """Those that ended in this step, in the order of the environments."""


class Environments:
    """N environments stepped one after another; ended episodes restart by themselves.

    Args:
        env_id: any registered id, or `module:Env-v0`, where the module registers it when imported.
        seeds: one for each environment.
        first: the first environment, if it is to be a special one; it is closed with the others.

    Raises:
        PolyakError: see `Environment`.
    """

    def __init__(self, env_id: str, seeds: Sequence[int], first: Environment | None = None) -> None:
        self._envs = [first or Environment(env_id)]
        for _ in seeds[1:]:
            if stopping.asked():  # a thousand take half a minute
                raise KeyboardInterrupt
            self._envs.append(Environment(env_id))
        self._seeds = list(seeds)
        self.spec = self._envs[0].spec
        self.steps = 0
        self._returns = np.zeros(len(seeds))  # float64: float32 loses whole units on long episodes
        self._lengths = np.zeros(len(seeds), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._envs)

    def reset(self) -> np.ndarray:
        """Begins the first episode of every environment from its seed; observations (N, O)."""
        self._returns[:] = 0.0
        self._lengths[:] = 0
        obs = np.stack([env.reset(seed) for env, seed in zip(self._envs, self._seeds, strict=True)])
        for index in range(len(self)):
            self._check(index, obs[index])
        return obs

    def step(self, actions: np.ndarray) -> Steps:
        """One step of each environment with actions (N, A) in [-1, 1].

        Raises:
            PolyakError: an action, an observation or a reward is not finite.
        """
        n = len(self)
        if not np.isfinite(actions).all():
            env, index = np.argwhere(~np.isfinite(actions))[0]
            raise PolyakError(
                f"training diverged: action[{index}] is {actions[env, index]} at step "
                f"{self.steps + 1 + env} in environment {env}: lower --learning-rate"
            )
        next_obs = np.empty((n, self.spec.obs_dim), dtype=np.float32)
        reward = np.empty(n, dtype=np.float32)
        terminated = np.zeros(n, dtype=bool)
        truncated = np.zeros(n, dtype=bool)
        obs = next_obs
        episodes: list[Episode] = []
        for i, env in enumerate(self._envs):
            next_obs[i], r, terminated[i], truncated[i] = env.step(actions[i])
            self.steps += 1
            self._check(i, next_obs[i], r)
            reward[i] = r
            self._returns[i] += r
            self._lengths[i] += 1
            if terminated[i] or truncated[i]:
                episodes.append(Episode(self.steps, float(self._returns[i]), int(self._lengths[i])))
                self._returns[i] = 0.0
                self._lengths[i] = 0
                if obs is next_obs:
                    obs = next_obs.copy()
                obs[i] = env.reset()
                self._check(i, obs[i])
            elif obs is not next_obs:
                obs[i] = next_obs[i]
        return Steps(obs, next_obs, reward, terminated, truncated, episodes)

    def snapshot(self) -> dict[str, Any]:
        """Where every running episode stands, for `restore`; plain enough for JSON."""
        return {
            "steps": self.steps,
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "starts": [list(env.start) for env in self._envs],
        }

    def restore(self, saved: Mapping[str, Any], replay: Replay) -> tuple[np.ndarray, list[int]]:
        """Goes on where `snapshot` was taken, by playing the running episodes again.

        Args:
            saved: what `snapshot` gave.
            replay: as it was then. It holds what was observed and done in these episodes.

        Returns:
            Observations (N, O), and the indices of environments that did not answer the same, or
            whose episode had begun before the oldest row. Their episodes are cut in `replay` as by
            a time limit, and new ones have begun.
        """
        self.steps = saved["steps"]
        self._returns[:] = saved["returns"]
        self._lengths[:] = saved["lengths"]
        obs = np.empty((len(self), self.spec.obs_dim), np.float32)
        renewed = []
        for i, (env, start) in enumerate(zip(self._envs, saved["starts"], strict=True)):
            episode = replay.episode(i, int(self._lengths[i]))
            seen, actions, rewards = episode if episode else (obs[:0], obs[:0], obs[:0])
            begin = Start(int(start[0]), start[1])
            if int(start[0]) < 0:
                raise ValueError(f"seed {start[0]}")
            if episode and begin.generator != {} and env.repeat(begin, seen, actions, rewards):
                obs[i] = seen[-1]
                continue
            renewed.append(i)
            (seed,) = seeds_for(self._seeds[i] + self.steps, RESUMED, 1)
            obs[i] = env.reset(seed)
            self._check(i, obs[i])
            replay.cut(i, obs[i])
            self._returns[i], self._lengths[i] = 0.0, 0
        return obs, renewed

    def close(self) -> None:
        """Frees every environment."""
        for env in self._envs:
            env.close()

    def _check(self, index: int, obs: np.ndarray, reward: float = 0.0) -> None:
        if problem := flaw(obs, reward):
            raise PolyakError(
                f"{problem} at step {self.steps} in environment {index}: mend the task, whose "
                "numbers must be finite in float32"
            )


def flaw(obs: np.ndarray, reward: float = 0.0) -> str:
    """What is not finite, in words, or nothing. One such number poisons networks and replay."""
    if not abs(reward) <= LARGEST_REWARD:
        return f"reward is {reward}"
    if not np.isfinite(obs).all():
        bad = int(np.flatnonzero(~np.isfinite(obs))[0])
        return f"observation[{bad}] is {obs[bad]}"
    return ""


def seeds_for(seed: int, stream: int, count: int) -> list[int]:
    """`count` environment seeds; the streams `TRAINING`, `EVALUATION`, ... do not overlap.

    Spread by a hash, since seed + i would give run 1's second environment and run 2's first one the
    same episodes.
    """
    words = np.random.SeedSequence([seed, stream]).generate_state(count)
    return [int(word) & 0x7FFFFFFF for word in words]


def _generator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """State of a task's generator if it is Gymnasium's usual one, which JSON can hold; or empty."""
    generator = getattr(env, "np_random", None)
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else None
    return dict(bits.state) if isinstance(bits, np.random.PCG64) else {}


def caution(env_id: str) -> str | None:
    """One line that whoever trains on this task should know, or None."""
    return pusher.STOCK_WARNING if pusher.is_stock_pusher(env_id) else None


def _make(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    name = _registered_name(env_id)
    try:
        with warnings.catch_warnings():
            # Gymnasium warns that v4 is not the newest and that bounds are cast to float32: neither
            # is news to someone who asked for that task.
            warnings.simplefilter("ignore")
            if not _is_mujoco(name):  # other tasks draw in a size of their own
                kwargs = {k: v for k, v in kwargs.items() if k not in ("width", "height")}
            return gymnasium.make(name, disable_env_checker=True, **kwargs)
    except PolyakError:
        raise
    except Exception as error:  # whatever a third-party constructor raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PolyakError(f"environment {env_id!r} cannot be built: {reason}") from error


def _is_mujoco(name: str) -> bool:
    entry = str(gymnasium.registry[name].entry_point)
    return "mujoco" in entry or "polyak.pusher" in entry


def _registered_name(env_id: str) -> str:
    """The registered id behind `env_id`, or a PolyakError that says what to use instead."""
    pusher.register()
    module, _, name = env_id.rpartition(":")
    if not name:
        raise PolyakError(f"environment {env_id!r} has no name: give one such as Hopper-v5")
    if module:
        with contextlib.suppress(OSError):  # a working folder that is gone
            if (folder := str(Path.cwd())) not in sys.path:  # a file there will do
                sys.path.append(folder)
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # a user's module can fail in any way
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise PolyakError(
                f"module {module!r} of environment {env_id!r} cannot be imported ({reason}); "
                "is it installed, or in this folder?"
            ) from error
    task = re.sub(r"-v\d+$", "", name)
    if name == "Pusher-v4" and pusher.stock_v4_is_refused():
        raise PolyakError(pusher.V4_HINT)
    versions = [f"{task}-v5", f"{task}-v4"]
    if task == "Pusher":  # the stock ones are broken
        versions = [f"polyak/{version}" for version in versions]
    versions = [version for version in versions if version in gymnasium.registry]
    if name in gymnasium.registry:
        if re.search(r"-v[23]$", name) and _is_mujoco(name):
            raise PolyakError(
                f"environment {name!r} was removed from Gymnasium; use {' or '.join(versions)}"
            )
        return name
    known = [i for i in gymnasium.registry if _usable(i)]
    lower = {i.lower(): i for i in known}
    near = versions or [lower[i] for i in difflib.get_close_matches(name.lower(), lower, n=3)]
    hint = f"; did you mean {', '.join(near)}?" if near else "; is its package installed?"
    raise PolyakError(f"no environment {env_id!r}{hint}")


def _usable(name: str) -> bool:
    """Whether to suggest this id: not the removed MuJoCo versions, nor Gymnasium's JAX twins."""
    removed = re.search(r"-v[23]$", name) and _is_mujoco(name)
    return not removed and not name.startswith(("phys2d/", "tabular/"))


def _observation_box(env_id: str, space: Space[Any]) -> Box:
    if not isinstance(space, Box):
        raise PolyakError(
            f"{env_id} observes {_name(space)}; Polyak needs a Box: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation and register that"
        )
    if 0 in space.shape:
        raise PolyakError(f"{env_id} observes nothing: {_name(space)}")
    return space


def _action_box(env_id: str, space: Space[Any]) -> Box:
    if not isinstance(space, Box):
        raise PolyakError(
            f"{env_id} has action space {_name(space)}; DDPG, TD3 and SAC need a Box: choose a "
            "continuous-control task such as Pendulum-v1 or Hopper-v5"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise PolyakError(f"{env_id} has integer actions {_name(space)}; Polyak needs a float Box")
    if 0 in space.shape:
        raise PolyakError(f"{env_id} has an empty action space {_name(space)}")
    for index, (low, high) in enumerate(zip(space.low.ravel(), space.high.ravel(), strict=True)):
        box = f"{env_id} has action bounds [{low}, {high}] in dimension {index}"
        if not max(abs(float(low)), abs(float(high))) < LARGEST_BOUND:
            raise PolyakError(f"{box}, which is unbounded: give its action Box finite bounds")
        if not low < high:
            raise PolyakError(f"{box}, which leaves no choice: remove that dimension")
    return space


def _name(space: Space[Any]) -> str:
    return re.sub(r"\s+", " ", str(space))[:120]
