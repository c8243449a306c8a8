"""Deterministic evaluation: noise off, a separate environment, one seed per episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from polyak.environments import DIVERGED, Environment, flaw
from polyak.errors import PolyakError

Policy = Callable[[np.ndarray], np.ndarray]
"""Observation (O,) float32 to action (A,) in [-1, 1]."""


class Evaluation(NamedTuple):
    """Results of some episodes, in the order of their seeds."""

    seeds: list[int]
    returns: list[float]
    lengths: list[int]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns (population)."""
        return float(np.std(self.returns))


def evaluate(policy: Policy, env: Environment, seeds: Sequence[int]) -> Evaluation:
    """Plays one whole episode from each seed.

    Episodes run one after another, so that each counts once however long it is (the first n to end
    among parallel ones would be the short ones), and so that an episode depends on its seed alone.

    Raises:
        PolyakError: the environment returned something that is not finite.
    """
    returns, lengths = [], []
    for seed in seeds:
        obs = env.reset(seed)
        total, length, ended = 0.0, 0, False
        while not ended:
            action = policy(obs)
            if not np.isfinite(action).all():
                raise PolyakError(f"{DIVERGED}: lower --learning-rate")
            obs, reward, terminated, truncated = env.step(action)
            if problem := flaw(obs, reward):
                raise PolyakError(
                    f"{problem} at step {length + 1} of the evaluation episode with seed {seed}: "
                    "mend the task, whose numbers must be finite in float32"
                )
            total += reward
            length += 1
            ended = terminated or truncated
        returns.append(total)
        lengths.append(length)
    return Evaluation(list(seeds), returns, lengths)
