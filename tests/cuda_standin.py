"""CUDA graphs without a GPU: a stand-in for `torch.cuda` that captures work of the processor.

Like a real graph it records operations, not Python: a replay repeats them on the same memory. As on
a GPU, capturing computes nothing (what was changed meanwhile is put back, what came out is not a
number), and an operation that would have to wait for the device is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Queue:
    """Work of the processor is in order by itself."""

    def wait_stream(self, other: Queue) -> None:
        pass


class Recording(TorchDispatchMode):
    """Records every operation while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing\nfurther lines")
        given = tensors_in((args, kwargs))
        for tensor in given:
            where = memory_of(tensor)
            if where not in self._own and where not in self._before:
                whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                self._before[where] = (whole, whole.clone())
        result = func(*args, **(kwargs or {}))
        # Without autograd's own records, which would keep the networks alive.
        results = [tensor.detach() for tensor in tensors_in(result)]
        known = {memory_of(tensor) for tensor in given}
        self._own |= {memory_of(t): t for t in results if memory_of(t) not in known}
        plain = tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))
        self.operations.append((func, *plain, results))
        return result

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        for whole, before in self._before.values():
            whole.copy_(before)
        for tensor in self._own.values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, results in self.operations:
            for found, recorded in zip(tensors_in(func(*args, **kwargs)), results, strict=True):
                if found.data_ptr() != recorded.data_ptr():
                    recorded.copy_(found)


class Cuda:
    """What `common_capture_torch` uses of `torch.cuda`.

    Args:
        failing: capturing fails, as where a library is not made for it.
    """

    Stream = Queue

    def __init__(self, *, failing: bool = False) -> None:
        self.graphs: list[Recording] = []
        self._failing = failing

    def current_stream(self) -> Queue:
        return Queue()

    @contextmanager
    def stream(self, stream: Queue) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> Recording:
        self.graphs.append(Recording())
        return self.graphs[-1]

    @contextmanager
    def graph(self, graph: Recording, *, stream: Queue) -> Iterator[None]:
        if self._failing:
            raise RuntimeError("no graphs here\nfurther lines")
        with graph:
            yield
