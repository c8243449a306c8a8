"""How far a benchmark is: a line kept up to date on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Collection, Sequence

from polyak.benchmark.grid import Job
from polyak.benchmark.status import Index


def say(text: str, end: str = "\n") -> None:
    """Writes on standard error, or nowhere: a benchmark outlives its terminal."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


class Progress:
    """Counts runs and says how long the rest will take.

    The time left comes from the environment steps taken since this began, over all runs together;
    it is too short while runs are in their random warm-up.

    Args:
        jobs: all runs of the benchmark.
        done: those that were finished before.
        index: finds how far a run is.
    """

    LOOK = 5.0
    """Seconds between looks at how far the runs are, and between lines on a terminal."""
    QUIET = 300.0
    """Seconds between lines where there is no terminal."""

    def __init__(self, jobs: Sequence[Job], done: Collection[Job], index: Index) -> None:
        self._total, self._index = len(jobs), index
        self._steps = {job: job.steps for job in jobs if job not in done}
        self._taken: dict[Job, int] = {}
        self._before: dict[Job, int] = {job: index.step(job) for job in self._steps}
        self._done, self._failed = len(done), 0
        self._began = self._looked = self._said = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def ended(self, job: Job, text: str, *, failed: bool) -> None:
        """Counts a run that ended, and says so."""
        self._failed += failed
        self._done += not failed
        self._taken[job] = self._steps.pop(job) - self._before.pop(job, 0)
        self.say(text)
        self._said = 0.0

    def say(self, text: str) -> None:
        """A line that stays."""
        say(("\r\x1b[K" if self._terminal else "") + text)
        if self._terminal:
            self._said = 0.0  # the line of counts is drawn again

    def show(self, running: Collection[Job]) -> None:
        """The counts, if it is time for them."""
        now = time.monotonic()
        if now - self._looked >= self.LOOK or (self._terminal and not self._said):
            self._looked = now
            for job in running:
                self._taken[job] = max(self._index.step(job) - self._before.get(job, 0), 0)
            if self._terminal:
                say(f"\r\x1b[K{self.line(len(running))}", end="")
                self._said = now
        if not self._terminal and now - self._said >= self.QUIET:
            self._said = now
            say(self.line(len(running)))

    def line(self, running: int) -> str:
        """`3/18 done, 2 running, 1 failed, 3:12:05 left`."""
        counts = f"{self._done}/{self._total} done, {running} running, {self._failed} failed"
        taken = sum(self._taken.values())
        left = sum(
            steps - self._before.get(job, 0) - self._taken.get(job, 0)
            for job, steps in self._steps.items()
        )
        if not left or not taken:
            return counts
        seconds = round((time.monotonic() - self._began) * left / taken)
        return f"{counts}, {datetime.timedelta(seconds=seconds)} left"

    def close(self) -> None:
        """Ends the line."""
        if self._terminal:
            say("\r\x1b[K" + self.line(0))
        else:
            say(self.line(0))
