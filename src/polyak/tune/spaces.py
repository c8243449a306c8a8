"""What is searched: of each algorithm its settings, their bounds and their scale."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Scale(enum.Enum):
    """What is drawn evenly."""

    LINEAR = "linear"
    LOG = "log"
    POWER = "powers of 2"
    COMPLEMENT = "log of 1 - x"


class Suggests(Protocol):
    """What a dimension asks of `optuna.Trial`."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number between two bounds."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """A whole number between two bounds."""


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched between two bounds; whole where they are."""

    low: float
    high: float
    scale: Scale = Scale.LOG

    def suggest(self, setting: str, trial: Suggests) -> float:
        """The setting's value in a trial; the same one whenever that trial is asked again.

        Numbers that are not whole have three digits: a preset should be readable.
        """
        name, low, high = self.parameter(setting), self.inner(self.low), self.inner(self.high)
        low, high = min(low, high), max(low, high)
        log = self.scale in (Scale.LOG, Scale.COMPLEMENT)
        if isinstance(low, int):
            value: float = trial.suggest_int(name, low, int(high), log=log)
        else:
            value = float(f"{trial.suggest_float(name, low, high, log=log):.3g}")
        if self.scale is Scale.POWER:
            return 1 << int(value)
        return round(1.0 - value, 9) if self.scale is Scale.COMPLEMENT else value

    def parameter(self, setting: str) -> str:
        """The name that Optuna knows it by."""
        prefixes = {Scale.POWER: "log2 ", Scale.COMPLEMENT: "1 - "}
        return prefixes.get(self.scale, "") + setting

    def inner(self, value: float) -> float:
        """A value of the setting as Optuna's parameter, which it lies within the bounds of."""
        value = min(max(value, self.low), self.high)
        if self.scale is Scale.POWER:
            return int(value).bit_length() - 1
        return 1.0 - value if self.scale is Scale.COMPLEMENT else value

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}, {self.scale.value}"


COMMON = {
    "actor_lr": Dimension(3e-5, 3e-3),
    "critic_lr": Dimension(3e-5, 3e-3),
    "gamma": Dimension(0.9, 0.999, Scale.COMPLEMENT),
    "tau": Dimension(0.001, 0.05),
    "batch_size": Dimension(64, 512, Scale.POWER),
    "hidden_dim": Dimension(64, 512, Scale.POWER),
    "policy_frequency": Dimension(1, 4, Scale.LINEAR),
}
EXPLORATION = {"exploration_noise": Dimension(0.03, 0.5)}
SPACES: dict[str, dict[str, Dimension]] = {
    "ddpg": COMMON | EXPLORATION,
    "td3": COMMON | EXPLORATION | {"policy_noise": Dimension(0.05, 0.5)},
    "sac": COMMON,
}
"""By algorithm. `learning_starts`, which depends on the length of a run, is searched too."""
FIXED_ALPHA = {"alpha": Dimension(0.01, 1.0)}
"""SAC's entropy coefficient, where it is not learned."""
WARM_UP = (0.005, 0.2, 25_000)
"""Bounds of `learning_starts`: shares of the run's steps, and what it never exceeds."""


def space(algorithm: str, fixed: Mapping[str, Any], total_timesteps: int) -> dict[str, Dimension]:
    """What is searched, by setting: what is fixed is not.

    Args:
        algorithm: `ddpg`, `td3` or `sac`.
        fixed: settings of every trial, by field name.
        total_timesteps: environment steps of a run.
    """
    least, share, most = WARM_UP
    low = max(math.ceil(least * total_timesteps), 1)
    high = max(min(int(share * total_timesteps), most), low)
    found = SPACES[algorithm] | {"learning_starts": Dimension(low, high)}
    if algorithm == "sac" and fixed.get("autotune") is False:
        found |= FIXED_ALPHA
    return {setting: dimension for setting, dimension in found.items() if setting not in fixed}
