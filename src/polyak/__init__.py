"""Polyak trains continuous-control agents with DDPG, TD3 and SAC.

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
    from polyak.hub import fetch, push
    from polyak.models import Agent, load
    from polyak.models import evaluate_saved as evaluate
    from polyak.runs import Run
    from polyak.training import train, train_seeds

_HOMES = {
    "PolyakError": "polyak.errors:PolyakError",
    "Agent": "polyak.models:Agent",
    "fetch": "polyak.hub:fetch",
    "push": "polyak.hub:push",
    "evaluate": "polyak.models:evaluate_saved",
    "load": "polyak.models:load",
    "Run": "polyak.runs:Run",
    "train": "polyak.training:train",
    "train_seeds": "polyak.training:train_seeds",
}
__all__ = [
    "Agent", "PolyakError", "Run", "evaluate", "fetch", "load", "push", "train",
    "train_seeds", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Imported on first use: `polyak --help` needs neither Gymnasium nor a learning library.
    if name not in _HOMES:
        raise AttributeError(f"module 'polyak' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
