"""What the PyTorch algorithms share: network, gradient step, moving average, device.

The arithmetic of a network's layers is in `common_layers_torch.py`, CUDA graphs are in
`common_capture_torch.py`.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from polyak.algorithms.common_capture_torch import Captured, fill
from polyak.algorithms.common_layers_torch import Layers, cut, evaluate
from polyak.algorithms.initial import Weights, under
from polyak.algorithms.interface import Batch, Draw, Metrics, Place, Slots, Update
from polyak.algorithms.mirror import if_it_fits
from polyak.errors import PolyakError

CAPTURING = frozenset({"cuda"})
"""Kinds of devices that keep a copy of replay and replay captured updates."""


class MLP:
    """Fully connected layers, ReLU between them; parameters `0.weight`, `0.bias`, `1.weight`, ...

    Weights are (out, in) and biases (out,), or E of them stacked on a leading axis. All parameters
    are views of one tensor, `flat`, whose gradient autograd is asked for: Adam and the moving
    average of the target are then one operation each instead of one per parameter.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], device: torch.device) -> None:
        self.shapes = {name: array.shape for name, array in weights.items()}
        self._lead = self.shapes["0.weight"][:-2]
        kind = torch.from_numpy(weights["0.weight"]).dtype
        memory = torch.empty(sum(w.size for w in weights.values()), dtype=kind, device=device)
        self.parameters = cut(memory, self.shapes)
        for name, array in weights.items():
            self.parameters[name].copy_(torch.from_numpy(array))
        self.flat = memory.detach().requires_grad_()
        self._stacked: dict[int | None, Sequence[Tensor]] = {}

    def layers(self, *inputs: Tensor, only: int | None = None) -> Tensor:
        """(..., B, in) -> (..., B, out), or (..., E, B, out) for an ensemble without `only`.

        Several inputs stand side by side: theirs together is `in`. `only` picks one network of an
        ensemble, which then behaves as if it stood alone.
        """
        lead = self._lead if only is None else self._lead[:-1]
        if len(lead) > 1:  # runs side by side, of an ensemble each, with the inputs of each run
            inputs = tuple(x[:, None].expand(*lead, *x.shape[1:]).flatten(0, 1) for x in inputs)
        if only not in self._stacked:
            self._stacked[only] = self._stacks(self.parameters, only)
        parameters = self._stacked[only]
        if torch.is_grad_enabled():
            gradients = functools.partial(self._gradients, only)
            output = cast("Tensor", Layers.apply(self.flat, parameters, gradients, *inputs))
        else:
            output = evaluate(parameters, inputs)[-1]
        return output.unflatten(0, lead) if len(lead) > 1 else output

    def frozen(self) -> Self:
        """The same network with constants for weights: no time goes into their gradient."""
        network = copy.copy(self)
        network.flat = self.flat.detach()
        return network

    def weights(self) -> Weights:
        """A copy of the parameters as NumPy arrays."""
        return _copies(self.parameters)

    def _gradients(self, only: int | None) -> tuple[Tensor, Sequence[Tensor]]:
        new = torch.empty_like if only is None else torch.zeros_like
        flat = new(self.flat)
        return flat, self._stacks(cut(flat, self.shapes), only)

    def _stacks(self, views: Mapping[str, Tensor], only: int | None) -> Sequence[Tensor]:
        """What `cut` gave, with one leading axis at most."""
        found = []
        for name, view in views.items():
            axes = 2 if name.endswith("weight") else 1
            if only is not None:
                view = view.select(-axes - 1, only)
            found.append(view.flatten(0, 1) if view.dim() > axes + 1 else view)
        return found


class Scalar:
    """One learned number, built like a network so that `Adam` takes it."""

    def __init__(self, value: float | np.ndarray, device: torch.device) -> None:
        memory = torch.tensor(value, device=device).reshape(-1)
        self.shapes = {"value": np.shape(value)}
        self.parameters = cut(memory, self.shapes)
        self.flat = memory.detach().requires_grad_()

    def __call__(self) -> Tensor:
        """The number, (), or one for each of several runs, (L,)."""
        return self.flat.view(self.shapes["value"])


