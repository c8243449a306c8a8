"""What the tests need to know of JAX; the twin of `adapter_torch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from polyak.algorithms import common_jax
from polyak.algorithms.interface import Batch
from tests.maths.reference import Weights

# A product of (B,) and (B, 1) is a (B, B) that looks sane; a key used twice gives the same numbers.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

DEVICE = jax.devices("cpu")[0]


def tensor(array: Any) -> jax.Array:
    """As the algorithms' pure functions take it: float32."""
    return jnp.array(array, jnp.float32)


def array(value: Any) -> np.ndarray:
    """An array back in NumPy, float64."""
    return np.array(value, np.float64)


def batch(rows: Batch) -> Batch:
    return Batch(*map(tensor, rows))


def scalar(value: float) -> Any:
    """What SAC keeps as its `log_alpha`."""
    return common_jax.Scalar(value, DEVICE)


def read(network: Any) -> Weights:
    """A copy of a network's weights."""
    weights: Weights = network.weights()
    return weights


def write(state: Any, name: str, weights: Weights) -> Any:
    """The state with other weights in one of its networks."""
    kind = type(getattr(state, name))
    single = {key: np.array(value, np.float32) for key, value in weights.items()}
    return state._replace(**{name: kind(single, DEVICE)})


def log_alpha(state: Any) -> float:
    return float(state.log_alpha())


def write_log_alpha(state: Any, value: float) -> Any:
    return state._replace(log_alpha=scalar(value))


def gradient(function: Callable[[Any], Any], network: Any) -> Weights:
    """Gradient of `function(network)`, or of the first of what it returns, by the weights."""

    def scalar(network: Any) -> Any:
        result = function(network)
        return result[0] if isinstance(result, tuple) else result

    found = jax.grad(scalar)(network)
    return {name: array(g) for name, g in found.parameters.items()}


def adam(weights: Weights, learning_rate: float, gradients: Sequence[Weights]) -> list[Weights]:
    """The weights after each of some steps with given gradients."""
    network: Any = common_jax.MLP(weights, DEVICE)
    moments = common_jax.adam(learning_rate).init(network)
    trace = []
    for given in gradients:
        # The gradient of a linear function is its coefficient.
        def loss(network: Any, given: Weights = given) -> Any:
            return sum((p * tensor(given[k])).sum() for k, p in network.parameters.items())

        network, moments, _ = common_jax.minimize(loss, network, moments, learning_rate)
        trace.append(read(network))
    return trace


def average(target: Weights, weights: Weights, tau: float) -> Weights:
    """The target after one moving average."""
    network = common_jax.MLP(target, DEVICE)
    return read(common_jax.polyak_average(network, common_jax.MLP(weights, DEVICE), tau))
