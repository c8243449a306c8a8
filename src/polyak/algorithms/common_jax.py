"""What the JAX algorithms share: network, gradient step, moving average, device."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from polyak.algorithms.initial import Weights
from polyak.algorithms.interface import Batch, Metrics, Place
from polyak.errors import PolyakError

Network = TypeVar("Network")
GPU = Path("/dev/nvidia0")
"""There where a driver has found a card, whatever JAX makes of it."""

SINGLE = np.float32
"""What everything is computed in."""

Step = TypeVar("Step", bound=Callable[..., tuple[Any, Metrics]])


class Module:
    """A network as JAX sees it: a tree whose leaves are its parameters, by name."""

    parameters: dict[str, Array]

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_with_keys(
            cls,
            lambda module: (((jax.tree_util.GetAttrKey("parameters"), module.parameters),), None),
            functools.partial(_rebuild, cls),
        )

    def weights(self) -> Weights:
        """A copy of the parameters as NumPy arrays."""
        # np.asarray would be a view of memory that the next update takes over.
        return {name: np.array(array) for name, array in self.parameters.items()}


def _rebuild(cls: type[Module], _: None, children: tuple[dict[str, Array]]) -> Module:
    module = object.__new__(cls)  # __init__ places arrays on a device, which a trace has none of
    (module.parameters,) = children
    return module


class MLP(Module):
    """Fully connected layers, ReLU between them; parameters `0.weight`, `0.bias`, `1.weight`, ...

    Weights are (out, in) and biases (out,), or E of them stacked on a leading axis.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], device: Any) -> None:
        self.parameters = place(dict(weights), device)

    def layers(self, x: Array, only: int | None = None) -> Array:
        """(B, in) -> (B, out), or (E, B, out) for E stacked networks without `only`.

        `only` picks one network of a stack, which then behaves as if it stood alone.
        """
        p = self.parameters if only is None else {k: v[only] for k, v in self.parameters.items()}
        last = len(p) // 2 - 1
        for layer in range(last):
            x = jax.nn.relu(_linear(x, p[f"{layer}.weight"], p[f"{layer}.bias"]))
        return _linear(x, p[f"{last}.weight"], p[f"{last}.bias"])


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight.swapaxes(-1, -2) + bias[..., None, :]


class Scalar(Module):
    """One learned number, built like a network."""

    def __init__(self, value: float, device: Any) -> None:
        self.parameters = place({"value": np.array(value, SINGLE)}, device)

    def __call__(self) -> Array:
        """The number, ()."""
        return self.parameters["value"]


def adam(learning_rate: float) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015, epsilon 1e-8)."""
    return optax.adam(learning_rate, eps=1e-8)


def minimize(
    loss: Callable[[Network], Any], network: Network, moments: optax.OptState, learning_rate: float
) -> tuple[Network, optax.OptState, Any]:
    """One step of Adam down the gradient of `loss(network)`.

    `loss` returns a scalar, or a tuple that begins with it. Returns the new network, Adam's new
    moments, and what `loss` returned.
    """

    def scalar(network: Network) -> tuple[Array, Any]:
        result = loss(network)
        return (result[0] if isinstance(result, tuple) else result), result

    (_, result), gradient = jax.value_and_grad(scalar, has_aux=True)(network)
    steps, moments = adam(learning_rate).update(gradient, moments)
    return optax.apply_updates(network, steps), moments, result


@functools.partial(jax.jit, static_argnums=2, donate_argnums=0)
def polyak_average(target: Network, network: Network, tau: float) -> Network:
    """(1 - tau) target + tau network (Lillicrap et al. 2016, algorithm 1)."""
    return optax.incremental_update(network, target, tau)


def compiled(step: Step) -> Step:
    """A step `(config, state, ...) -> (state, metrics)` as one program.

    States, batches and inputs may be those of several runs, stacked on a leading axis L. The
    configuration is constant in the program. The old state's memory becomes the new state's, so
    that whoever holds the old one holds nothing. `state.updates` stays outside of the program, for
    whose results one has to wait.
    """

    def stacked(config: Any, state: Any, *inputs: Any) -> Any:
        return jax.vmap(functools.partial(step, config))(state, *inputs)

    one, many = (
        jax.jit(function, static_argnums=0, donate_argnums=1) for function in (step, stacked)
    )

    @functools.wraps(step)
    def call(config: Any, state: Any, batch: Batch, *inputs: Any) -> tuple[Any, Metrics]:
        program = one if batch.reward.ndim == 1 else many
        learned, metrics = program(config, state._replace(updates=None), batch, *inputs)
        return learned._replace(updates=state.updates), metrics

    return cast("Step", call)


@jax.jit
def play(actor: Callable[..., Any], *inputs: Array) -> Any:
    """The actor's output, compiled for each shape of the inputs."""
    return actor(*inputs)


def place(tree: Any, device: Any) -> Any:
    """The arrays on a device, given as JAX's object or as `cpu` or `cuda`.

    Raises:
        PolyakError: JAX has no such device.
    """
    return jax.device_put(tree, _first(device) if isinstance(device, str) else device)


