"""What speed is to be reached, and what was.

Set on a machine with two cores and no GPU, from what a prototype and the peers reached there.
Ratios are of medians of turns in the same run, with logging on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from speed_results import NAMES, Rows, quotient, table

TASK = "Hopper-v5"
ALGORITHMS, BACKENDS = ("ddpg", "td3", "sac"), ("torch", "jax")


PARTS = ("logging", "guards", "evaluation", "checkpoints")
"""What a run does besides learning, as `costs.py` measures it."""

REPLAY = "replay memory of 1 million transitions"


class Target(NamedTuple):
    """One number to reach."""

    what: str
    at_least: float
    """Where `most` is set, at most."""
    aim: float
    value: Callable[[Rows], float | None]
    """The number that was reached; None where it was not measured."""
    form: str = ".2f"
    unit: str = ""
    most: bool = False
    """Whether less is better."""

    def verdict(self, value: float) -> str:
        """`aim`, `ok` for what is at least asked for, or `LOW`."""
        sign = -1.0 if self.most else 1.0
        if sign * value >= sign * self.aim:
            return "aim"
        return "ok" if sign * value >= sign * self.at_least else "LOW"


def _against(algorithm: str, system: str, peer: str, at_least: float, aim: float) -> Target:
    def value(rows: Rows) -> float | None:
        cell = {"env_id": TASK, "algorithm": algorithm}
        return rows.ratio("loop", cell | {"system": system}, cell | {"system": peer})

    name = f"{NAMES[system]} {NAMES[algorithm]} against {NAMES[peer]}"
    return Target(name, at_least, aim, value, unit=" x")


def _four(algorithm: str) -> Target:
    def value(rows: Rows) -> float | None:
        cell = {"env_id": TASK, "algorithm": algorithm, "system": "jax"}
        return rows.ratio("loop", cell | {"num_envs": 4}, cell)

    name = f"JAX {NAMES[algorithm]}, 4 environments against 1"
    return Target(name, 1.1, 1.2, value, unit=" x")


def _of_limit(algorithm: str, system: str) -> Target:
    def value(rows: Rows) -> float | None:
        # The best round of each: the machine's fast phase, whose share is the higher one to reach.
        update = rows.find("update", env_id=TASK, algorithm=algorithm, system=system)
        limit = rows.find("update limit", env_id=TASK, algorithm=algorithm)
        return max(update.values) / max(limit.values) if update and limit else None

    name = f"{NAMES[system]} {NAMES[algorithm]}, update alone of the limit, best rounds"
    return Target(name, 0.65, 0.75, value, ".0%")


def _loop_of_update(algorithm: str, system: str) -> Target:
    def value(rows: Rows) -> float | None:
        cell = {"env_id": TASK, "algorithm": algorithm, "system": system}
        return quotient(rows.median("loop", **cell), rows.median("update", **cell))

    name = f"{NAMES[system]} {NAMES[algorithm]}, whole loop of update alone"
    return Target(name, 0.93, 0.96, value, ".0%")


def _start(what: str, system: str, at_least: float, aim: float) -> Target:
    def value(rows: Rows) -> float | None:
        return rows.median(what, env_id=TASK, algorithm="td3", system=system)

    name = NAMES.get(system, system)
    return Target(f"{what}, {name}", at_least, aim, value, unit=" s", most=True)


def _extras(system: str) -> Target:
    def value(rows: Rows) -> float | None:
        cell = {"env_id": "HalfCheetah-v5", "algorithm": "td3", "system": system}
        shares = [rows.median(f"{part}, share of the loop", **cell) for part in PARTS]
        found = [share for share in shares if share is not None]
        return sum(found) if len(found) == len(PARTS) else None

    name = f"{' + '.join(PARTS)} of the loop, {NAMES[system]}"
    return Target(name, 0.06, 0.03, value, ".1%", most=True)


TARGETS = (
    _against("td3", "torch", "sb3", 1.7, 2.2),
    _against("sac", "torch", "sb3", 2.0, 2.6),
    _against("td3", "jax", "sbx", 1.3, 1.5),
    _against("sac", "jax", "sbx", 1.2, 1.4),
    _against("ddpg", "jax", "sbx", 1.5, 1.8),
    *map(_four, ALGORITHMS),
    *(_of_limit(algorithm, system) for system in BACKENDS for algorithm in ALGORITHMS),
    *(_loop_of_update(algorithm, system) for system in BACKENDS for algorithm in ALGORITHMS),
    Target(
        f"{REPLAY}, Humanoid-v5",
        1.6e9,
        1.5e9,
        lambda rows: rows.median(REPLAY, env_id="Humanoid-v5"),
        ".3g",
        " bytes",
        most=True,
    ),
    Target("polyak --help", 0.5, 0.2, lambda rows: rows.median("help"), unit=" s", most=True),
    _start("first environment step", "torch", 3.0, 2.0),
    _start("first update", "torch", 3.5, 2.2),
    _start("first environment step", "jax, warm cache", 2.5, 1.5),
    _start("first update", "jax, warm cache", 4.0, 2.0),
    *map(_extras, BACKENDS),
)


def reached(rows: Rows) -> Iterator[tuple[Target, float, str]]:
    """Targets that were measured, what was reached and the verdict."""
    for target in TARGETS:
        value = target.value(rows)
        if value is not None:
            yield target, value, target.verdict(value)


def summary(rows: Rows) -> str:
    """The table of targets, and how many were reached."""
    lines, verdicts = [], []
    for target, value, verdict in reached(rows):
        numbers = (value, target.at_least, target.aim)
        lines.append([target.what, *(f"{n:{target.form}}{target.unit}" for n in numbers), verdict])
        verdicts.append(verdict)
    bounds = table(["", "reached", "at least", "aim", ""], lines)
    low, aims = verdicts.count("LOW"), verdicts.count("aim")
    return f"{bounds}\n\n{len(lines)} measured: {low} LOW, {aims} at the aim." if lines else bounds
