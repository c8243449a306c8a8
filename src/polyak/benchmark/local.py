"""Runs on this machine: each a process of its own, so many at a time, none of them twice."""

from __future__ import annotations

import enum
import fcntl
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from polyak.benchmark.grid import Job
from polyak.benchmark.progress import Progress, say
from polyak.benchmark.status import Index, done_mark
from polyak.errors import PolyakError

POLL = 0.2
"""Seconds between looks at the processes."""
TAIL = 20
"""Lines of the log of a run that failed."""


class Outcome(enum.Enum):
    """How a process ended."""

    DONE = "done"
    BEFORE = "done by another process"
    FAILED = "failed"


class Process:
    """One run in a process of its own, with a log; waits while another process has the same run.

    The log is locked, and the process inherits the lock: it holds as long as the process lives,
    even if the benchmark that started it was killed. A second benchmark then waits for the run.
    """

    def __init__(self, job: Job, index: Index, environment: Mapping[str, str]) -> None:
        self.job, self.code = job, 0
        self._index, self._environment = index, environment
        self._lock: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def poll(self) -> Outcome | None:
        """Goes on as far as is possible without waiting; how it ended, or None."""
        if self._child is None:
            if self._lock is None:
                self._lock = lock(self.job)
            if self._lock is None:
                return None
            if self._index.finished(self.job):
                self._unlock()
                return Outcome.BEFORE
            self._start(self._lock)
        if self._child is None or self._child.poll() is None:
            return None
        self.code = self._child.returncode
        if self.code == 0 and self.job.setup is None:
            done_mark(self.job).touch()  # before another benchmark can look for it
        self._unlock()
        return Outcome.FAILED if self.code else Outcome.DONE

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if there is one."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def wait(self) -> None:
        """Waits for the process to end, if there is one."""
        if self._child is not None:
            self._child.wait()
        self._unlock()

    def _start(self, lock: int) -> None:
        try:
            self._child = start(self.job.command, self.job.log, lock, self._environment)
        except PolyakError:
            self._unlock()
            raise

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def run(
    jobs: Sequence[Job], workers: int, environment: Mapping[str, str], index: Index
) -> list[Job]:
    """Runs what is not finished, so many at a time; returns those that failed.

    Raises:
        PolyakError: a command that cannot be started, a log that cannot be written.
        KeyboardInterrupt: it was interrupted; the processes have ended.
    """
    done = {job for job in jobs if index.finished(job)}
    if done:
        say(f"{len(done)} of {len(jobs)} runs are done already")
    progress = Progress(jobs, done, index)
    waiting = [job for job in jobs if job not in done]
    active: list[Process] = []
    failed: list[Job] = []
    began: dict[Job, float] = {}
    try:
        while waiting or active:
            while waiting and len(active) < workers:
                job = waiting.pop(0)
                began[job] = time.monotonic()
                active.append(Process(job, index, environment))
                progress.say(f"begins: {job.label} ({job.log})")
            for process in list(active):
                outcome = process.poll()
                if outcome is None:
                    continue
                active.remove(process)
                job = process.job
                minutes = (time.monotonic() - began[job]) / 60
                text = f"{outcome.value}: {job.label}, {minutes:.1f} min"
                if outcome is Outcome.FAILED:
                    failed.append(job)
                    text = f"{text}, exit code {process.code}; {job.log} ends:\n{tail(job.log)}"
                progress.ended(job, text, failed=outcome is Outcome.FAILED)
            progress.show([process.job for process in active])
            time.sleep(POLL)
    except BaseException:
        progress.say(f"ending {len(active)} runs; again to kill them")
        _end(active)
        raise
    finally:
        progress.close()
    return failed


def _end(active: Collection[Process]) -> None:
    try:
        for process in active:
            process.signal(signal.SIGTERM)
        for process in active:
            process.wait()
    except KeyboardInterrupt:
        for process in active:
            process.signal(signal.SIGKILL)
        raise


def start(
    words: Sequence[str], log: Path, lock: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process that writes into a log and holds its lock as long as it lives.

    Args:
        words: the command.
        log: the file that its output is appended to.
        lock: what `lock_log` gave for it.
        environment: more variables of its environment.

    Raises:
        PolyakError: it cannot be started.
    """
    try:
        with log.open("ab") as file:
            file.write(f"\n$ {shlex.join(words)}\n".encode())
            file.flush()
            # A session of its own: Ctrl-C reaches its parent alone, which tells each child once.
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=(lock,),
                start_new_session=True,
            )
    except OSError as error:
        raise PolyakError(f"cannot start {words[0]}: {error.strerror}") from error


def lock(job: Job) -> int | None:
    """The lock of a run; see `lock_log`."""
    return lock_log(job.log, "choose another --runs-dir")


def lock_log(path: Path, advice: str) -> int | None:
    """The lock of a log, as a file descriptor to close; None while another process has it.

    Raises:
        PolyakError: the log cannot be written, or its file system has no locks: what to do then
            is `advice`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise PolyakError(f"cannot write the log {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise PolyakError(f"cannot lock the log {path}: {error.strerror}; {advice}") from error
    return descriptor


def alive(job: Job) -> bool:
    """Whether a process of this machine has the run now."""
    if not job.log.exists():
        return False
    descriptor = lock(job)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def tail(path: Path) -> str:
    """The last lines of a log, each as a terminal would show it after its progress bar."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 64_000, 0))
        lines = file.read().decode(errors="replace").rstrip().split("\n")
    seen = [line.rstrip("\r").rpartition("\r")[2] for line in lines[-TAIL:]]
    return "\n".join("  " + line for line in seen if line)


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
