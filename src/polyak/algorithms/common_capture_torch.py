"""Work on a GPU in PyTorch, captured as a CUDA graph and replayed with one call.

An update is a hundred short operations, and starting them one by one takes longer than computing
them. A graph starts all of them at once. It always reads and writes the same memory, and runs no
Python: what the work reads lies in tensors that are filled before a replay, what it changes is
changed in place, and what it returns is overwritten by the next replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, cuda

Results = dict[str, Tensor]

WARM_UPS = 3
"""How often the work is done before it is captured, so that libraries have set themselves up."""


class Captured:
    """Work as a CUDA graph.

    Capturing leaves what the work changes as it was. Each graph has memory of its own: results of
    one are still there after another was replayed.

    Args:
        work: reads `inputs`, changes `changed` in place, returns its results. It must not wait for
            the device, nor take anything from the host's memory. It is called a few times.
        inputs: what a call of the graph fills.
        changed: all that the work changes.

    Raises:
        RuntimeError: it cannot be captured, or the device's memory is full.
    """

    def __init__(
        self, work: Callable[[], Results], inputs: Sequence[Tensor], changed: Sequence[Tensor]
    ) -> None:
        self._inputs = inputs
        usual, stream = cuda.current_stream(), cuda.Stream()
        before = [tensor.clone() for tensor in changed]
        # Capturing needs a stream that is not the usual one, and libraries keep things by stream:
        # the warm-up is on the same one.
        stream.wait_stream(usual)
        try:
            with cuda.stream(stream):
                try:
                    for _ in range(WARM_UPS):
                        work()
                finally:
                    for tensor, old in zip(changed, before, strict=True):
                        tensor.copy_(old)
                self._graph = cuda.CUDAGraph()
                with cuda.graph(self._graph, stream=stream):
                    self._results = work()
        finally:
            usual.wait_stream(stream)

    def __call__(self, arrays: Sequence[np.ndarray]) -> Results:
        """Does the work with these arrays as inputs; does not wait for it."""
        for tensor, array in zip(self._inputs, arrays, strict=True):
            fill(tensor, array)
        self._graph.replay()
        return self._results


def fill(tensor: Tensor, array: np.ndarray) -> None:
    """Copies an array into a tensor of its shape; on a GPU without waiting for it."""
    source = torch.from_numpy(array)
    if tensor.is_cuda and array.size:
        # From pageable memory the copy would wait for all that the device has still to do. PyTorch
        # keeps this block until the device has read it.
        source = source.pin_memory()
    tensor.copy_(source, non_blocking=True)
