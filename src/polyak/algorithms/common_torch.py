"""What the PyTorch algorithms share: network, gradient step, moving average, device."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyak.algorithms.initial import Weights, under
from polyak.algorithms.interface import Batch, Draw, Metrics, Place, Update
from polyak.errors import PolyakError


class Linear(nn.Module):
    """One layer: weight (out, in) and bias (out,), or stacks of them on leading axes."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor, only: int | None = None) -> Tensor:
        """(..., B, in) -> (..., B, out), where weight and bias have these leading axes too.

        An ensemble E whose networks see the same input x (B, in) gives (E, B, out); with other
        axes before, (..., B, in) gives (..., E, B, out). `only` picks one network of the ensemble,
        which then behaves as if it stood alone.
        """
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if only is not None:
            weight, bias = weight.select(-3, only), bias.select(-2, only)
        if weight.dim() > x.dim():  # one product for the whole ensemble instead of E
            ensemble, outputs, _ = weight.shape[-3:]
            y = _products(x, weight.flatten(-3, -2), bias.flatten(-2, -1))
            return y.unflatten(-1, (ensemble, outputs)).transpose(-3, -2)
        return _products(x, weight, bias)


def _products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(..., B, in), (..., out, in), (..., out) -> (..., B, out)."""
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    lead = weight.shape[:-2]
    x, weight, bias = x.flatten(0, -3), weight.flatten(0, -3), bias.flatten(0, -2)
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2)).unflatten(0, lead)


class MLP(nn.ModuleList):
    """Fully connected layers, ReLU between them; parameters `0.weight`, `0.bias`, `1.weight`, ...

    All parameters are views of one tensor, `flat`, and so are their gradients: Adam and the moving
    average of the target are then one operation each instead of one per parameter.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], device: torch.device) -> None:
        flat = torch.cat([torch.from_numpy(w).ravel() for w in weights.values()]).to(device)
        views = dict(zip(weights, _views(flat, weights), strict=True))
        super().__init__(
            Linear(views[f"{layer}.weight"], views[f"{layer}.bias"])
            for layer in range(len(weights) // 2)
        )
        self.flat = flat

    def layers(self, x: Tensor, only: int | None = None) -> Tensor:
        """(..., B, in) -> (..., B, out), or (..., E, B, out) for an ensemble without `only`."""
        *hidden, output = self
        for layer in hidden:
            x = functional.relu(layer(x, only))
        return output(x, only)

    def weights(self) -> Weights:
        """A copy of the parameters as NumPy arrays."""
        return _copies(dict(self.named_parameters()))


class Scalar(nn.Module):
    """One learned number, built like a network so that `Adam` takes it."""

    def __init__(self, value: float | np.ndarray, device: torch.device) -> None:
        super().__init__()
        self.flat = torch.tensor(value, device=device).reshape(-1)
        self.value = nn.Parameter(self.flat.view(np.shape(value)))

    def forward(self) -> Tensor:
        """The number, (), or one for each of several runs, (L,)."""
        return self.value


MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
"""Adam's moments by the names that all backends share; PyTorch's own."""


class Adam:
    """Adam (Kingma & Ba 2015, epsilon 1e-8) on all parameters of a network."""

    def __init__(self, network: MLP | Scalar, learning_rate: float) -> None:
        self.network, self.learning_rate = network, learning_rate
        self._parameters = list(network.parameters())
        self._named = dict(network.named_parameters())
        # The optimiser sees one long parameter; its gradient is the network's, side by side.
        flat = nn.Parameter(network.flat)
        flat.grad = torch.zeros_like(network.flat)
        self._flat = flat
        self._gradients = _views(flat.grad, self._named)
        self._adam = torch.optim.Adam([flat], lr=learning_rate, fused=True)

    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of the loss, with respect to this network only.

        Where networks of several runs are stacked, each has a loss of its own, (L,), whose gradient
        by the others' weights is zero: the sum has the gradients of all.
        """
        gradients = torch.autograd.grad(loss.sum(), self._parameters)
        torch._foreach_copy_(self._gradients, gradients)
        self._adam.step()

    def snapshot(self) -> Weights:
        """Steps taken, and both moments for each of the network's parameters."""
        memory = self._adam.state[self._flat]  # empty before the first step
        arrays: Weights = {"steps": np.array(int(memory.get("step", 0)), np.int64)}
        for moment, key in MOMENTS.items():
            flat = memory.get(key, torch.zeros_like(self._flat))
            views = dict(zip(self._named, _views(flat, self._named), strict=True))
            arrays |= {f"{moment}.{name}": array for name, array in _copies(views).items()}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on where `snapshot` was taken."""
        # A fused Adam counts on the device, in float32.
        count = torch.tensor(float(arrays["steps"]), device=self._flat.device)
        memory: dict[str, Tensor] = {"step": count}
        for moment, key in MOMENTS.items():
            parts = [torch.from_numpy(arrays[f"{moment}.{name}"]).ravel() for name in self._named]
            memory[key] = torch.cat(parts).to(self._flat.device)
        self._adam.state[self._flat] = memory


def polyak_average(target: MLP, network: MLP, tau: float) -> None:
    """Target <- (1 - tau) target + tau network (Lillicrap et al. 2016, algorithm 1)."""
    target.flat.lerp_(network.flat, tau)


def tensors(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; on a CPU without a copy."""
    return Batch(*(torch.from_numpy(array).to(device) for array in batch))


def learn(update: Update, config: Any, state: Any, draws: Sequence[Draw]) -> tuple[Any, Metrics]:
    """See `Backend.learn`."""
    metrics: Metrics = {}
    for batch, noise in draws:
        state, new = update(config, state, batch, noise)
        metrics |= new
    return state, metrics


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
            copies = _copies(dict(part.named_parameters()))
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
            with torch.no_grad():
                for name, parameter in part.named_parameters():
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
    return {name: t.detach().cpu().numpy().copy() for name, t in tensors.items()}


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


def _views(flat: Tensor, like: Mapping[str, Any]) -> list[Tensor]:
    """Cuts a flat tensor into consecutive views with the shapes of `like`."""
    sizes = [int(np.prod(array.shape)) for array in like.values()]
    parts = torch.split(flat, sizes)
    return [part.view(array.shape) for part, array in zip(parts, like.values(), strict=True)]
