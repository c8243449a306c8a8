"""Checkpoints: everything that a run is, so that one that was killed goes on as if it had not been.

    checkpoint/
      checkpoint-20000.json     counters, generators, clocks, and the files below with checksums
      state-20000.safetensors   networks, targets, optimisers, the best agent
      replay-0-16384-20000.safetensors      rows of the replay buffer: first, last + 1, and the
      replay-16384-20000-20000.safetensors  step at which the file was written

No file is ever changed. A checkpoint exists once its JSON file does, which is written last; what
it does not name is removed after that, except what the checkpoint before it names. Full files of
replay rows are written once and shared, so a checkpoint costs what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyak import arrays, stopping
from polyak.algorithms.initial import Weights, under
from polyak.algorithms.interface import Backend, Metrics
from polyak.environments import Environments
from polyak.errors import PolyakError
from polyak.replay import Replay
from polyak.review import Review
from polyak.runs import Run, read_json
from polyak.stopping import Stopped
from polyak.tracking import Tracker, check_finite, say

FORMAT = 1
KEPT = 2
"""Checkpoints on disk: should the newest be damaged later, there is the one before."""

PART = 4 << 20
"""Bytes of a full file of replay rows, about; the last one is written anew until it is full."""

ARRAYS = r"(state|replay)-[\d-]+\.safetensors"
OURS = re.compile(rf"(checkpoint-\d+\.json|{ARRAYS})(\.tmp)?")
"""What a checkpoint's files are called; others in the folder, such as a notebook's, are let be."""

LARGEST_FILE = 4 << 30
"""Bytes beyond which a file is none of ours."""


class Entry(NamedTuple):
    """A file of a checkpoint."""

    name: str
    size: int
    sha256: str


class Saved(NamedTuple):
    """A checkpoint that was found whole."""

    step: int
    content: dict[str, Any]
    files: list[Entry]


class Folder:
    """The files of a run's checkpoints, and nothing of what they mean."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: list[Saved] = []  # oldest first

    @property
    def saved(self) -> Saved | None:
        """The newest checkpoint that was found or made."""
        return self._kept[-1] if self._kept else None

    def find(self) -> Saved | None:
        """The newest checkpoint that is whole; None if none was ever written.

        Newer ones that are damaged are removed.

        Raises:
            PolyakError: there are checkpoints and none is whole, or the folder cannot be written.
        """
        found = sorted(self.path.glob("checkpoint-*.json"), key=_step_of)
        problems = []
        while found:
            try:
                saved = self._parse(found[-1])
                for entry in saved.files:
                    self._checked(entry)
            except PolyakError as error:
                problems.append((found.pop(), str(error)))
                continue
            try:
                for file, problem in problems:
                    say(f"left out a checkpoint: {problem}")
                    file.unlink()
            except OSError as error:
                raise PolyakError(f"cannot write {self.path}: {error.strerror}") from error
            self._kept = [saved]
            for file in found[-2 : -KEPT - 1 : -1]:
                with contextlib.suppress(PolyakError):
                    self._kept.insert(0, self._parse(file))
            return saved
        if problems:
            raise PolyakError(
                f"no checkpoint in {self.path} is whole: the run cannot go on ({problems[0][1]})"
            )
        return None

    def load(self, entry: Entry) -> dict[str, np.ndarray]:
        """The arrays in a file.

        Raises:
            PolyakError: it is damaged.
        """
        return arrays.decode(self._checked(entry), self.path / entry.name)

    def write(self, name: str, content: dict[str, np.ndarray]) -> Entry:
        """Writes a file that the next `commit` may name. Raises OSError."""
        if not self.path.is_dir():
            self.path.mkdir()
            arrays.sync_folder(self.path.parent)
            arrays.sync_folder(self.path.parent.parent)
        data = arrays.encode(content)
        return Entry(name, len(data), arrays.write(self.path / name, data))

    def commit(self, saved: Saved) -> None:
        """Makes a checkpoint of files that were written; then removes what is no longer needed.

        Raises OSError; the checkpoint before is then as it was.
        """
        arrays.sync_folder(self.path)
        body = {"format": FORMAT, "step": saved.step, "files": saved.files} | saved.content
        text = json.dumps({"sha256": _digest(body), "content": body}, allow_nan=False)
        arrays.write(self.path / f"checkpoint-{saved.step}.json", text.encode())
        arrays.sync_folder(self.path)
        self._kept = [*(s for s in self._kept if s.step != saved.step), saved][-KEPT:]
        needed = {entry.name for kept in self._kept for entry in kept.files}
        needed |= {f"checkpoint-{kept.step}.json" for kept in self._kept}
        self._remove_all_but(needed)

    def clear(self) -> None:
        """Removes every checkpoint.

        Raises:
            PolyakError: the folder cannot be written.
        """
        try:
            if self.path.is_dir():
                self._remove_all_but(set())
                if not any(self.path.iterdir()):
                    self.path.rmdir()
        except OSError as error:
            raise PolyakError(f"cannot remove {self.path}: {error.strerror}") from error

    def _remove_all_but(self, needed: set[str]) -> None:
        ours = [file for file in self.path.iterdir() if OURS.fullmatch(file.name)]
        # JSON first: what such a file names must not be missing.
        for file in sorted(ours, key=lambda file: file.suffix != ".json"):
            if file.name not in needed:
                file.unlink()

    def _parse(self, path: Path) -> Saved:
        whole = read_json(path)
        content = whole.get("content")
        if not isinstance(content, dict) or whole.get("sha256") != _digest(content):
            raise PolyakError(f"{path} is damaged")
        if content.get("format") != FORMAT:
            raise PolyakError(
                f"{path} has format {content.get('format')}; this version reads {FORMAT}"
            )
        try:
            files = [Entry(*entry) for entry in content["files"]]
            step = content["step"]
            if not isinstance(step, int) or step != _step_of(path):
                raise ValueError(f"step {step}")
            _check_record(content["tracker"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolyakError(f"{path} is no checkpoint: {error}") from error
        return Saved(step, content, files)

    def _checked(self, entry: Entry) -> bytes:
        if not re.fullmatch(ARRAYS, str(entry.name)):
            raise PolyakError(f"{str(entry.name)[:80]!r} is no file of a checkpoint")
        path = self.path / entry.name
        try:
            size = path.stat().st_size
            if size != entry.size or size > LARGEST_FILE:
                raise PolyakError(f"{path} has {size} bytes, not {entry.size}")
            data = path.read_bytes()
        except OSError as error:
            raise PolyakError(f"cannot read {path}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise PolyakError(f"{path} is damaged")
        return data


class Checkpoints:
    """Saves a run between two rounds of its loop and restores it there.

    What must survive is what `save` names: the loop's own step, state, generator and metrics, and
    what environments, replay, record and evaluations hold.

    Args:
        folder: the files. Where it has found a checkpoint, the run goes on there.
        interval: environment steps between checkpoints; 0 for none but the last.
        total: step of the last.
        run: the run.
        backend: of the state.
        envs: the training environments.
        replay: the replay buffer.
        tracker: the record.
        review: the evaluations.
    """

    def __init__(
        self,
        folder: Folder,
        interval: int,
        total: int,
        *,
        run: Run,
        backend: Backend,
        envs: Environments,
        replay: Replay,
        tracker: Tracker,
        review: Review,
    ) -> None:
        self._folder, self._interval, self._total = folder, interval, total
        self._run, self._backend, self._envs = run, backend, envs
        self._replay, self._tracker, self._review = replay, tracker, review
        self._parts: dict[int, Entry] = {}  # files of rows by the number after their last row
        self.saved = folder.saved
        """Where the run goes on; None where it begins."""

    def __call__(
        self, step: int, state: Any, generator: np.random.Generator, metrics: Metrics
    ) -> None:
        """Saves if that is due; ends the run if this process was asked to stop.

        Raises:
            PolyakError: it cannot be saved. The checkpoint before is as it was.
            Stopped: the run was asked to stop, and has been saved.
        """
        stop = stopping.asked()
        due = self._interval and step % self._interval < len(self._envs)
        if due or stop or step >= self._total:
            self.save(step, state, generator, metrics)
            stop = stopping.asked()  # while it was saved
        if stop and step < self._total:
            command = f"polyak train --resume {shlex.quote(str(self._run.path))}"
            trust = " --trust-env" if ":" in self._envs.spec.env_id else ""
            raise Stopped(f"at step {step}; go on with: {command}{trust}")

    def save(self, step: int, state: Any, generator: np.random.Generator, metrics: Metrics) -> None:
        """Writes a checkpoint.

        Raises:
            PolyakError: the networks diverged, or the disk is full; the one before is as it was.
        """
        pending = {name: float(value) for name, value in metrics.items()}
        check_finite(step, pending)
        learned = self._backend.snapshot(state)
        for name, array in learned.items():
            if name.startswith(("actor.", "critic.")) and not np.isfinite(array).all():
                raise PolyakError(
                    f"training diverged: {name} is not finite at step {step}: lower --learning-rate"
                )
        results, best = self._review.snapshot()
        try:
            content = {
                "generator": generator.bit_generator.state,
                "metrics": pending,
                "environments": self._envs.snapshot(),
                "tracker": self._tracker.snapshot(step),
                "review": results,
                "rows": self._replay.rows,
            }
            weights = _prefixed("learned", learned) | _prefixed("best", best)
            weights["obs"] = self._replay.newest
            files = [self._folder.write(f"state-{step}.safetensors", weights)]
            files += self._write_rows(step)
            self._folder.commit(Saved(step, content, files))
            self._parts = {_rows_in(entry)[1]: entry for entry in files[1:]}
            self._run.write_status("running", step)
        except OSError as error:
            raise PolyakError(
                f"cannot save a checkpoint in {self._folder.path}: {error.strerror}"
            ) from error

    def restore(
        self, saved: Saved, state: Any, generator: np.random.Generator
    ) -> tuple[int, Any, np.ndarray, Metrics]:
        """Puts everything back.

        Args:
            saved: a checkpoint.
            state: fresh, of the same configuration.
            generator: is set to where it was.

        Returns:
            Step, state, observations (N, O) and metrics of the loop.

        Raises:
            PolyakError: the checkpoint is of another run.
        """
        step, content, files = saved
        fresh = self._backend.snapshot(state)
        try:
            weights = self._folder.load(files[0])
            learned, best = under("learned", weights), under("best", weights)
            _compare(learned, fresh)
            _compare(best, {name: fresh[name] for name in best})
            _compare({"obs": weights["obs"]}, {"obs": self._replay.newest})
            state = self._backend.restore(state, learned)
            generator.bit_generator.state = content["generator"]
            self._parts = {_rows_in(entry)[1]: entry for entry in files[1:]}
            parts = ((_rows_in(entry)[0], self._folder.load(entry)) for entry in files[1:])
            self._replay.restore(content["rows"], weights["obs"], parts)
            obs, renewed = self._envs.restore(content["environments"], self._replay)
            self._review.restore(content["review"], best)
            metrics = {str(name): float(value) for name, value in content["metrics"].items()}
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            AttributeError,
            IndexError,
        ) as error:
            reason = " ".join(str(error).split())[:200]
            raise PolyakError(
                f"{self._folder.path} holds a checkpoint of another run: {reason}"
            ) from error
        if renewed:
            # Their last transitions end an episode now, in which the file of them is wrong.
            self._parts.pop(self._replay.rows, None)
            which = ", ".join(map(str, renewed))
            say(
                f"environment {which} does not repeat its episode: a new one has begun, and the "
                "run goes on otherwise than it would have"
            )
        return step, state, obs, metrics

    def _write_rows(self, step: int) -> Iterator[Entry]:
        """Files that together hold all rows that are still in the buffer: old ones and new ones."""
        rows, oldest = self._replay.rows, self._replay.oldest
        size = self._replay.rows_of(PART)
        for begin in range(oldest // size * size, rows, size):
            first, end = max(begin, oldest), min(begin + size, rows)
            entry = self._parts.get(end)
            if entry is None or _rows_in(entry)[0] > first:
                name = f"replay-{first}-{end}-{step}.safetensors"
                entry = self._folder.write(name, self._replay.read(first, end))
            yield entry


def _rows_in(entry: Entry) -> tuple[int, int]:
    """The rows in a file, first and last plus one, as its name tells."""
    _, first, end, _ = entry.name.removesuffix(".safetensors").split("-")
    return int(first), int(end)


def _check_record(record: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError where it is not what `Tracker.snapshot` gives."""
    speed = record["speed"]
    pairs = [speed[name] or (0, 0.0) for name in ("last", "learning")]
    numbers = [record["step"], record["time"], record["rows"], record["events"] or 0]
    for number in (*numbers, speed["clock"], *pairs[0], *pairs[1]):
        if not 0 <= number < float("inf"):
            raise ValueError(f"{number} in the record")


def _step_of(path: Path) -> int:
    step = path.stem.removeprefix("checkpoint-")
    return int(step) if step.isdecimal() else -1


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _prefixed(group: str, weights: Weights) -> Weights:
    return {f"{group}.{name}": array for name, array in weights.items()}


def _compare(found: Weights, expected: Weights) -> None:
    """Raises ValueError where names, types or shapes differ."""
    for name in found.keys() | expected.keys():
        one, other = (
            f"{part[name].dtype} {part[name].shape}" if name in part else "absent"
            for part in (found, expected)
        )
        if one != other:
            raise ValueError(f"{name} is {one}, not {other}")
