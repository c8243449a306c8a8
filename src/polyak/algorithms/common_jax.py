"""What the JAX algorithms share: network, gradient step, moving average, device."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from polyak.algorithms.initial import Weights
from polyak.algorithms.interface import Batch, Draw, Metrics, Place, Slots, Update
from polyak.algorithms.mirror import if_it_fits
from polyak.errors import PolyakError

MIRRORING = frozenset({"gpu", "cuda"})
"""Kinds of devices that keep a copy of replay."""

Network = TypeVar("Network")
GPU = Path("/dev/nvidia0")
"""There where a driver has found a card, whatever JAX makes of it."""

UNROLLED = 4
"""Updates side by side in a program of many, about; each adds up to a second to its compilation."""

SINGLE = np.float32
"""What everything is computed in."""


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
    optimizer = optax.adam(learning_rate, eps=1e-8)

    def init(network: Any) -> optax.OptState:
        # Placed like the network, since JAX compiles again where only the placement has changed.
        return place(optimizer.init(network), next(iter(network.parameters.values())).sharding)

    return optax.GradientTransformation(init, optimizer.update)


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


def polyak_average(target: Network, network: Network, tau: float) -> Network:
    """(1 - tau) target + tau network (Lillicrap et al. 2016, algorithm 1)."""
    return optax.incremental_update(network, target, tau)


def compiled(update: Update) -> Update:
    """An algorithm's `update` as one program for each of the ways in which its parts can be due.

    The configuration is constant in a program. The old state's memory becomes the new state's, so
    that whoever holds the old one holds nothing.
    """

    @functools.wraps(update)
    def call(
        config: Any, state: Any, batch: Batch | Slots, noise: np.ndarray
    ) -> tuple[Any, Metrics]:
        return _run(update, config, state, [Draw(batch, noise)])

    return call


class Mirror:
    """See `interface.Mirror`; each `write` makes a new table, in the memory of the one before."""

    def __init__(self, device: Any, rows: int, widths: Sequence[int]) -> None:
        self.widths = tuple(widths)
        self.table = jnp.zeros((rows, sum(widths)), SINGLE, device=device)
        self.table.block_until_ready()  # where memory is short, it is said here

    def write(self, first: int, transitions: np.ndarray) -> None:
        """See `interface.Mirror`."""
        self.table = _written(self.table, transitions, first)


@functools.partial(jax.jit, donate_argnums=0)
def _written(table: Array, transitions: Array, first: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(table, transitions, first, axis=0)


def _pick(table: Array, widths: Sequence[int], slots: Array) -> Batch:
    """The rows of a table in these slots, (B,)."""
    ends = list(itertools.accumulate(widths))[:-1]
    obs, action, reward, next_obs, terminated = jnp.split(table[slots], ends, axis=1)
    return Batch(obs, action, reward[:, 0], next_obs, terminated[:, 0])


def mirror(device: Any, rows: int, obs_dim: int, action_dim: int) -> Mirror | None:
    """See `Backend.mirror`."""
    if device.platform not in MIRRORING:
        return None
    make = functools.partial(Mirror, device)
    return if_it_fits(make, rows, obs_dim, action_dim, free_memory(device))


def free_memory(device: Any) -> int | None:
    """Bytes that JAX may still take on a device; None where it does not know."""
    known = device.memory_stats() or {}
    return known["bytes_limit"] - known["bytes_in_use"] if "bytes_limit" in known else None


def learn(update: Update, config: Any, state: Any, draws: Sequence[Draw]) -> tuple[Any, Metrics]:
    """See `Backend.learn`; several updates are one program, as is picking their batches."""
    if len(draws) == 1:
        batch: Any = draws[0].batch
        return update(config, state, batch, draws[0].noise)
    return _run(inspect.unwrap(update), config, state, draws)


_same: dict[tuple[Any, ...], int] = {}
"""By the delays and by what is due in some updates: how many updates there were before the first
such ones. Equal ones share a program, which is made for that number."""


def _run(update: Update, config: Any, state: Any, draws: Sequence[Draw]) -> tuple[Any, Metrics]:
    """`update` with each of the draws, which may be those of several runs, as one program.

    `state.updates` is a number of Python, which decides when a program is made, and not in it, what
    is due. So it stays outside, where nobody has to wait for it.
    """
    done = state.updates
    counts = range(done + 1, done + 1 + len(draws))
    due = tuple(count % delay == 0 for count in counts for delay in config.delays)
    start = _same.setdefault((config.delays, due), done)
    batch, learned = draws[0].batch, state._replace(updates=None)
    if isinstance(batch, Slots):
        table, widths = batch.mirror.table, batch.mirror.widths
        drawn = [(draw.batch.slots, draw.noise) for draw in draws if isinstance(draw.batch, Slots)]
        learned, metrics = _one_picking(update, config, start, widths, learned, table, drawn)
    else:
        program = _one if batch.reward.ndim == 1 else _stacked
        learned, metrics = program(update, config, start, learned, list(draws))
    return learned._replace(updates=done + len(draws)), metrics


def _successive(
    update: Update, config: Any, start: int, state: Any, draws: list[Draw]
) -> tuple[Any, Metrics]:
    """`update` with each of the draws, after `start` others.

    What is due repeats after as many updates as the delays' least common multiple. A loop over such
    rounds, which are all alike and so all begin at `start`, rather than one update after another
    in the program, keeps compilation short with many environments. A few stand side by side in it:
    on a CPU XLA computes what does not depend on each other at once, but not within a loop.
    """

    def some(state: Any, draws: list[Draw], start: int) -> tuple[Any, Metrics]:
        metrics: Metrics = {}
        state = state._replace(updates=start)
        batch: Any
        for batch, noise in draws:
            state, new = update(config, state, batch, noise)
            metrics |= new
        return state._replace(updates=None), metrics

    size = math.lcm(*config.delays)
    rounds = len(draws) // size
    if rounds < 2:
        return some(state, draws, start)
    split = [draws[i : i + size] for i in range(0, rounds * size, size)]
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *split)
    state, found = jax.lax.scan(
        lambda state, draws: some(state, draws, start),
        state,
        stacked,
        unroll=min(rounds, max(UNROLLED // size, 1)),
    )
    state, metrics = some(state, draws[rounds * size :], start)
    return state, {name: values[-1] for name, values in found.items()} | metrics


def _successive_stacked(
    update: Update, config: Any, start: int, state: Any, draws: list[Draw]
) -> tuple[Any, Metrics]:
    """The same for several runs, side by side: states, batches and metrics (L, ...)."""
    # Noise is (K, L, B, A).
    axes = [Draw(Batch(*[0] * len(Batch._fields)), 1)] * len(draws)  # type: ignore[arg-type]
    function = functools.partial(_successive, update, config, start)
    return jax.vmap(function, in_axes=(0, axes))(state, draws)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=4)
def _one_picking(
    update: Update,
    config: Any,
    start: int,
    widths: Sequence[int],
    state: Any,
    table: Array,
    draws: list[tuple[Array, Array]],
) -> tuple[Any, Metrics]:
    """The same for one run, with batches that lie in these slots of a table."""
    picked = [Draw(_pick(table, widths, slots), noise) for slots, noise in draws]  # type: ignore[arg-type]
    return _successive(update, config, start, state, picked)


_one, _stacked = (
    jax.jit(function, static_argnums=(0, 1, 2), donate_argnums=3)
    for function in (_successive, _successive_stacked)
)


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
    # By default JAX keeps only what took a second, which none of ours does.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
