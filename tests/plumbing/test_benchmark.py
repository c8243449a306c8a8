"""The benchmark on this machine: real processes that end well, fail, are interrupted or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyak.benchmark import grid, local
from polyak.benchmark.grid import Grid, Job
from polyak.benchmark.progress import Progress
from polyak.benchmark.status import Index, done_mark
from polyak.cli.train_flags import train_options
from polyak.runs import Run
from tests import toys
from tests.plumbing.running import (
    SMALL,
    TWIN,
    flags,
    polyak_cli,
    train,
    weights,
)

SMALL_FLAGS = flags(**{k: v for k, v in SMALL.items() if k != "env_id"})

WORKER = """
import os, signal, sys, time
from pathlib import Path

task, seed = sys.argv[2], sys.argv[4]
name = f"{task}{seed}"


def note(text):
    with open("notes", "a") as file:
        file.write(f"{text} {name}\\n")


def end(number, frame):
    note("told")
    time.sleep(0.3)  # writes its checkpoint
    note("ended")
    sys.exit(130)


signal.signal(signal.SIGTERM, end)
note("begins")
if task == "fails":
    print("progress 1\\rprogress 2\\nthe reason")
    sys.exit(3)
while task == "waits" and not Path("go").exists():
    time.sleep(0.02)
note("done")
"""
"""Notes down what happens to it; a task by the name `fails` fails, one that `waits` waits for a
file by the name `go`."""


@pytest.fixture
def worker(here: Path) -> list[str]:
    """The flags of a benchmark of processes that take no time."""
    (here / "worker.py").write_text(WORKER)
    return ["--command", f"{sys.executable} worker.py"]


def notes(here: Path) -> list[str]:
    path = here / "notes"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@contextmanager
def started(here: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A benchmark that is going on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "polyak", "benchmark", *map(str, arguments)],
        cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_one_that_fails_does_not_stop_the_others(here: Path, worker: list[str]) -> None:
    command = (*worker, "--env-ids", "a", "fails", "b", "--num-seeds", 1, "--workers", 2)
    answer = polyak_cli("benchmark", *command)
    assert answer.code == 1
    assert answer.out.splitlines()[-1] == "2 of 3 runs are done"
    assert "failed: fails worker seed 1" in answer.out
    assert "exit code 3" in answer.err
    assert "  progress 2\n  the reason" in answer.err  # the end of its log, as a terminal shows it
    assert {"done a1", "done b1", "begins fails1"} <= set(notes(here))
    logs = sorted((here / "runs" / "logs").glob("*.log"))
    assert [log.name.split("__")[0] for log in logs] == ["a", "b", "fails"]

    # The same again: the one that failed, and no other.
    before = len(notes(here))
    again = polyak_cli("benchmark", *command)
    assert again.code == 1
    assert notes(here)[before:] == ["begins fails1"]
    assert "2 of 3 runs are done already" in again.err


def test_as_many_at_a_time_as_asked_for(here: Path, worker: list[str]) -> None:
    with started(here, *worker, "--env-ids", "waits", "--num-seeds", 3, "--workers", 2) as process:
        wait_for(lambda: len(notes(here)) == 2)
        time.sleep(1.0)
        assert sorted(notes(here)) == ["begins waits1", "begins waits2"]
        (here / "go").touch()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == "3 of 3 runs are done\n"
    assert len(notes(here)) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_tells_each_run_once_and_waits(
    number: signal.Signals, here: Path, worker: list[str]
) -> None:
    with started(here, *worker, "--env-ids", "waits", "--num-seeds", 3, "--workers", 2) as process:
        wait_for(lambda: len(notes(here)) == 2)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert sorted(notes(here)) == [
        f"{what} waits{seed}" for what in ("begins", "ended", "told") for seed in (1, 2)
    ]


def test_a_command_that_does_not_exist(here: Path) -> None:
    answer = polyak_cli("benchmark", "--env-ids", "a", "b", "--command", "no-such-program")
    assert "cannot start no-such-program" in answer.err
    assert answer.code == 2


def test_a_folder_that_cannot_be_written(here: Path, worker: list[str]) -> None:
    (here / "runs").write_text("a file is in the way")
    answer = polyak_cli("benchmark", *worker, "--env-ids", "a")
    assert "cannot write the log runs/logs/" in answer.err
    assert answer.code == 2


# Real runs


def job(runs_dir: Path, env_id: str, seed: int) -> Job:
    words = ["ddpg", *SMALL_FLAGS, "--runs-dir", str(runs_dir), *grid.task_flags(env_id, seed)]
    return grid.job(words, train_options)


def test_a_killed_benchmark_goes_on_and_repeats_nothing(here: Path) -> None:
    command = ("--env-ids", TWIN, "--algorithms", "ddpg", *SMALL_FLAGS, "--workers", 2)
    logs = [job(here / "runs", TWIN, seed).log for seed in (1, 2)]
    with started(here, *command) as process:
        wait_for(lambda: all(log.exists() and log.stat().st_size for log in logs))
        process.kill()
        process.communicate()
    # Its two runs live on. The next benchmark waits for them.
    with started(here, *command) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert err.count("done by another process") + err.count("2 of 3 runs are done already") >= 1
    for seed in (1, 2, 3):
        (run,) = Index().runs(job(here / "runs", TWIN, seed))
        assert run.status["state"] == "finished"
        assert weights(run) == weights(train(here / "alone", seed=seed))


def test_a_run_that_fails_and_how_both_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    monkeypatch.chdir(folder)
    poison = toys.PREFIX + "toys/PoisonObs-v0"
    command = ("benchmark", "--env-ids", TWIN, poison, "--algorithms", "ddpg", *SMALL_FLAGS,
               "--num-seeds", 1, "--workers", 2)  # fmt: skip
    answer = polyak_cli(*command)
    assert answer.code == 1
    assert "is nan at step 40" in answer.err

    told = polyak_cli(*command, "--status").out.splitlines()
    assert [line.split()[0] for line in told[1:3]] == ["done", "failed"]
    assert "is nan at step 40" in told[2]
    assert told[3] == "2 runs: 1 done, 1 failed"


def test_a_killed_run_is_made_again(tmp_path: Path) -> None:
    one = job(tmp_path / "runs", TWIN, 1)
    # As a process that was killed outright leaves it.
    killed = train(tmp_path / "runs", seed=1)
    killed.write_status("running", 40)
    process = local.Process(one, Index(), {})
    wait_for(lambda: process.poll() is local.Outcome.DONE)
    finished = [r for r in Index().runs(one) if r.status["state"] == "finished"]
    assert [weights(run) for run in finished] == [weights(killed)]


def test_a_lock_outlives_the_benchmark_and_not_the_run(
    here: Path, worker: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (experiment,) = grid.expand(
        Grid(env_ids=("waits",), command=worker[1], num_seeds=1), train_options, (), ()
    )
    (one,) = experiment.jobs
    assert not local.alive(one)
    process = local.Process(one, Index(), {})
    assert process.poll() is None
    wait_for(lambda: notes(here))
    assert local.alive(one)
    assert local.lock(one) is None
    unlock = process._unlock

    def marked() -> None:  # or another benchmark would take the lock and run it again
        assert done_mark(one).is_file()
        unlock()

    monkeypatch.setattr(process, "_unlock", marked)
    (here / "go").touch()
    wait_for(lambda: process.poll() is local.Outcome.DONE)
    assert not local.alive(one)
    descriptor = local.lock(one)
    assert descriptor is not None
    os.close(descriptor)


def test_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    jobs = [job(tmp_path, TWIN, seed) for seed in (1, 2, 3, 4)]
    progress = Progress(jobs, {jobs[3]}, Index())
    assert progress.line(2) == "1/4 done, 2 running, 0 failed"
    run: Run = train(tmp_path, "ddpg", seed=1)
    run.write_status("running", 60)
    (run.path / "metrics.jsonl").write_text('{"step": 30}\n')
    now = 1060.0
    progress.show([jobs[0], jobs[1]])  # 30 of 180 steps in a minute: five more
    assert progress.line(2) == "1/4 done, 2 running, 0 failed, 0:05:00 left"
    progress.ended(jobs[0], "failed", failed=True)  # which leaves 120, at 60 a minute
    assert progress.line(1) == "1/4 done, 1 running, 1 failed, 0:02:00 left"