def prepare(device: str, deterministic: bool, threads: int) -> Place:
    """Chooses the device and sets JAX up, as far as it has not computed anything yet.

    Args:
        device: `auto` (a GPU if there is one), `cpu` or `cuda`.
        deterministic: on a GPU, use operations whose result does not depend on scheduling.
        threads: processor threads.

    Raises:
        PolyakError: JAX has no such device.
    """
    # JAX reads these when it first looks for devices, and sizes its pool by NPROC.
    os.environ.setdefault("NPROC", str(threads))
    if deterministic:
        _add_flag("--xla_gpu_deterministic_ops=true")
    if threads == 1:
        _add_flag("--xla_cpu_multi_thread_eigen=false")
    jax.config.update("jax_enable_x64", False)
    _keep_programs()
    gpus = _devices("gpu") if device != "cpu" else []
    if gpus:
        return Place(gpus[0], f"device: cuda ({gpus[0].device_kind})", wide=True)
    blind = GPU.exists() and not _platforms()  # which may leave the GPU out on purpose
    install = "pip install 'jax[cuda12]'"
    if device == "cuda":
        reason = f"this jaxlib is built for CPUs only: {install}" if blind else "JAX sees no GPU"
        raise PolyakError(f"--device cuda: {reason}{_platforms()}; or use --device cpu")
    note = f"; there is a GPU that JAX cannot use: {install}" if blind and device == "auto" else ""
    words = f"device: cpu, threads: {os.environ['NPROC']}{note}"
    return Place(_first("cpu"), words, wide=False)


def export(state: Any) -> Weights:
    """Actor's and critics' weights as NumPy arrays, named `actor.0.weight`, `critic.0.bias`, ..."""
    return {
        f"{network}.{name}": array
        for network in ("actor", "critic")
        for name, array in getattr(state, network).weights().items()
    }


MOMENTS = {"first_moment": "mu", "second_moment": "nu"}
"""Adam's moments by the names that all backends share; Optax's own."""


def snapshot(state: Any) -> Weights:
    """NumPy copies of everything that learns; see `Backend.snapshot` for the names."""
    arrays: Weights = {"updates": np.array(state.updates, np.int64)}
    for field, part in state._asdict().items():
        if isinstance(part, Module):
            arrays |= {f"{field}.{name}": array for name, array in part.weights().items()}
        elif field.endswith("_optimizer"):
            moments, _ = part
            arrays[f"{field}.steps"] = np.array(moments.count, np.int64)
            for moment, key in MOMENTS.items():
                weights = getattr(moments, key).weights()
                arrays |= {f"{field}.{moment}.{name}": array for name, array in weights.items()}
    return arrays


def restore(state: Any, arrays: Weights) -> Any:
    """A state that goes on where `snapshot` was taken; `state` is fresh."""

    def restored(prefix: str, module: Module) -> Module:
        found = {
            name: jax.device_put(arrays[f"{prefix}.{name}"], old.sharding)
            for name, old in module.parameters.items()
        }
        return _rebuild(type(module), None, (found,))

    fields: dict[str, Any] = {"updates": int(arrays["updates"])}
    for field, part in state._asdict().items():
        if isinstance(part, Module):
            fields[field] = restored(field, part)
        elif field.endswith("_optimizer"):
            moments, rest = part
            new = {k: restored(f"{field}.{m}", getattr(moments, k)) for m, k in MOMENTS.items()}
            count = arrays[f"{field}.steps"].astype(np.int32)
            new["count"] = jax.device_put(count, moments.count.sharding)
            fields[field] = (moments._replace(**new), rest)
    return state._replace(**fields)


def stack(states: Sequence[Any]) -> Any:
    """The states of several runs at the same update as one, on a leading axis L."""
    learned = [state._replace(updates=None) for state in states]
    together = jax.tree.map(lambda *arrays: jnp.stack(arrays), *learned)
    return together._replace(updates=states[0].updates)


def unstack(state: Any, index: int) -> Any:
    """The state of one of the runs in a stack."""
    learned = jax.tree.map(lambda array: array[index], state._replace(updates=None))
    return learned._replace(updates=state.updates)


def _devices(kind: str) -> list[Any]:
    """JAX's devices of a kind, `cpu`, `gpu` or `cuda`; empty where it has none."""
    # Read when JAX first looks for devices.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else 75 % of the GPU at once
    try:
        return jax.devices(kind)
    except (RuntimeError, AssertionError):  # JAX's ways of saying that there is none
        return []


def _first(kind: str) -> Any:
    if found := _devices(kind):
        return found[0]
    raise PolyakError(f"JAX has no {kind} here{_platforms() or ': is its installation whole?'}")


def _platforms() -> str:
    """What the user allows JAX to use, for the end of a sentence; empty where all is allowed."""
    allowed = jax.config.jax_platforms  # type: ignore[attr-defined]
    return f", and JAX_PLATFORMS is {allowed}" if allowed else ""


def _add_flag(flag: str) -> None:
    flags = os.environ.get("XLA_FLAGS", "").split()
    if flag.split("=")[0] not in {known.split("=")[0] for known in flags}:
        os.environ["XLA_FLAGS"] = " ".join([*flags, flag])


def _keep_programs() -> None:
    """Keeps compiled programs on disk, so that only the first run of a kind compiles them."""
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        try:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError:  # a user without a home, as in some containers
            return
        jax.config.update("jax_compilation_cache_dir", str(cache / "polyak" / "jax"))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
