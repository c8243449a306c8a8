"""Where a run's numbers go: JSON lines (the truth), TensorBoard, other sinks, the progress bar."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from tqdm import tqdm

from polyak import tensorboard
from polyak.environments import Episode
from polyak.errors import PolyakError
from polyak.evaluation import Evaluation
from polyak.runs import Run
from polyak.tensorboard import Event, EventsWriter


class Sink(Protocol):
    """Another place for a run's numbers. It may fail: the run then goes on without it."""

    @property
    def name(self) -> str:
        """What a warning calls it."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A row of `Tracker.write`."""

    def films(self, films: list[tuple[int, Path]]) -> None:
        """Films of training, each with the step at which it begins."""

    def close(self, *, succeeded: bool) -> None:
        """The run is over."""


def check_rows(path: Path, size: int) -> None:
    """Looks whether the first `size` bytes of a record are still there and end with a row.

    Raises:
        PolyakError: they are not.
    """
    if not size:
        return
    with path.open("rb") as file:
        file.seek(size - 1)
        whole = file.read(1) == b"\n"
    if not whole:
        raise PolyakError(
            f"{path} has lost rows, or was changed, since the checkpoint was written: this run "
            "cannot go on; its saved agents can still be used"
        )


class Tracker:
    """Writes a run's metrics; use it as a context manager.

    Every row says at which environment step something happened (the first step is 1) and how many
    seconds after the start of the run.

    Args:
        run: the folder to write to.
        total: environment steps that the run will take.
        progress: whether to show a progress bar on standard error.
        saved: what `snapshot` gave, of a run that goes on there: later rows are cut off, and the
            pause does not count.
        sinks: where else the rows go.

    Raises:
        PolyakError: the file cannot be written; see also `check_rows`.
    """

    def __init__(
        self,
        run: Run,
        total: int,
        *,
        progress: bool,
        saved: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        saved = saved or {}
        path, keep = run.path / "metrics.jsonl", saved.get("rows", 0)
        check_rows(path, keep)
        self._run = run
        self._sinks = list(sinks)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if path.is_file():  # and no device
            self._file.truncate(keep)
        self._board = _Board(run, saved.get("events", 0))
        self._began = time.perf_counter() - saved.get("time", 0.0)
        self._speed = Speed(saved.get("speed"))
        self._seen: dict[str, str] = {}
        # Without a terminal a bar is a line in a log: two a minute are enough.
        self._bar = tqdm(
            total=total,
            initial=saved.get("step", 0),
            unit="step",
            disable=not progress,
            file=_Screen(),
            mininterval=0.2 if sys.stderr.isatty() else 30.0,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {postfix}"
            " [{elapsed}<{remaining}]",
        )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        self._board.close(succeeded=error is None)
        self._tell(lambda sink: sink.close(succeeded=error is None))
        with contextlib.suppress(OSError):  # a full disk, which `write` has reported
            self._file.close()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row. Values must be finite.

        Raises:
            PolyakError: one is not (the networks diverged), or the disk is full.
        """
        check_finite(step, values)
        row: dict[str, Any] = {"step": step, "time": round(time.perf_counter() - self._began, 3)}
        try:
            self._file.write(json.dumps(row | dict(values), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise PolyakError(f"cannot write {self._file.name}: {error.strerror}") from error
        self._board.write(step, values)
        self._tell(lambda sink: sink.write(step, values))

    def films(self) -> None:
        """Shows the films of training, if there are any."""
        if films := self._run.films:
            self._board.films(films)
            self._tell(lambda sink: sink.films(films))

    def snapshot(self, step: int) -> dict[str, Any]:
        """Where the record stands, for `saved`; what was written so far survives a power cut.

        Raises:
            OSError: it cannot be written.
        """
        self._file.flush()
        if Path(self._file.name).is_file():
            os.fsync(self._file.fileno())
        return {
            "step": step,
            "time": time.perf_counter() - self._began,
            "rows": os.fstat(self._file.fileno()).st_size,
            "events": self._board.flush(),
            "speed": self._speed.snapshot(),
        }

    def advance(self, steps: int) -> None:
        """Moves the progress bar."""
        self._bar.update(steps)

    def episodes(self, episodes: Sequence[Episode]) -> None:
        """One row for each finished training episode, at its own step."""
        for episode in episodes:
            values = {
                "charts/episodic_return": episode.episodic_return,
                "charts/episodic_length": float(episode.length),
            }
            self.write(episode.step, values)
            self._show(**{"return": f"{episode.episodic_return:.1f}"})

    def training(self, step: int, metrics: Mapping[str, Any], *, learning: bool) -> None:
        """The losses since the last call, fetched from the device here, and the speed."""
        values = {name: float(value) for name, value in metrics.items()}
        values |= self._speed(step, learning=learning)
        if values:  # the first row of a warm-up has none
            self.write(step, values)
        if "charts/SPS" in values:
            self._show(SPS=f"{values['charts/SPS']:.0f}")

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """The mean of a deterministic evaluation and its spread."""
        values = {
            "eval/episodic_return": evaluation.mean,
            "eval/episodic_return_std": evaluation.std,
            "eval/episodic_length": sum(evaluation.lengths) / len(evaluation.lengths),
        }
        self.write(step, values)
        self._show(eval=f"{evaluation.mean:.1f}")

    def pause(self) -> None:
        """Stops the speed's clock, for an evaluation."""
        self._speed.pause()

    def resume(self) -> None:
        """Starts the speed's clock again."""
        self._speed.resume()

    def _tell(self, what: Callable[[Sink], None]) -> None:
        for sink in self._sinks.copy():
            try:
                what(sink)
            except Exception as error:  # noqa: BLE001 - of any library, and no reason to stop
                self._sinks.remove(sink)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                warnings.warn(f"nothing more goes to {sink.name}: {reason}", stacklevel=3)

    def _show(self, **values: str) -> None:
        self._seen |= values
        self._bar.set_postfix_str(
            "  ".join(f"{k} {v}" for k, v in self._seen.items()), refresh=False
        )


def check_finite(step: int, values: Mapping[str, float]) -> None:
    """Refuses a metric that is not finite.

    Raises:
        PolyakError: the networks diverged.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            raise PolyakError(
                f"{name} is {value} at step {step}: training diverged; lower --learning-rate"
            )


def say(text: str) -> None:
    """A line on standard error, or nowhere if that cannot be written."""
    print(text, file=_Screen())


class _Screen:
    """Standard error for the progress bar; a run outlives its terminal, pipe or log's disk."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class _Board:
    """TensorBoard events: rows, settings, films. Where they cannot be written, the run goes on.

    Written where they arise: tensorboardX's `SummaryWriter` hands them to a thread, whose death on
    a full disk would leave the run waiting for ever.
    """

    FLUSH = 10.0
    """Seconds after which a viewer sees a new event."""

    def __init__(self, run: Run, keep: int | None) -> None:
        """Goes on after the first `keep` bytes; None where an earlier process gave up."""
        self._writer: EventsWriter | None = None
        self._flushed = time.perf_counter()
        if keep is None:
            return
        try:
            self._writer = EventsWriter(tensorboard.events_file(run.path), keep, time.time())
        except OSError as error:
            self._give_up(error)
        if not keep:
            self._put(tensorboard.session_start(run.config))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._put(tensorboard.scalars(step, values))

    def films(self, films: list[tuple[int, Path]]) -> None:
        from polyak import video  # loads image libraries, which only films need

        try:
            for step, path in films:
                self._put(tensorboard.film(step, video.as_gif(path)))
        except PolyakError as error:
            warnings.warn(f"no films in TensorBoard: {error}", stacklevel=3)

    def close(self, *, succeeded: bool) -> None:
        self._put(tensorboard.session_end(succeeded=succeeded))
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)

    def _put(self, event: Event) -> None:
        if self._writer is None:
            return
        try:
            self._writer.write_event(event)
            if time.perf_counter() - self._flushed > self.FLUSH:
                self._writer.flush()
                self._flushed = time.perf_counter()
        except OSError as error:
            self._give_up(error)

    def flush(self) -> int | None:
        """The length of the file, all of it on disk; None after giving up."""
        if self._writer is not None:
            try:
                return self._writer.flush()
            except OSError as error:
                self._give_up(error)
        return None

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        warnings.warn(f"no more TensorBoard events: {error.strerror}", stacklevel=2)


