"""Published figures that ship with Polyak; `reference/README.md` says where they are from."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

import numpy as np

from polyak.report.statistics import Spread

UNSTATED = "as its source defines it"
"""Protocol of figures whose source does not state one: never the same as ours."""


@dataclass(frozen=True)
class Return:
    """A published mean return."""

    source: str
    algorithm: str
    backend: str
    env_id: str
    result: Spread
    steps: int
    protocol: str


@dataclass(frozen=True)
class Runtime:
    """A published running time, on its authors' machine."""

    source: str
    algorithm: str
    backend: str
    env_id: str
    minutes: float
    """For one run of 1M environment steps."""


@dataclass(frozen=True)
class PublishedCurve:
    """The evaluations of an algorithm's own authors, mean over their seeds."""

    name: str
    env_id: str
    seeds: int
    steps: np.ndarray
    """(K,)."""
    mean: np.ndarray
    """(K,)."""

    @property
    def label(self) -> str:
        """What a legend says of it: the task's version above all."""
        return f"{self.name}, {self.env_id} (n = {self.seeds})"


def family(env_id: str) -> str | None:
    """Gymnasium's name of a task without its version, restored ones included; None for others.

    `HalfCheetah-v5` and `HalfCheetah-v1` are of one family and different tasks.
    """
    found = re.fullmatch(r"(?:polyak/)?([A-Za-z0-9]+)-v\d+", env_id)
    return found[1] if found else None


@functools.cache
def returns() -> tuple[Return, ...]:
    """All published returns."""
    found = [
        Return(
            row["source"], row["algorithm"], row["backend"], row["env_id"], _spread(row),
            int(row["steps"]),
            {"deterministic": "evaluation", "training": "training"}[row["protocol"]],
        )
        for row in _rows("returns.csv")
    ]  # fmt: skip
    found += [
        Return(row["source"], row["algorithm"], "", row["env_id"], _spread(row), int(row["step"]),
               UNSTATED)
        for row in _rows("modern_v4_1M.csv")
    ]  # fmt: skip
    return tuple(found)


@functools.cache
def runtimes() -> tuple[Runtime, ...]:
    """All published running times."""
    return tuple(
        Runtime(row["source"], row["algorithm"], row["backend"], row["env_id"],
                float(row["minutes_per_1M_steps"]))
        for row in _rows("runtimes.csv")
    )  # fmt: skip


@functools.cache
def curve(name: str) -> PublishedCurve | None:
    """The authors' TD3 curve of a family of tasks, or None where there is none."""
    found: dict[str, dict[int, float]] = {}
    env_id = ""
    for row in _curves().get(name, ()):
        env_id = row["env_id"]
        found.setdefault(row["seed"], {})[int(row["step"])] = float(row["return"])
    if not found:
        return None
    steps = sorted(set.intersection(*(set(values) for values in found.values())))
    mean = np.mean([[values[step] for step in steps] for values in found.values()], axis=0)
    name = "TD3, Fujimoto et al. 2018"
    return PublishedCurve(name, env_id, len(found), np.array(steps, dtype=float), mean)


@functools.cache
def _curves() -> dict[str | None, list[dict[str, str]]]:
    found: dict[str | None, list[dict[str, str]]] = {}
    for row in _rows("td3_v1_learning_curves.csv"):
        found.setdefault(family(row["env_id"]), []).append(row)
    return found


def _spread(row: dict[str, str]) -> Spread:
    return Spread(float(row["mean"]), float(row["std"]), int(row["seeds"]))


def _rows(name: str) -> list[dict[str, str]]:
    file = resources.files("polyak") / "report" / "reference" / name
    return list(csv.DictReader(file.read_text("utf-8").splitlines()))
