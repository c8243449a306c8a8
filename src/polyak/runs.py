"""A run's folder: what was asked for, how it stands, and reading it back."""

from __future__ import annotations

import datetime
import fcntl
import functools
import json
import os
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from polyak import arrays
from polyak.errors import PolyakError
from polyak.settings import Setup

LARGEST_JSON = 64 << 20
"""Bytes beyond which a JSON file is none of ours."""

LIBRARIES = ("polyak", "numpy", "gymnasium", "mujoco", "torch", "jax", "jaxlib", "optax")


OURS = {"algorithm", "env_id", "exp_name", "seed"}
"""Settings by which a config.json is known as one of Polyak's: many programs write such a file."""


@dataclass(frozen=True)
class Run:
    """The folder of one run.

    config.json     every setting, versions, command line, git commit, machine
    status.json     running | finished | failed | interrupted, step, last error
    metrics.jsonl   one JSON object a line
    events.out...   the same for TensorBoard
    checkpoint/     what going on after an interruption needs
    final/  best/   saved agents
    videos/         films of training
    """

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """Contents of config.json.

        Raises:
            PolyakError: it cannot be read.
        """
        return read_json(self.path / "config.json")

    @property
    def status(self) -> dict[str, Any]:
        """Contents of status.json.

        Raises:
            PolyakError: it cannot be read, or tells no state and step.
        """
        status = read_json(self.path / "status.json")
        if not isinstance(status.get("state"), str) or not isinstance(status.get("step"), int):
            raise PolyakError(f"{self.path / 'status.json'} tells no state and step")
        return status

    @property
    def final_eval_return(self) -> float | None:
        """Mean return of the final deterministic evaluation, or None where there was none.

        Raises:
            PolyakError: the agent's description is damaged.
        """
        return self._eval_return("final")

    @property
    def best_eval_return(self) -> float | None:
        """The highest mean evaluation return so far, or None where there was no evaluation.

        Raises:
            PolyakError: the agent's description is damaged.
        """
        return self._eval_return("best")

    @property
    def films(self) -> list[tuple[int, Path]]:
        """Films of training, each with the step at which it begins, over all environments."""
        steps = {}
        for path in (self.path / "videos").glob("*"):
            if name := re.fullmatch(r"training-step-(\d+)\.(gif|mp4)", path.name):
                steps[path] = int(name[1])
        each = self.config["num_envs"] if steps else 1
        return [(each * steps[path], path) for path in sorted(steps, key=steps.__getitem__)]

    def metrics(self, name: str | None = None) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; with a name, those that hold that metric.

        Raises:
            PolyakError: the file is damaged.
        """
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_text("utf-8").splitlines(keepends=True) if path.is_file() else []
            # A row without an end was cut off by a crash and is none.
            rows = [json.loads(line) for line in lines if line.endswith("\n")]
            if not all(isinstance(row["step"], int) for row in rows):
                raise ValueError("a step is no whole number")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise PolyakError(f"{path} cannot be read: {error!r}") from error
        return [row for row in rows if name is None or name in row]

    def _eval_return(self, agent: str) -> float | None:
        path = self.path / agent / "agent.json"
        try:
            result = read_json(path)["results"].get("evaluation") if path.is_file() else None
            return sum(result["returns"]) / len(result["returns"]) if result else None
        except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise PolyakError(f"{path} does not describe an agent: {error!r}") from error

    def write_status(self, state: str, step: int, error: str = "") -> None:
        """Replaces status.json as a whole: a reader never sees half of it."""
        status = {"state": state, "step": step, "error": error, "time": time.time()}
        write_json(self.path / "status.json", status)


def find(paths: Sequence[Path]) -> list[Run]:
    """The runs among some folders and below them, each once, in the order of their paths.

    Raises:
        PolyakError: one of the folders holds none.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        runs = [Run(file.parent) for file in path.glob("**/config.json") if _is_ours(file)]
        if not runs:
            raise PolyakError(f"no runs in {path}: give run folders or folders of them")
        found |= {run.path.resolve(): run for run in runs}
    return [found[path] for path in sorted(found)]