class Speed:
    """Environment steps per second of the loop itself: evaluation is not counted.

    `charts/SPS` covers the steps since the row before. `charts/SPS_learning` covers all steps since
    learning started; it begins one row late, so that no compilation and no random warm-up is in it.
    """

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        saved = saved or {"clock": 0.0, "last": None, "learning": None}
        self._clock: float = saved["clock"]  # seconds in the loop until the last pause
        self._since = time.perf_counter()
        self._last: Sequence[float] | None = saved["last"]  # step, clock
        self._learning: Sequence[float] | None = saved["learning"]

    def snapshot(self) -> dict[str, Any]:
        """The clock now and the rows it is compared with, for `saved`."""
        clock = self._clock + time.perf_counter() - self._since
        return {"clock": clock, "last": self._last, "learning": self._learning}

    def pause(self) -> None:
        """Stops the clock."""
        self._clock += time.perf_counter() - self._since

    def resume(self) -> None:
        """Starts it again."""
        self._since = time.perf_counter()

    def __call__(self, step: int, *, learning: bool) -> dict[str, float]:
        """Steps per second at this row; empty at the first, which has nothing to compare with."""
        now = (step, self._clock + time.perf_counter() - self._since)
        values = {}
        if self._last is not None:
            values["charts/SPS"] = _rate(self._last, now)
        if learning and self._learning is None:
            self._learning = now
        elif learning and self._learning is not None:
            values["charts/SPS_learning"] = _rate(self._learning, now)
        self._last = now
        return values


def _rate(begin: Sequence[float], end: Sequence[float]) -> float:
    return (end[0] - begin[0]) / max(end[1] - begin[1], 1e-9)
