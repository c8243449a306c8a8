"""The table of algorithms. Modules are loaded when used: PyTorch's users never import JAX."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from typing import cast

from polyak.algorithms.configs import CONFIGS
from polyak.algorithms.interface import Algorithm, StackingBackend
from polyak.errors import PolyakError

ALGORITHMS = {
    ("ddpg", "torch"): "polyak.algorithms.ddpg_torch",
    ("td3", "torch"): "polyak.algorithms.td3_torch",
    ("sac", "torch"): "polyak.algorithms.sac_torch",
    ("ddpg", "jax"): "polyak.algorithms.ddpg_jax",
    ("td3", "jax"): "polyak.algorithms.td3_jax",
    ("sac", "jax"): "polyak.algorithms.sac_jax",
}
BACKENDS = {
    "torch": "polyak.algorithms.common_torch",
    "jax": "polyak.algorithms.common_jax",
}
SUFFIX = "_continuous_action"


def parse(name: str) -> tuple[str, str | None]:
    """Splits an experiment name into algorithm and backend.

    `ddpg` -> (ddpg, None); `ddpg_continuous_action` -> (ddpg, torch); `..._jax` -> (ddpg, jax).

    Raises:
        PolyakError: no such algorithm; the nearest is named.
    """
    if not isinstance(name, str):
        raise PolyakError(f"name the algorithm: {', '.join(CONFIGS)}, not {name!r}")
    algorithm, suffix, rest = name.partition(SUFFIX)
    if algorithm in CONFIGS and (suffix, rest) in (("", ""), (SUFFIX, ""), (SUFFIX, "_jax")):
        return algorithm, None if not suffix else "jax" if rest else "torch"
    near = difflib.get_close_matches(name, CONFIGS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(CONFIGS)}"
    raise PolyakError(f"no algorithm {name!r}; {hint}")


def experiment_name(algorithm: str, backend: str) -> str:
    """`ddpg_continuous_action`, with `_jax` appended for that backend."""
    return algorithm + SUFFIX + ("_jax" if backend == "jax" else "")


def check(algorithm: str, backend: str) -> None:
    """Refuses what is not in the table; nothing is loaded.

    Raises:
        PolyakError: the pair does not exist.
    """
    if (algorithm, backend) not in ALGORITHMS:
        pairs = ", ".join(f"{a} in {b}" for a, b in ALGORITHMS)
        raise PolyakError(f"no {algorithm} in {backend}; there is {pairs}")


def load(algorithm: str, backend: str) -> Algorithm:
    """The module of an algorithm.

    Raises:
        PolyakError: the pair does not exist, or its library is not installed.
    """
    check(algorithm, backend)
    return cast("Algorithm", _import(ALGORITHMS[algorithm, backend], backend))


def installed(backend: str) -> bool:
    """Whether the library of a backend is there; it is not loaded."""
    return importlib.util.find_spec(backend) is not None


def load_backend(backend: str) -> StackingBackend:
    """The module that all algorithms of a backend share.

    Raises:
        PolyakError: its library is not installed.
    """
    return cast("StackingBackend", _import(BACKENDS[backend], backend))


def _import(module: str, backend: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("polyak"):
            raise
        raise PolyakError(
            f"{error.name} is not installed: pip install 'polyak[{backend}]'"
        ) from error
