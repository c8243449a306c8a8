"""Arrays on disk: safetensors, written whole or not at all, and read with suspicion.

A file from elsewhere may be cut, damaged or made to harm. Its header is measured before it is
parsed, and every problem is a `PolyakError` of one line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from polyak.errors import PolyakError

LARGEST_HEADER = 1 << 20
"""Bytes of names and shapes beyond which a file is refused; ours have some thousand."""


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays as the bytes of a safetensors file."""
    return safetensors.numpy.save(dict(arrays))


def decode(data: bytes, name: object) -> dict[str, np.ndarray]:
    """Every array in the bytes of a safetensors file that is called `name` in messages.

    Raises:
        PolyakError: they are not such bytes.
    """
    if int.from_bytes(data[:8], "little") > LARGEST_HEADER:
        raise PolyakError(f"{name} cannot be read as safetensors: its header is too large")
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PolyakError(f"{name} cannot be read as safetensors: {reason}") from error


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, to be asked for names, shapes and types before numbers are read.

    Raises:
        PolyakError: no such file, or it is damaged, here or while it is read.
    """
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > LARGEST_HEADER:
                raise PolyakError(f"{path} cannot be read as safetensors: its header is too large")
        with safetensors.safe_open(path, framework="numpy") as tensors:
            yield tensors
    except FileNotFoundError as error:
        raise PolyakError(f"no {path}") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise PolyakError(f"{path} cannot be read as safetensors: {error}") from error


def write(path: Path, data: bytes) -> str:
    """Writes a file so that it is always whole: the old one or none, or the new one.

    Returns its SHA-256. Raises OSError.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk has better uses for half a file
            temporary.unlink()
        raise
    return hashlib.sha256(data).hexdigest()


def sync_folder(path: Path) -> None:
    """Makes the names of new files in a folder survive a loss of power. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