def _is_ours(file: Path) -> bool:
    try:
        return read_json(file).keys() >= OURS
    except PolyakError:  # damaged if its neighbours are ours; whoever reads it then says so
        return all((file.parent / name).is_file() for name in ("status.json", "metrics.jsonl"))


def create(setup: Setup, device: str) -> Run:
    """Makes a new run folder, never one that exists, and writes its configuration.

    Args:
        setup: what is asked for.
        device: what it will run on, in words.

    Raises:
        PolyakError: the folder cannot be written.
    """
    settings = setup.settings
    parts = (settings.env_id, settings.exp_name, str(settings.seed), str(int(time.time())))
    # 60 characters each: most file systems take names of 255 bytes.
    name = "__".join(re.sub(r"[:/\\]+", "-", part)[:60] for part in parts)
    path = Path(settings.runs_dir) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1000):  # runs that began in the same second
            try:
                path = path.with_name(f"{name}-{attempt + 1}" if attempt else name)
                path.mkdir()
                break
            except FileExistsError:
                continue
        run = Run(path)
        run.write_status("running", 0)
        write_json(
            path / "config.json", setup.asdict() | {"context": context() | {"device": device}}
        )
    except OSError as error:
        reason = error.strerror
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "a file is in the way"
        raise PolyakError(
            f"cannot write the run folder {path}: {reason}; choose another --runs-dir"
        ) from error
    return run


@contextmanager
def writing(run: Run) -> Iterator[None]:
    """Holds a run for this process: one folder, one writer.

    Raises:
        PolyakError: another process (or another run of this one) holds it, or it cannot be written.
    """
    path = run.path / "metrics.jsonl"  # which, unlike its neighbours, is never replaced
    try:
        file = path.open("ab")
    except OSError as error:
        raise PolyakError(f"cannot write {path}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PolyakError(f"{run.path} is being written by another process") from error
        except OSError as error:  # a file system without locks
            warnings.warn(
                f"{run.path} cannot be locked ({error.strerror}): start no other process on it",
                stacklevel=3,
            )
        yield


def reopen(run: Run, setup: Setup, device: str, step: int) -> None:
    """Brings the configuration of a run that goes on up to date, and adds where it does.

    Args:
        run: the run.
        setup: its set-up from here on.
        device: what it will run on, in words.
        step: where it goes on.

    Raises:
        PolyakError: the folder cannot be written, or its configuration is damaged.
    """
    before = run.config.get("context", {})
    here = context() | {"device": device, "step": step}
    try:
        resumed = {"resumed": [*before.get("resumed", []), here]}
    except (AttributeError, TypeError) as error:
        reason = f"its context is {str(before)[:80]}"
        raise PolyakError(f"{run.path / 'config.json'} is damaged: {reason}") from error
    try:
        write_json(run.path / "config.json", setup.asdict() | {"context": before | resumed})
        run.write_status("running", step)
    except OSError as error:
        raise PolyakError(f"cannot write the run folder {run.path}: {error.strerror}") from error


def context() -> dict[str, Any]:
    """Where a run happens: versions, command line, git commit, machine."""
    return {
        "versions": versions(),
        "command": sys.argv,
        "git": _git(),
        "machine": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@functools.cache  # reads the metadata of every library, and is asked at each save
def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        PolyakError: no such file, or not a JSON object.
    """
    try:
        if (size := path.stat().st_size) > LARGEST_JSON:
            raise PolyakError(f"{path} has {size:,} bytes, which is no description of ours")
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PolyakError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PolyakError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise PolyakError(f"{path} holds no JSON object")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object so that the file is always whole: the old one, or the new one."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    arrays.write(path, f"{text}\n".encode())


def _git() -> dict[str, Any]:
    """Commit and tags of the working folder, empty outside a repository."""

    def ask(*command: str) -> str:
        answer = subprocess.run(
            ("git", *command), capture_output=True, text=True, timeout=10, check=False
        )
        return answer.stdout.strip() if answer.returncode == 0 else ""

    try:
        commit = ask("rev-parse", "HEAD")
        if not commit:
            return {}
        return {
            "commit": commit,
            "tags": ask("tag", "--points-at", "HEAD").split(),
            "dirty": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.TimeoutExpired):
        return {}


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()
