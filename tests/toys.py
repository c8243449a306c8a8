"""Small environments whose every transition and every value can be worked out by hand.

Importing this module registers them as `toys/NAME-v0` (reachable as `tests.toys:toys/NAME-v0` from
a process that has not imported it); `register` makes variants. Every toy refuses an action outside
its box, of another dtype or of another shape, so that whatever runs on one tests that too.

Steps are counted from 1, like everywhere in Polyak. A `log` (`list.append`, say) is called with a
copy of every action that arrives; Gymnasium copies keyword arguments, but not functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box

PREFIX = "tests.toys:"
"""Before an id, this makes Polyak import this module: `PREFIX + "toys/Counter-v0"`."""

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

Log = Callable[[np.ndarray], object]


class Toy(gymnasium.Env[Any, Any]):
    """What the toys share: counting, the check of actions, a picture."""

    metadata = METADATA

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        log: Log | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.render_mode = render_mode
        self.log = log
        self.seed: int | None = None  # the last one that `reset` was given
        self.episode = -1  # the first is 0
        self.t = 0  # steps taken in this episode
        self.steps = 0  # steps taken in all episodes

    def first(self) -> Any:
        """The first observation of an episode."""
        raise NotImplementedError

    def move(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Observation, reward, terminated, truncated; `t` and `steps` already count this step."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed = seed
        self.episode += 1
        self.t = 0
        return self.first(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.action_space, Box):
            if not (isinstance(action, np.ndarray) and action.dtype == self.action_space.dtype):
                raise TypeError(f"action {action!r} is no {self.action_space.dtype} array")
            if not self.action_space.contains(action):
                raise ValueError(f"action {action} is not in {self.action_space}")
        if self.log is not None:
            self.log(np.copy(action))
        self.t += 1
        self.steps += 1
        return *self.move(action), {}

    def render(self) -> Any:
        """Grey, brighter with every step of the episode."""
        return np.full((48, 64, 3), min(10 * self.t, 255), np.uint8)


def _box(
    low: Any = -1.0, high: Any = 1.0, shape: tuple[int, ...] = (1,), dtype: Any = np.float32
) -> Box:
    """A box whose bounds may differ by dimension, and the shape's where they are numbers."""
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (low, high))
    return Box(low, high, dtype=dtype)


def _free(size: int) -> Box:
    return _box(-np.inf, np.inf, (size,))


