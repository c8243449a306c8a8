"""The result: a preset file for `polyak train --preset`, with the study's facts in comments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polyak.errors import PolyakError

HEADER = "# Found by polyak tune."
"""The first line: a file that begins otherwise is not replaced."""


def check(path: Path) -> None:
    """Refuses a file that could not be written, or is somebody's own.

    Raises:
        PolyakError: it is one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_text("utf-8", "replace").startswith(HEADER):
            raise PolyakError(f"{path} is no preset of polyak tune: choose another --output")
        with _beside(path).open("w"):
            _beside(path).unlink()
    except OSError as error:
        raise PolyakError(f"cannot write the preset {path}: {error.strerror}") from error


def write(path: Path, facts: Iterable[str], settings: Mapping[str, Any]) -> None:
    """Replaces the file as a whole.

    Args:
        path: the file.
        facts: lines of comment.
        settings: by field name.

    Raises:
        PolyakError: it cannot be written.
    """
    lines = [HEADER, *(f"# {' '.join(fact.split())}" for fact in facts)]
    lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
    temporary = _beside(path)
    try:
        temporary.write_text("\n".join(lines) + "\n", "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise PolyakError(f"cannot write the preset {path}: {error.strerror}") from error


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")  # of several processes' own each


def _toml(value: bool | int | float | str) -> str:
    """Booleans, numbers and texts look the same in JSON and in TOML, but for one character."""
    return json.dumps(value).replace("\x7f", "\\u007f")
