"""Replay on a device: the table that a `Mirror` is, and when there is none."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from polyak.algorithms.interface import Batch

Made = TypeVar("Made")


def widths(obs_dim: int, action_dim: int) -> tuple[int, ...]:
    """Columns of each field of `Batch` in a row."""
    return (obs_dim, action_dim, 1, obs_dim, 1)


def side_by_side(batch: Batch) -> np.ndarray:
    """Transitions as rows: (R, 2 O + A + 2), float32, new."""
    columns = [field if field.ndim == 2 else field[:, None] for field in batch]
    return np.concatenate(columns, axis=1, dtype=np.float32)


def if_it_fits(
    make: Callable[[int, tuple[int, ...]], Made],
    rows: int,
    obs_dim: int,
    action_dim: int,
    free: int | None,
) -> Made | None:
    """A table made of rows and widths; None, with a warning, where the device has no memory for it.

    `free` is in bytes, None where nobody knows. A tenth of it is left for all the rest.
    """
    columns = widths(obs_dim, action_dim)
    needed = 4 * rows * sum(columns)
    reason = "" if free is None else f", of which {free / 1e9:.2f} are free"
    if free is None or needed <= 0.9 * free:
        try:
            return make(rows, columns)
        except RuntimeError as error:  # what PyTorch and JAX say when memory is full, among others
            reason = f": {str(error).partition(chr(10))[0]}"
    warnings.warn(
        f"batches come from the host, which is slower: a copy of replay on the GPU needs "
        f"{needed / 1e9:.2f} GB{reason}",
        stacklevel=2,
    )
    return None