class Counter(Toy):
    """obs = [episode, t]; acting on it gives reward t and leads to [episode, t + 1].

    Truncates at T. With t counted from 0, a stored transition can be judged by itself:
    `obs[1] == reward < T`, `next_obs == obs + [0, 1]`, never terminated. `apart` numbers the
    episodes from 1000 times a number below 1000 that the seed gives, so that several environments
    can be told from each other (`Counter.start`). `uneven` makes episode k last T + k % 3 steps.
    """

    def __init__(
        self, length: int = 5, *, apart: bool = False, uneven: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(_free(2), _box(), **kwargs)
        self.length, self.apart, self.uneven = length, apart, uneven

    @staticmethod
    def start(seed: int) -> int:
        """Number of the first episode of an environment with `apart` and this seed."""
        return 1000 * (seed % 1000)

    def first(self) -> np.ndarray:
        start = self.start(self.seed) if self.apart and self.seed is not None else 0
        return np.array([start + self.episode, self.t], np.float32)

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        length = self.length + (self.episode % 3 if self.uneven else 0)
        return self.first(), self.t - 1.0, False, self.t >= length


class Const(Toy):
    """Reward 1 at every step, always the same observation; truncates at T.

    Whatever the agent does, Q = 1 / (1 - gamma): time limits do not end anything.
    """

    terminates, truncates = False, True

    def __init__(self, length: int = 5, *, action_dim: int = 1, **kwargs: Any) -> None:
        super().__init__(_free(1), _box(shape=(action_dim,)), **kwargs)
        self.length = length

    def first(self) -> np.ndarray:
        return np.ones(1, np.float32)

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        end = self.t >= self.length
        return self.first(), 1.0, end and self.terminates, end and self.truncates


class ConstTerm(Const):
    """`Const` that terminates at T.

    The observation does not tell how far the episode is, so one step in T ends it:
    Q = 1 / (1 - gamma (1 - 1/T)).
    """

    terminates, truncates = True, False


class Both(Const):
    """`Const` that terminates and truncates on one step: nothing follows, as in `ConstTerm`."""

    terminates, truncates = True, True


class One(Toy):
    """Episodes of one step with reward -sum (a - target)^2, in units of the action box."""

    def __init__(
        self,
        low: Sequence[float] = (-1.0, 0.0, -3.0),
        high: Sequence[float] = (1.0, 5.0, -2.0),
        target: Sequence[float] = (0.5, 1.0, -2.25),
        **kwargs: Any,
    ) -> None:
        super().__init__(_free(1), _box(low, high, (len(low),)), **kwargs)
        self.target = np.asarray(target)

    def first(self) -> np.ndarray:
        return np.ones(1, np.float32)

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        return self.first(), -float(np.square(action - self.target).sum()), True, False


class Delayed(Toy):
    """Two steps: the first action is what counts, but it is paid for by the second step.

    [0, 0] -> [1, a] with reward 0, then reward 1 - (a - target)^2, whatever is done there, and the
    end. So Q([0, 0], a) = gamma (1 - (a - target)^2).
    """

    def __init__(self, target: float = 0.5, **kwargs: Any) -> None:
        super().__init__(_free(2), _box(), **kwargs)
        self.target = target
        self.chosen = 0.0

    def first(self) -> np.ndarray:
        return np.zeros(2, np.float32)

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        if self.t == 1:
            self.chosen = float(action[0])
            return np.array([1.0, self.chosen], np.float32), 0.0, False, False
        obs = np.array([2.0, self.chosen], np.float32)
        return obs, 1.0 - (self.chosen - self.target) ** 2, True, False


class Twin(Toy):
    """A point in the plane, pushed; the same task whatever the units of its action.

    The action box is [shift - scale, shift + scale] in both dimensions (a number, or one for each).
    Inside, the action is brought back to [-1, 1] and rounded to sixteenths: what rounding in the
    box's units did to the last bits is gone, so that twins answer bit by bit the same.
    """

    def __init__(
        self,
        scale: float | Sequence[float] = 1.0,
        shift: float | Sequence[float] = 0.0,
        *,
        length: int = 20,
        dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        self.scale = np.broadcast_to(np.asarray(scale, np.float64), (2,))
        self.shift = np.broadcast_to(np.asarray(shift, np.float64), (2,))
        box = _box(self.shift - self.scale, self.shift + self.scale, (2,), np.dtype(dtype))
        super().__init__(_free(4), box, **kwargs)
        self.length = length
        self.point = self.speed = np.zeros(2)

    def first(self) -> np.ndarray:
        self.point = self.np_random.uniform(-1.0, 1.0, 2)
        self.speed = np.zeros(2)
        return self._obs()

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        push = np.round((action.astype(np.float64) - self.shift) / self.scale * 16.0) / 16.0
        self.speed = 0.8 * self.speed + 0.2 * push
        self.point = self.point + self.speed
        away = float(np.abs(self.point).max()) > 4.0
        reward = -float(np.square(self.point).sum() + 0.1 * np.square(push).sum())
        return self._obs(), reward, away, not away and self.t >= self.length

    def _obs(self) -> np.ndarray:
        return np.concatenate([self.point, self.speed]).astype(np.float32)


class Poison(Toy):
    """`Const` with a bad number at step k of the environment, counted over its episodes.

    Args:
        k: the step; 0 is the first reset.
        field: `reward`, `obs` (its last element), or `reset` (the observation of the first reset
            at or after step k).
        value: `nan`, `inf` or `-inf`, or a number.
        seed: only an environment that was reset with this seed is poisoned; None means all.
        length: of an episode.
    """

    def __init__(
        self,
        k: int = 10,
        field: str = "reward",
        value: float | str = "nan",
        *,
        seed: int | None = None,
        length: int = 5,
        **kwargs: Any,
    ) -> None:
        if field not in ("reward", "obs", "reset"):
            raise ValueError(f"no field {field!r}")
        super().__init__(_free(3), _box(), **kwargs)
        self.k, self.field, self.value = k, field, float(value)
        self.only, self.length = seed, length

    def first(self) -> np.ndarray:
        return self._obs(self.field == "reset" and self.steps >= self.k)

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        now = self.steps == self.k
        reward = self.value if now and self.field == "reward" and self._chosen() else 1.0
        return self._obs(now and self.field == "obs"), reward, False, self.t >= self.length

    def _chosen(self) -> bool:
        return self.only is None or self.only == self.seed

    def _obs(self, poisoned: bool) -> np.ndarray:
        return np.array([1.0, 1.0, self.value if poisoned and self._chosen() else 1.0], np.float32)


def _shaped(dtype: Any, shape: tuple[int, ...] = (2, 3)) -> tuple[Box, Box]:
    return _box(-np.inf, np.inf, shape, dtype), _box(-2.0, 4.0, shape, dtype)


USABLE: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "Float64": _shaped(np.float64, (3,)),
    "Float16": _shaped(np.float16, (3,)),
    "Shaped": _shaped(np.float32),
    "Shaped64": _shaped(np.float64),
    "Scalar": _shaped(np.float32, ()),
    "Uint8Obs": (_box(0, 255, (4, 4, 3), np.uint8), _box()),
    "Huge": (_free(3), _box(-1e20, 1e25, (2,))),
    "Tiny": (_free(3), _box(1.0, 1.0 + 2.0**-20, (2,))),
}
"""Observation and action space of `Spaces` environments that an agent can use."""

REFUSED: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "DiscreteAction": (_free(3), spaces.Discrete(4)),
    "DictAction": (_free(3), spaces.Dict({"arm": _box()})),
    "TupleAction": (_free(3), spaces.Tuple((_box(), _box()))),
    "MultiDiscreteAction": (_free(3), spaces.MultiDiscrete([2, 3])),
    "IntegerAction": (_free(3), _box(-2, 2, (2,), np.int64)),
    "EmptyAction": (_free(3), _box(shape=(0,))),
    "DiscreteObs": (spaces.Discrete(4), _box()),
    "DictObs": (spaces.Dict({"eye": _free(2), "ear": _free(1)}), _box()),
    "EmptyObs": (_free(0), _box()),
    "Infinite": (_free(3), _box(-np.inf, np.inf, (2,))),
    "HalfInfinite": (_free(3), _box([-1.0, 0.0], [1.0, np.inf], (2,))),
    "Sentinel": (_free(3), _box(-3.4e38, 3.4e38, (2,))),
    "ZeroWidth": (_free(3), _box([-1.0, 2.0], [1.0, 2.0], (2,))),
}
"""The same for spaces that must be refused before training begins."""


