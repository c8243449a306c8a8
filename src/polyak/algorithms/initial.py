"""Initial weights, drawn by NumPy so that a seed means the same networks in both backends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

Weights = dict[str, np.ndarray]
"""A network's parameters by name: `0.weight` (out, in), `0.bias` (out,), `1.weight`, ... with a
leading axis E where several networks are stacked."""


def mlp(rng: np.random.Generator, sizes: tuple[int, ...], ensemble: int | None = None) -> Weights:
    """Weights of a fully connected network.

    Weights and biases are uniform in +-1/sqrt(inputs), which is what PyTorch's `Linear` draws
    (LeCun et al. 1998's scale for the variance, 1/(3 inputs)) and what the published figures of all
    three algorithms were made with.

    Args:
        rng: the generator to draw from.
        sizes: units per layer, inputs first: (inputs, hidden, hidden, outputs).
        ensemble: E independent networks on a leading axis, or None for one without that axis.

    Returns:
        float32 arrays by name.
    """
    lead = () if ensemble is None else (ensemble,)
    weights: Weights = {}
    for name, shape in shapes(sizes).items():
        inputs = sizes[int(name.split(".")[0])]
        bound = 1.0 / np.sqrt(inputs)
        weights[name] = rng.uniform(-bound, bound, lead + shape).astype(np.float32)
    return weights


def under(prefix: str, arrays: Weights) -> Weights:
    """The arrays whose names begin with `prefix.`, without it: one network's out of several's."""
    start = f"{prefix}."
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def shapes(sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what `mlp` draws, without drawing."""
    found: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        found[f"{layer}.weight"] = (outputs, inputs)
        found[f"{layer}.bias"] = (outputs,)
    return found
