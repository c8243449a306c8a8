"""Small runs and processes, shared by the tests of this folder."""

from __future__ import annotations

import contextlib
import io
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import polyak
from polyak import cli, stopping
from polyak.runs import Run
from tests import toys

ALGORITHMS = ("ddpg", "td3", "sac")
TWIN = toys.PREFIX + "toys/Twin-v0"
"""A toy that other processes find as well."""

SMALL: dict[str, Any] = {
    "env_id": TWIN,
    "total_timesteps": 60,
    "learning_starts": 20,
    "batch_size": 8,
    "hidden_dim": 8,
    "log_interval": 10,
    "eval_interval": 0,
}
"""A run of a tenth of a second that makes 40 updates."""


def train(folder: Path, algorithm: str = "ddpg", /, **options: Any) -> Run:
    """A small run in a folder."""
    return polyak.train(algorithm, runs_dir=str(folder), **(SMALL | options))


def stopped(folder: Path, rounds: int, algorithm: str = "ddpg", /, **options: Any) -> Path:
    """The folder of a small run that was asked to stop after so many rounds."""
    calls = itertools.chain([False] * rounds, itertools.repeat(True, 9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "asked", lambda: next(calls))
        with pytest.raises(stopping.Stopped):
            train(folder, algorithm, **options)
    (path,) = (path.parent for path in folder.glob("*/status.json"))
    return path


def flags(**options: Any) -> list[str]:
    """The flags of `polyak train` that say the same as these options."""
    pairs = (("--" + name.replace("_", "-"), str(value)) for name, value in options.items())
    return [text for pair in pairs for text in pair]


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error of a command that refused."""
        assert self.code == 2
        (line,) = self.err.splitlines()
        assert line.startswith("polyak: error: ")
        assert len(line) < 400
        return line.removeprefix("polyak: error: ")


def polyak_cli(*arguments: object) -> Answer:
    """The command line in this process, where the libraries are imported already."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as done:  # argparse, after it printed help
            code = int(done.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def polyak_process(*arguments: object, cwd: Path, **options: Any) -> Answer:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "polyak", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, **options
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def weights(run: Run) -> bytes:
    """The final agent's weights, bit by bit."""
    return (run.path / "final" / "model.safetensors").read_bytes()
