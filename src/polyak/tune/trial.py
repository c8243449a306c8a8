"""A trial: a process of `polyak train`, watched through its run folders."""

from __future__ import annotations

import enum
import os
import shutil
import signal
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from polyak import stopping
from polyak.benchmark import grid, local
from polyak.benchmark.grid import Job
from polyak.benchmark.status import Index
from polyak.errors import PolyakError
from polyak.runs import Run

LAST = 3
"""Evaluations that a trial's objective is the mean of: one alone rewards luck."""
RETURN = "eval/episodic_return"


class Outcome(enum.Enum):
    """How a trial ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"
    LEFT = "left unfinished"
    """It was asked to stop, and goes on where it stopped."""


class Trial:
    """One set of settings, trained with one seed or several in a process of its own.

    What is known of it lies in its folder: the process may have been started by another one, and
    goes on from its checkpoints. Who holds the lock of its log has the trial; the process inherits
    the lock, so that a trial whose searcher was killed stays taken until its process ends.

    Args:
        number: Optuna's.
        jobs: its runs, one for each seed, in the order of the seeds.
        log: the file of its output.
        lock: the log's, as a file descriptor.
    """

    def __init__(self, number: int, jobs: Sequence[Job], log: Path, lock: int) -> None:
        self.number, self.jobs, self.log = number, jobs, log
        self.pruned = False
        self.code = 0
        self._lock = lock
        self._index = Index()
        self._child: subprocess.Popen[bytes] | None = None
        self._seen: dict[Path, int] = {}
        self._evaluations: dict[int, float] = {}

    def start(self) -> None:
        """Starts what is missing; nothing if every run has finished.

        Raises:
            PolyakError: the process cannot be started.
        """
        left = [job for job in self.jobs if not self._index.finished(job)]
        if not left:
            return
        # Seeds follow each other. Runs between two unfinished ones are few, and would end the same.
        first, count = left[0], left[-1].seed - left[0].seed + 1
        seeds = ("--num-seeds", str(count)) if count > 1 else ()
        words = grid.command((*first.arguments, *seeds, "--resume", "auto"), trains=True)
        self._child = local.start(words, self.log, self._lock, {})

    @property
    def begun(self) -> bool:
        """Whether an earlier process has left something of it."""
        return bool(self._runs())

    def running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.poll() is None

    def evaluations(self) -> dict[int, float]:
        """Returns of the evaluations that all seeds have reached, by step: means over the seeds.

        Raises:
            PolyakError: a record is damaged.
        """
        runs = self._runs()
        # status.json is replaced after each evaluation: only then there is something to read.
        seen = {run.path: (run.path / "status.json").stat().st_mtime_ns for run in runs}
        if len(runs) == len(self.jobs) and seen != self._seen:
            rows = [{row["step"]: row[RETURN] for row in run.metrics(RETURN)} for run in runs]
            common = set.intersection(*map(set, rows))
            self._evaluations = {
                step: statistics.fmean(row[step] for row in rows) for step in sorted(common)
            }
            self._seen = seen
        return self._evaluations

    def outcome(self) -> Outcome:
        """How it ended; only when its process has."""
        if self.pruned:
            return Outcome.PRUNED
        if all(self._index.finished(job) for job in self.jobs):
            return Outcome.COMPLETE
        self.code = self._child.returncode if self._child else 0
        # What `polyak train` says after a signal, or that signal itself before it was listening.
        if self.code == 130 or -self.code in stopping.SIGNALS:
            return Outcome.LEFT
        if any("diverged" in str(run.status.get("error", "")) for run in self._runs()):
            return Outcome.DIVERGED
        return Outcome.FAILED

    def value(self) -> float:
        """The objective: the mean of the last evaluations, over all seeds."""
        self._seen = {}  # two replacements within a tick of the file system's clock look like one
        return objective(self.evaluations())

    def signal(self, number: int) -> None:
        """Sends a signal to its process, if there is one."""
        if self._child is not None and self.running():
            self._child.send_signal(number)

    def prune(self) -> None:
        """Ends it, for good."""
        self.pruned = True
        self.signal(signal.SIGTERM)

    def wait(self) -> None:
        """Waits for its process."""
        if self._child is not None:
            self._child.wait()

    def release(self) -> None:
        """Leaves it to whoever wants it."""
        os.close(self._lock)

    def clear(self) -> None:
        """Removes its checkpoints, which nobody will go on from."""
        for run in self._runs():
            shutil.rmtree(run.path / "checkpoint", ignore_errors=True)

    def reason(self) -> str:
        """What went wrong, in a line: the last one of its log."""
        lines = local.tail(self.log).split("\n")
        return f"exit code {self.code}; {self.log} ends: {lines[-1].strip()}"

    def _runs(self) -> list[Run]:
        """The runs of its seeds as far as they have begun; of two of a seed the finished one."""
        return [run for job in self.jobs if (run := self._run(job)) is not None]

    def _run(self, job: Job) -> Run | None:
        runs = self._index.runs(job)
        return max(runs, key=_is_finished) if runs else None


def objective(evaluations: dict[int, float]) -> float:
    """The mean of the last `LAST` evaluations; the one before training does not count.

    Args:
        evaluations: mean return by step, in the order of the steps.
    """
    learned: Iterable[float] = [value for step, value in evaluations.items() if step > 0]
    return statistics.fmean([*learned][-LAST:])


def _is_finished(run: Run) -> bool:
    try:
        return bool(run.status["state"] == "finished")
    except PolyakError:  # killed before it was written
        return False
