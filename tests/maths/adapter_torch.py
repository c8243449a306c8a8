"""What the tests need to know of PyTorch; a twin for another backend has the same functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from polyak.algorithms import common_torch
from polyak.algorithms.common_layers_torch import cut
from polyak.algorithms.interface import Batch
from tests.maths.reference import Weights

DEVICE = torch.device("cpu")


def tensor(array: Any) -> torch.Tensor:
    """As the algorithms' pure functions take it: float32."""
    return torch.from_numpy(np.array(array, np.float32))


def array(value: Any) -> np.ndarray:
    """A tensor back in NumPy, float64."""
    result: np.ndarray = value.detach().cpu().numpy().astype(np.float64)
    return result


def batch(rows: Batch) -> Batch:
    return Batch(*map(tensor, rows))


def scalar(value: float) -> Any:
    """What SAC keeps as its `log_alpha`."""
    return common_torch.Scalar(value, DEVICE)


def read(network: Any) -> Weights:
    """A copy of a network's weights."""
    weights: Weights = network.weights()
    return weights


def write(state: Any, name: str, weights: Weights) -> Any:
    """The state with other weights in one of its networks."""
    for key, parameter in getattr(state, name).parameters.items():
        parameter.copy_(tensor(weights[key]))
    return state


def log_alpha(state: Any) -> float:
    return float(array(state.log_alpha()))


def write_log_alpha(state: Any, value: float) -> Any:
    return write(state, "log_alpha", {"value": np.array(value)})


def gradient(function: Callable[[Any], Any], network: Any) -> Weights:
    """Gradient of `function(network)`, or of the first of what it returns, by the weights."""
    result = function(network)
    loss = result[0] if isinstance(result, tuple) else result
    (flat,) = torch.autograd.grad(loss, [network.flat])
    return {name: array(g) for name, g in cut(flat, network.shapes).items()}


def adam(weights: Weights, learning_rate: float, gradients: Sequence[Weights]) -> list[Weights]:
    """The weights after each of some steps with given gradients."""
    network = common_torch.MLP(weights, DEVICE)
    optimizer = common_torch.Adam(network, learning_rate)
    trace = []
    for given in gradients:
        # The gradient of a linear function is its coefficient.
        views = cut(network.flat, network.shapes)
        terms = [(view * tensor(given[name])).sum() for name, view in views.items()]
        optimizer.minimize(torch.stack(terms).sum())
        trace.append(read(network))
    return trace


def average(target: Weights, weights: Weights, tau: float) -> Weights:
    """The target after one moving average."""
    network = common_torch.MLP(target, DEVICE)
    common_torch.polyak_average(network, common_torch.MLP(weights, DEVICE), tau)
    return read(network)