class Adam:
    """Adam (Kingma & Ba 2015, epsilon 1e-8) on all parameters of a network."""

    def __init__(self, network: MLP | Scalar, learning_rate: float) -> None:
        self.network, self.learning_rate = network, learning_rate
        self.moments = {
            "first_moment": torch.zeros_like(network.flat, requires_grad=False),
            "second_moment": torch.zeros_like(network.flat, requires_grad=False),
        }
        # A fused Adam counts on the device, in float32.
        self.steps = torch.zeros((), dtype=torch.float32, device=network.flat.device)

    @torch.no_grad()
    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of the loss, with respect to this network only.

        Where networks of several runs are stacked, each has a loss of its own, (L,), whose gradient
        by the others' weights is zero: the sum has the gradients of all.
        """
        flat = self.network.flat
        (gradient,) = torch.autograd.grad(loss, [flat], [torch.ones_like(loss)])
        first, second = self.moments.values()
        adam(
            [flat], [gradient], [first], [second], [], [self.steps], fused=True, amsgrad=False,
            lr=self.learning_rate, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0,
            maximize=False,
        )  # fmt: skip

    def snapshot(self) -> Weights:
        """Steps taken, and both moments for each of the network's parameters."""
        arrays: Weights = {"steps": np.array(int(self.steps), np.int64)}
        for name, views in self._views():
            arrays[name] = views.cpu().numpy().copy()
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on where `snapshot` was taken."""
        self.steps.fill_(float(arrays["steps"]))
        for name, view in self._views():
            view.copy_(torch.from_numpy(arrays[name]))

    def _views(self) -> Iterator[tuple[str, Tensor]]:
        for moment, flat in self.moments.items():
            for name, view in cut(flat, self.network.shapes).items():
                yield f"{moment}.{name}", view


def polyak_average(target: MLP, network: MLP, tau: float) -> None:
    """Target <- (1 - tau) target + tau network (Lillicrap et al. 2016, algorithm 1)."""
    target.flat.detach().lerp_(network.flat.detach(), tau)


def tensor(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The array on the device, as it is if it lies there; on a CPU without a copy."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array).to(device)


def tensors(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device."""
    return Batch(*(tensor(array, device) for array in batch))


class Mirror:
    """See `interface.Mirror`."""

    def __init__(self, device: torch.device, rows: int, widths: Sequence[int]) -> None:
        self._widths = list(widths)
        self._table = torch.zeros((rows, sum(widths)), device=device)

    def write(self, first: int, transitions: np.ndarray) -> None:
        """See `interface.Mirror`."""
        fill(self._table[first : first + len(transitions)], transitions)

    def pick(self, slots: Tensor) -> Batch:
        """The rows in these slots, (B,)."""
        columns = self._table.index_select(0, slots).split(self._widths, dim=-1)
        obs, action, reward, next_obs, terminated = columns
        return Batch(obs, action, reward.squeeze(-1), next_obs, terminated.squeeze(-1))


