"""Polyak trains continuous-control agents and carries a run to a benchmark table.

import polyak

run = polyak.train("ddpg", preset="inverted-pendulum")
agent = polyak.load(run.path)
action = agent.act(obs)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from polyak.version import __version__

if TYPE_CHECKING:
    from polyak.errors import PolyakError
    from polyak.models import Agent, load
    from polyak.runs import Run
    from polyak.training import train

_HOMES = {
    "PolyakError": "polyak.errors",
    "Agent": "polyak.models",
    "load": "polyak.models",
    "Run": "polyak.runs",
    "train": "polyak.training",
}
__all__ = ["Agent", "PolyakError", "Run", "load", "train", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `polyak --help` needs neither Gymnasium nor a learning library.
    if name not in _HOMES:
        raise AttributeError(f"module 'polyak' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