class Spaces(Toy):
    """Random observations from one of the spaces above; reward 1; truncates at T."""

    def __init__(self, kind: str = "Shaped", *, length: int = 5, **kwargs: Any) -> None:
        super().__init__(*(USABLE | REFUSED)[kind], **kwargs)
        self.length = length

    def first(self) -> Any:
        space = self.observation_space
        if not isinstance(space, Box):
            return space.sample()
        dtype: Any = space.dtype
        return np.asarray(self.np_random.integers(0, 5, space.shape)).astype(dtype)

    def move(self, action: Any) -> tuple[Any, float, bool, bool]:
        return self.first(), 1.0, False, self.t >= self.length


TOYS: Mapping[str, Callable[..., Toy]] = {
    toy.__name__: toy
    for toy in (Counter, Const, ConstTerm, Both, One, Delayed, Twin, Poison, Spaces)
}
_numbers = itertools.count(1)


def register(toy: str, **kwargs: Any) -> str:
    """Registers a variant of a toy in this process; returns its id, new at every call.

    `register("Counter", length=7)`, `register("Poison", field="obs", log=actions.append)`.
    """
    name = f"toys/{toy}{next(_numbers)}-v0"
    gymnasium.register(name, entry_point=TOYS[toy], kwargs=kwargs)
    return name


def spaces_id(kind: str) -> str:
    """The id of the `Spaces` environment with one of the spaces `USABLE` or `REFUSED`."""
    return f"toys/Spaces{kind}-v0"


def _register_all() -> None:
    ids: dict[str, tuple[Callable[..., Toy], dict[str, Any]]] = {
        f"toys/{name}-v0": (toy, {}) for name, toy in TOYS.items()
    }
    ids |= {spaces_id(kind): (Spaces, {"kind": kind}) for kind in USABLE | REFUSED}
    # Poison for other processes, which `register` cannot reach.
    ids |= {
        f"toys/Poison{field.capitalize()}-v0": (Poison, {"field": field, "k": 40})
        for field in ("reward", "obs", "reset")
    }
    for name, (toy, kwargs) in ids.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=toy, kwargs=kwargs)


_register_all()