def mirror(device: torch.device, rows: int, obs_dim: int, action_dim: int) -> Mirror | None:
    """See `Backend.mirror`."""
    if device.type not in CAPTURING:
        return None
    make = functools.partial(Mirror, device)
    return if_it_fits(make, rows, obs_dim, action_dim, free_memory(device))


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a GPU."""
    free, _ = torch.cuda.mem_get_info(device)
    return free


def learn(update: Update, config: Any, state: Any, draws: Sequence[Draw]) -> tuple[Any, Metrics]:
    """See `Backend.learn`; on a GPU an update is one CUDA graph."""
    capturing = state.device.type in CAPTURING
    metrics: Metrics = {}
    for draw in draws:
        new = _replayed(update, config, state, draw) if capturing else None
        if new is None:
            state, new = update(config, state, _picked(draw.batch, state.device), draw.noise)
        metrics |= new
    return state, metrics


_graphs: WeakKeyDictionary[MLP, dict[Any, Captured] | None] = WeakKeyDictionary()
"""By the actor of a state its updates as graphs; None where they cannot be captured."""


def _replayed(update: Update, config: Any, state: Any, draw: Draw) -> Metrics | None:
    """One update as a CUDA graph, of which there is one for each of the ways in which its parts can
    be due; None, and nothing done, where it cannot be captured.
    """
    graphs = _graphs.setdefault(state.actor, {})
    if graphs is None:
        return None
    done, arrays = state.updates, _arrays(draw)
    source = draw.batch.mirror if isinstance(draw.batch, Slots) else None
    due = tuple((done + 1) % delay == 0 for delay in config.delays)
    key = (update, config, source, due, *(array.shape for array in arrays))
    if key not in graphs:
        inputs = [torch.from_numpy(array).to(state.device, copy=True) for array in arrays]

        def work() -> Metrics:
            state.updates = done  # decides what is due
            batch = source.pick(inputs[0]) if source else Batch(*inputs[:-1])
            return update(config, state, batch, inputs[-1])[1]

        try:
            graphs[key] = Captured(work, inputs, _learned(state))
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"updates start their operations one by one, which is slower: {reason}",
                stacklevel=4,
            )
            _graphs[state.actor] = None
            return None
        finally:
            state.updates = done
    state.updates = done + 1  # a graph runs no Python
    return graphs[key](arrays)


def _arrays(draw: Draw) -> list[np.ndarray]:
    """What a graph is given: slots or the arrays of a batch, and noise."""
    batch = [draw.batch.slots] if isinstance(draw.batch, Slots) else draw.batch
    return [*batch, draw.noise]


def _picked(batch: Batch | Slots, device: torch.device) -> Batch:
    if isinstance(batch, Slots):
        picked: Batch = batch.mirror.pick(tensor(batch.slots, device))
        return picked
    return batch


def _learned(state: Any) -> list[Tensor]:
    """All tensors that an update may change."""
    found = []
    for part in vars(state).values():
        if isinstance(part, MLP | Scalar):
            found.append(part.flat.detach())
        elif isinstance(part, Adam):
            found += [*part.moments.values(), part.steps]
    return found


def prepare(device: str, deterministic: bool, threads: int) -> Place:
    """Chooses the device and makes PyTorch repeatable.

    Args:
        device: `auto` (a GPU if there is one), `cpu` or `cuda`.
        deterministic: on a GPU, refuse operations whose result depends on scheduling.
        threads: processor threads. Layers of this size gain little from a second, and each product
            waits for the slowest: where another program runs, two are ten times slower than one.

    Raises:
        PolyakError: `cuda` without a GPU that PyTorch can use.
    """
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        raise PolyakError(
            f"--device cuda: PyTorch {torch.__version__} sees no GPU; use --device cpu or install "
            "PyTorch's CUDA build"
        )
    if gpu and device != "cpu":
        # cuBLAS is repeatable only with a workspace of its own, and looks for it at its first call.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # On a CPU all that we use is repeatable, and this call alone takes two seconds of imports.
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.deterministic = deterministic
        words = f"device: cuda ({torch.cuda.get_device_name()})"
        return Place(torch.device("cuda"), words, wide=True)
    _keep_freed_memory()
    torch.set_num_threads(threads)
    words = f"device: cpu, threads: {torch.get_num_threads()}"
    return Place(torch.device("cpu"), words, wide=False)


def export(state: Any) -> Weights:
    """Actor's and critics' weights as NumPy arrays, named `actor.0.weight`, `critic.0.bias`, ..."""
    return {
        f"{network}.{name}": array
        for network in ("actor", "critic")
        for name, array in getattr(state, network).weights().items()
    }


def snapshot(state: Any) -> Weights:
    """NumPy copies of everything that learns; see `Backend.snapshot` for the names."""
    arrays: Weights = {"updates": np.array(state.updates, np.int64)}
    for field, part in vars(state).items():
        if isinstance(part, MLP | Scalar):
            copies = _copies(part.parameters)
        elif isinstance(part, Adam):
            copies = part.snapshot()
        else:
            continue
        arrays |= {f"{field}.{name}": array for name, array in copies.items()}
    return arrays


def restore(state: Any, arrays: Weights) -> Any:
    """Puts a snapshot into a fresh state, in place; returns the state."""
    for field, part in vars(state).items():
        own = under(field, arrays)
        if isinstance(part, MLP | Scalar):
            for name, parameter in part.parameters.items():
                parameter.copy_(torch.from_numpy(own[name]))
        elif isinstance(part, Adam):
            part.restore(own)
    state.updates = int(arrays["updates"])
    return state


def stack(states: Sequence[Any]) -> Any:
    """The states of several runs at the same update as one, on a leading axis L."""
    arrays = [snapshot(state) for state in states]
    together = {
        # All runs have taken as many steps.
        name: array if array.dtype == np.int64 else np.stack([other[name] for other in arrays])
        for name, array in arrays[0].items()
    }
    return _rebuilt(states[0], together)


def unstack(state: Any, index: int) -> Any:
    """The state of one of the runs in a stack."""
    alone = {
        name: array if array.dtype == np.int64 else np.asarray(array[index])
        for name, array in snapshot(state).items()
    }
    return _rebuilt(state, alone)


def _rebuilt(state: Any, arrays: Weights) -> Any:
    """A state of the same kind from a snapshot of other shapes."""
    parts = vars(state).copy()
    for field, part in vars(state).items():
        if isinstance(part, Scalar):
            parts[field] = Scalar(arrays[f"{field}.value"], state.device)
        elif isinstance(part, MLP):
            parts[field] = type(part)(under(field, arrays), state.device)
    networks = {id(part): field for field, part in vars(state).items()}
    for field, part in vars(state).items():
        if isinstance(part, Adam):
            parts[field] = Adam(parts[networks[id(part.network)]], part.learning_rate)
    return restore(type(state)(**parts), arrays)


def _copies(tensors: Mapping[str, Tensor]) -> Weights:
    return {name: t.cpu().numpy().copy() for name, t in tensors.items()}


def _keep_freed_memory() -> None:
    """Lets glibc keep blocks of up to 32 MB for reuse instead of handing them back to the system.

    An update frees and takes again some dozen of half a megabyte. Handed back, each would be mapped
    anew page by page: some 400 page faults and 5 % of the time of an update of SAC.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library has no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, 1 << 30)
        libc.mallopt(mmap_threshold, 32 << 20)
