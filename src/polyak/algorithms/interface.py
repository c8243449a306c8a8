"""What an algorithm offers to the loop, and what the loop hands to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from polyak.algorithms.initial import Weights


class Batch(NamedTuple):
    """Transitions for one update. B batch, O observation, A action; float32 arrays or tensors."""

    obs: Any
    """(B, O)"""
    action: Any
    """(B, A) in [-1, 1]"""
    reward: Any
    """(B,)"""
    next_obs: Any
    """(B, O) the true last observation where the episode ended"""
    terminated: Any
    """(B,) 1.0 where the task ended, else 0.0; a time limit is no end"""


class Mirror(Protocol):
    """The transitions of a replay buffer in the memory of a device, as rows of one table.

    A row holds the fields of `Batch` side by side: 2 O + A + 2 numbers.
    """

    def write(self, first: int, transitions: np.ndarray) -> None:
        """Copies transitions (R, 2 O + A + 2), float32, into the rows from `first` on.

        The caller does not change the array afterwards: the device may still be reading it.
        """


class Slots(NamedTuple):
    """A batch that the device picks from its own memory; to be used before the next `write`."""

    mirror: Any
    """The backend's own `Mirror`"""
    slots: np.ndarray
    """(B,) int32, rows of the mirror"""


class Draw(NamedTuple):
    """What one update is made from."""

    batch: Batch | Slots
    noise: np.ndarray
    """(K, B, A) standard normal, K = `config.noises_per_update`"""


class State(Protocol):
    """What an algorithm learns. The loop looks only at the actor, which it hands back to `act`."""

    @property
    def actor(self) -> Any:
        """The network that `act` plays."""


Metrics = dict[str, Any]
"""Scalars by name, still on the device: fetching them would make every update wait."""

Update = Callable[[Any, Any, Batch, Any], tuple[Any, Metrics]]
"""See `Algorithm.update`."""


class Algorithm(Protocol):
    """A module such as `ddpg_torch`. All randomness comes in as arguments."""

    def init(
        self,
        config: Any,
        obs_dim: int,
        action_dim: int,
        generator: np.random.Generator,
        device: Any,
    ) -> State:
        """New networks, targets and optimisers, initial weights drawn from `generator`."""

    def act(self, config: Any, actor: Any, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions (N, A) in [-1, 1] for obs (N, O); `noise` (N, A) is standard normal.

        Zero noise gives the evaluation policy.
        """

    def update(
        self, config: Any, state: Any, batch: Batch, noise: np.ndarray
    ) -> tuple[State, Metrics]:
        """One update of the critic and, when due, of actor and targets.

        `noise` is (K, B, A) standard normal with K = `config.noises_per_update`. PyTorch changes
        the state in place and returns it, JAX returns a new one: the call is the same. Metrics
        hold the actor's loss only where the actor was updated.
        """

    def Actor(self, weights: Weights, device: Any) -> Any:
        """The policy network with these weights."""


class Place(NamedTuple):
    """Where networks are computed."""

    device: Any
    """The library's own name for it."""
    words: str
    """What was chosen, in one line."""
    wide: bool
    """Whether networks of several runs take about as long as those of one, as on a GPU."""


class Backend(Protocol):
    """A module such as `common_torch`: what is the library's, not the algorithm's."""

    def prepare(self, device: str, deterministic: bool, threads: int) -> Place:
        """Sets the library up.

        Raises:
            PolyakError: there is no such device.
        """

    def learn(
        self, update: Update, config: Any, state: Any, draws: Sequence[Draw]
    ) -> tuple[State, Metrics]:
        """The algorithm's `update` with each of the draws, one after another.

        Returns the state after the last, and of each metric the last value.
        """

    def mirror(self, device: Any, rows: int, obs_dim: int, action_dim: int) -> Mirror | None:
        """A table of `rows` transitions on the device; None where batches come from the host.

        That is so on a CPU, and, with a warning, where the device has not enough memory.
        """

    def export(self, state: Any) -> Weights:
        """Actor's and critics' weights as NumPy arrays: `actor.0.weight`, `critic.0.bias`, ..."""

    def snapshot(self, state: Any) -> Weights:
        """NumPy copies of everything that learns, under names that all backends share.

        `{network}.{parameter}` for every network (`target_critic.2.bias`, `log_alpha.value`), for
        every optimiser `{name}_optimizer.first_moment.{parameter}`, `.second_moment.{parameter}`
        and `.steps`, and `updates`; the last two are int64 of shape ().
        """

    def restore(self, state: Any, arrays: Weights) -> State:
        """A state that goes on where `snapshot` was taken.

        `state` is fresh from `init` with the same configuration; `arrays` have the names, shapes
        and types of its own snapshot.
        """


class StackingBackend(Backend, Protocol):
    """A backend that can compute for several runs at once."""

    def stack(self, states: Sequence[Any]) -> State:
        """The states of several runs at the same update as one, on a leading axis L.

        `act` and `learn` take it with obs (L, N, O), batches (L, B, ...) and noise (L, N, A) or
        (K, L, B, A), and give actions (L, N, A) and metrics (L,).
        """

    def unstack(self, state: Any, index: int) -> State:
        """The state of one of the runs in a stack."""
