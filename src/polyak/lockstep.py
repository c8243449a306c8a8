"""Several runs side by side in one process, their networks computed together.

Each run is the ordinary training of its seed in a greenlet, which is a function that can wait in
its middle. Where its loop asks for actions or for updates, it waits until the others have come as
far; then all are answered. What a run draws, steps, stores and writes is its own, so each run is
what it would be alone.

On a GPU one computation answers all: the networks of all runs are stacked on a leading axis L, and
those of one run leave most of such a device idle. On a CPU, which one run keeps busy, each is
computed for itself: bit for bit as alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from greenlet import getcurrent, greenlet

from polyak.algorithms.initial import Weights
from polyak.algorithms.interface import Algorithm, Batch, Draw, Metrics, StackingBackend, Update
from polyak.stopping import Stopped

Result = TypeVar("Result")


class Act(NamedTuple):
    """A run waits for its actions; see `Algorithm.act`."""

    config: Any
    obs: np.ndarray
    noise: np.ndarray


class Learn(NamedTuple):
    """A run waits for updates; see `Backend.learn`."""

    config: Any
    draws: Sequence[Draw]


class Lockstep:
    """An algorithm for several runs.

    Args:
        algorithm: computes, for one run or for several whose states are stacked.
        backend: of the algorithm.
        stacked: whether runs at the same update are computed as one.
    """

    def __init__(self, algorithm: Algorithm, backend: StackingBackend, *, stacked: bool) -> None:
        self.algorithm, self.backend, self._stacked = algorithm, backend, stacked
        self.hub = getcurrent()
        self.states: dict[int, Any] = {}
        """States of the runs that are not in the stack."""
        self._members: list[int] = []
        self._stack: Any = None

    def run(self, tasks: Sequence[Callable[[Lane], Result]]) -> list[Result | BaseException]:
        """Runs every task with a lane of its own; returns results, or what was raised instead.

        A task that fails leaves the others alone. Only an interruption that does not wait for a
        checkpoint ends all, and an error in what is computed for them.
        """
        outcomes: dict[int, Result | BaseException] = {}

        def body(index: int) -> None:
            try:
                outcomes[index] = tasks[index](Lane(self, index))
            except BaseException as error:  # noqa: BLE001  # the caller decides
                outcomes[index] = error

        lanes = [greenlet(body) for _ in tasks]
        answers: dict[int, Any] = {i: i for i in range(len(tasks))}  # the first call takes indices
        try:
            while answers:
                waiting: dict[int, Act | Learn] = {}
                for index, answer in answers.items():
                    request = lanes[index].switch(answer)
                    if not lanes[index].dead:
                        waiting[index] = request
                    elif _impatient(outcomes[index]):
                        raise KeyboardInterrupt
                answers = self._answer(waiting)
        except BaseException as error:
            for lane in lanes:
                if lane and not lane.dead:
                    lane.throw(error)
            raise
        return [outcomes[index] for index in range(len(tasks))]

    def state(self, index: int) -> Any:
        """The state of one run, as if it were alone."""
        if index in self._members:
            return self.backend.unstack(self._stack, self._members.index(index))
        return self.states[index]

    def replace(self, index: int, state: Any) -> None:
        """Gives a run another state."""
        self._separate()
        self.states[index] = state

    def _answer(self, waiting: dict[int, Act | Learn]) -> dict[int, Any]:
        if self._stacked and self._join(waiting):
            return dict(zip(waiting, self._together(list(waiting.values())), strict=True))
        self._separate()
        return {index: self._alone(index, request) for index, request in waiting.items()}

    def _join(self, waiting: dict[int, Act | Learn]) -> bool:
        """Stacks the runs that wait, if they are at the same point; else they compute alone."""
        if len({type(request) for request in waiting.values()}) != 1:
            return False
        if self._members != list(waiting):  # at the start, and where a run has ended or failed
            self._separate()
            states = [self.states[index] for index in waiting]
            if len({state.updates for state in states}) != 1:
                return False
            self._members, self._stack = list(waiting), self.backend.stack(states)
        return True

    def _alone(self, index: int, request: Act | Learn) -> Any:
        state = self.states[index]
        if isinstance(request, Act):
            return self.algorithm.act(request.config, state.actor, request.obs, request.noise)
        self.states[index], metrics = self.backend.learn(
            self.algorithm.update, request.config, state, request.draws
        )
        return metrics

    def _together(self, requests: list[Act | Learn]) -> Iterable[Any]:
        config = requests[0].config
        acts = [request for request in requests if isinstance(request, Act)]
        if acts:
            obs = np.stack([act.obs for act in acts])  # (L, N, O)
            noise = np.stack([act.noise for act in acts])
            return self.algorithm.act(config, self._stack.actor, obs, noise)
        each = [request.draws for request in requests if isinstance(request, Learn)]
        draws = [_together(draws) for draws in zip(*each, strict=True)]
        update = self.algorithm.update
        self._stack, metrics = self.backend.learn(update, config, self._stack, draws)
        return [
            {name: Picked(values, lane) for name, values in metrics.items()}
            for lane in range(len(each))
        ]

    def _separate(self) -> None:
        for index in self._members:
            self.states[index] = self.state(index)
        self._members, self._stack = [], None


class Lane:
    """One run's view of the algorithm and its backend: those of a run alone, which wait."""

    def __init__(self, lockstep: Lockstep, index: int) -> None:
        self._lockstep, self._index = lockstep, index
        self.Actor = lockstep.algorithm.Actor
        self.prepare = lockstep.backend.prepare

    @property
    def actor(self) -> Lane:
        """Stands for the network that `act` plays."""
        return self

    def init(self, *arguments: Any) -> Lane:
        """See `Algorithm.init`; the lane itself stands for the state."""
        self._lockstep.states[self._index] = self._lockstep.algorithm.init(*arguments)
        return self

    def act(self, config: Any, actor: Lane, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """See `Algorithm.act`."""
        action: np.ndarray = self._lockstep.hub.switch(Act(config, obs, noise))
        return action

    @property
    def update(self) -> Update:
        """See `Algorithm.update`; only `learn` calls it."""
        return self._lockstep.algorithm.update

    def mirror(self, device: Any, rows: int, obs_dim: int, action_dim: int) -> None:
        """None: batches of several runs are stacked on the host."""

    def learn(
        self, update: Update, config: Any, state: Lane, draws: Sequence[Draw]
    ) -> tuple[Lane, Metrics]:
        """See `Backend.learn`."""
        return self, self._lockstep.hub.switch(Learn(config, draws))

    def export(self, state: Lane) -> Weights:
        """See `Backend.export`."""
        return self._lockstep.backend.export(self._lockstep.state(self._index))

    def snapshot(self, state: Lane) -> Weights:
        """See `Backend.snapshot`."""
        return self._lockstep.backend.snapshot(self._lockstep.state(self._index))

    def restore(self, state: Lane, arrays: Weights) -> Lane:
        """See `Backend.restore`."""
        fresh = self._lockstep.state(self._index)
        self._lockstep.replace(self._index, self._lockstep.backend.restore(fresh, arrays))
        return self


class Picked(NamedTuple):
    """One run's number among those of all, fetched from the device when it is asked for."""

    values: Any
    lane: int

    def __float__(self) -> float:
        return float(self.values[self.lane])


def _together(draws: Sequence[Draw]) -> Draw:
    """What several runs draw for one update: batch (L, B, ...) and noise (K, L, B, A)."""
    # All are batches, since no lane mirrors.
    batches = (draw.batch for draw in draws if isinstance(draw.batch, Batch))
    batch = Batch(*map(np.stack, zip(*batches, strict=True)))
    return Draw(batch, np.stack([draw.noise for draw in draws], axis=1))


def _impatient(outcome: Any) -> bool:
    return isinstance(outcome, KeyboardInterrupt) and not isinstance(outcome, Stopped)
