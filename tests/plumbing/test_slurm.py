"""The benchmark on a real Slurm cluster of one node, which these tests start and stop."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyak.benchmark import grid
from polyak.benchmark.status import Index
from polyak.cli.train_flags import train_options
from tests import toys
from tests.plumbing.running import SMALL, TWIN, flags, polyak_cli, train, weights

SCRIPTS = Path(__file__).parent / "slurm"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
FLAGS = flags(**{k: v for k, v in SMALL.items() if k != "env_id"})


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def configuration() -> Iterator[Path]:
    """Of a cluster that runs."""
    reason = "" if os.geteuid() == 0 else "Slurm's processes need root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        reason = f"{missing[0]} is missing (Debian: slurmctld slurmd slurm-client munge)"
    if reason and os.environ.get("POLYAK_TESTS_NEED_SLURM"):  # set by continuous integration
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    # Not pytest's folder, which the user `munge` may not enter.
    folder = Path(tempfile.mkdtemp(prefix="polyak-slurm-"))
    try:
        command = [str(SCRIPTS / "start.sh"), str(folder), free_port(), free_port()]
        subprocess.run(command, check=True, timeout=120)
        yield folder / "slurm.conf"
    finally:
        subprocess.run([str(SCRIPTS / "stop.sh"), str(folder)], check=True, timeout=120)
        shutil.rmtree(folder)


@pytest.fixture
def cluster(configuration: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder from which jobs are submitted."""
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    return here


def slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


def wait_for(condition: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not happen\n{slurm('squeue')}{logs()}"
        time.sleep(0.2)


def logs() -> str:
    return "\n".join(path.read_text() for path in sorted(Path("slurm/logs").glob("*.log")))


def submit(*arguments: object) -> str:
    """Submits a benchmark; the id of its array."""
    answer = polyak_cli("benchmark", "--launcher", "slurm", *arguments)
    assert answer.code == 0, answer.err
    (job_id,) = re.findall(r"^job (\d+): ", answer.out, re.MULTILINE)
    return str(job_id)


def states() -> list[str]:
    """How the runs that were submitted stand."""
    answer = polyak_cli("benchmark", "--status")
    assert answer.code == 0, answer.err
    return [line.split()[0] for line in answer.out.splitlines()[1:-1]]


WORKER = """
import os, signal, sys, time
from pathlib import Path

name = f"{sys.argv[2]}{sys.argv[4]}"


def end(number, frame):
    with open("notes", "a") as file:
        file.write(f"{signal.Signals(number).name} {name}\\n")
    sys.exit(130)


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
with open("notes", "a") as file:
    file.write(f"begins {name}\\n")
while not Path(f"go-{name}").exists():
    time.sleep(0.05)
"""
"""Waits to be told to end. Interrupted, it ends with 130, as `polyak train` does."""


def notes() -> list[str]:
    return sorted(Path("notes").read_text().splitlines()) if Path("notes").exists() else []


def test_runs_one_of_which_is_evicted_and_one_fails(cluster: Path) -> None:
    # Long enough to be evicted while it trains.
    long = ("--total-timesteps", 1_000, "--env-ids", TWIN, toys.PREFIX + "toys/PoisonObs-v0")
    command = (*long[2:], "--algorithms", "ddpg", *FLAGS, *long[:2], "--num-seeds", 2)
    job_id = submit(*command)
    assert set(states()) <= {"queued", "running"}
    # The same again: all of it is in the queue.
    assert (
        "4 runs are finished or queued already"
        in polyak_cli("benchmark", "--launcher", "slurm", *command).out
    )

    words = ["ddpg", *map(str, (*FLAGS, *long[:2]))]
    runs = {
        seed: grid.job([*words, *grid.task_flags(TWIN, seed)], train_options) for seed in (1, 2)
    }
    wait_for(lambda: Index().step(runs[1]) > 50)  # learning
    assert states()[0] == "running"
    wait = "while [[ ! -e evicted ]]; do sleep 0.1; done"
    slurm("sbatch", "--partition=urgent", "--output=/dev/null", "--wrap", wait)
    wait_for(lambda: "goes back into the queue" in logs())
    (requeued,) = re.findall(rf"task {job_id}_(\d) goes back into the queue", logs())
    wait_for(lambda: states()[int(requeued)] == "queued")  # said a moment before it is so
    Path("evicted").touch()

    wait_for(lambda: not {"queued", "running"} & set(states()))
    assert states() == ["done", "done", "failed", "failed"]
    table = polyak_cli("benchmark", "--status").out
    assert table.count("is nan at step 40") == 2
    assert f"task {job_id}_{requeued} on {socket.gethostname()}" in logs()
    assert len(re.findall(rf"task {job_id}_\d on .*restart 1", logs())) == 1
    assert len(list(Path("slurm/logs").glob("*.log"))) == 4
    assert "0-3%4" in next(Path("slurm").glob("*.sbatch")).read_text()

    # The run that was evicted went on in its folder, and is what it would have been.
    seed = int(requeued) + 1  # the first task's runs
    (run,) = Index().runs(runs[seed])
    assert weights(run) == weights(train(cluster / "alone", seed=seed, total_timesteps=1_000))

    # The same again: those that failed, and no other.
    submit(*command, "--slurm-args=--hold")
    newest = max(Path("slurm").glob("*.sbatch"), key=lambda path: path.stat().st_mtime_ns)
    assert "#SBATCH --array=2-3%2" in newest.read_text()
    assert states() == ["done", "done", "queued", "queued"]
    slurm("scancel", f"--user={os.getuid()}")


def test_warned_tasks_are_queued_again_and_cancelled_ones_are_not(cluster: Path) -> None:
    Path("worker.py").write_text(WORKER)
    command = ("--command", "python3 worker.py", "--env-ids", "a", "b", "--num-seeds", 1)
    job_id = submit(*command, "--workers", 2)
    wait_for(lambda: notes() == ["begins a1", "begins b1"])
    # As Slurm does before the time limit: to the steps of the task. The last task of an array has
    # the array's own id, and is queued again alone.
    slurm("scancel", "--signal=USR1", f"{job_id}_1")
    wait_for(lambda: notes().count("begins b1") == 2)
    slurm("scancel", f"{job_id}_0")
    wait_for(lambda: f"{job_id}_0" not in slurm("squeue", "--noheader", "--array"))
    Path("go-b1").touch()
    wait_for(lambda: not slurm("squeue", "--noheader"))
    assert notes() == ["SIGTERM a1", "SIGUSR1 b1", "begins a1", "begins b1", "begins b1"]
    assert states() == ["ended", "ended"]


def test_slurms_own_words_where_it_refuses(cluster: Path) -> None:
    command = ("benchmark", "--env-ids", TWIN, "--algorithms", "ddpg", *FLAGS, "--launcher")
    answer = polyak_cli(*command, "slurm", "--slurm-args=--partition=nowhere")
    assert "sbatch refused: " in answer.line
    assert "invalid partition specified: nowhere" in answer.line
    assert [path.name for path in Path("slurm").iterdir()] == ["logs"]
    assert "missing" in polyak_cli(*command, "slurm", "--status").out


def test_without_slurm(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    command = ("benchmark", "--env-ids", TWIN, "--algorithms", "ddpg", *FLAGS)
    line = polyak_cli(*command, "--launcher", "slurm").line
    assert line.startswith("sbatch is not installed: start this where Slurm's commands are")
