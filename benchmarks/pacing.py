"""Programs that take turns: each works a block when it is asked to, and waits while others work.

A slow spell of the machine then meets all of them, and each starts up and compiles only once.

A program reports when it could begin. Then each line on its standard input asks for a number of
steps, and it reports the seconds that they took. Standard library only: the programs run in other
environments as well.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

MARK = "@block "
"""Before a report: a program may print other lines as well."""

TASK = "PACED_TASK"
"""Environment variable that says to `paced_env` which task it is."""

Key = TypeVar("Key", bound=Hashable)


def report(seconds: float, **more: float) -> None:
    """Says that a block is done, from inside of a program, and what was measured."""
    values = {"seconds": seconds, "peak_memory": peak_memory(), **more}
    print(MARK + json.dumps(values), flush=True)


def asked() -> int | None:
    """Waits until a block is asked for; how many steps it has, or None where all is done."""
    line = sys.stdin.readline()
    return int(line) if line else None


def peak_memory() -> int:
    """The most bytes that this process has held in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Worker:
    """One of these programs, seen from outside; use it as a context manager.

    Args:
        command: starts it.
        variables: what it finds in its environment beside what is in ours; empty ones are removed.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command = command
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed below
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={k: v for k, v in (os.environ | variables).items() if v or k not in variables},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()  # it keeps nothing that is needed
        self._process.communicate()
        self._errors.close()

    def read(self) -> dict[str, float]:
        """The next report.

        Raises:
            RuntimeError: it ended instead; the message holds its last words.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                values: dict[str, float] = json.loads(line.removeprefix(MARK))
                return values
        self._errors.seek(0)
        words = self._errors.read()[-2000:]
        raise RuntimeError(f"{' '.join(self._command)} ended early:\n{words}")

    def work(self, steps: int) -> dict[str, float]:
        """Asks for a block and waits for its report.

        Raises:
            RuntimeError: it ended instead.
        """
        assert self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)
        return self.read()


class Turns(NamedTuple):
    """A worker, and how much it works."""

    worker: Worker
    warm_up: int
    """Steps of its first block, which does not count."""
    steps: int
    """Steps of each block that does."""


def take_turns(turns: Mapping[Key, Turns], rounds: int) -> dict[Key, list[dict[str, float]]]:
    """Lets every worker get warm and then work a block in each round; their reports.

    All start up side by side, but no two ever compute at once. Every second round goes backwards,
    so that nobody always works after the same one.
    """
    for worker, _, _ in turns.values():
        worker.read()
    for worker, warm_up, _ in turns.values():
        worker.work(warm_up)
    reports: dict[Key, list[dict[str, float]]] = {key: [] for key in turns}
    for number in range(rounds):
        for key in list(turns)[:: -1 if number % 2 else 1]:
            worker, _, steps = turns[key]
            reports[key].append(worker.work(steps))
    return reports
