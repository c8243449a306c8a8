"""Benchmark and search on a real Ray cluster of two nodes, which these tests start and end."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from polyak.benchmark import grid
from polyak.benchmark.status import Index
from polyak.cli.train_flags import train_options
from polyak.runs import Run
from tests.plumbing.running import SMALL, TWIN, flags, polyak_cli, train, weights

FLAGS = flags(**{k: v for k, v in SMALL.items() if k != "env_id"})
TUNE = (
    "tune", "ddpg", *flags(**{k: v for k, v in SMALL.items() if k != "eval_interval"}),
    *flags(total_timesteps=1200, eval_episodes=1, checkpoint_interval=100),
)  # fmt: skip
"""Trials of some seconds."""
RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1")

WORKER = """
import os, time
from pathlib import Path

with open("notes", "a") as file:
    file.write(f"{os.environ['NODE']} {os.getpid()}\\n")
while not Path("go").exists():
    time.sleep(0.05)
"""
"""Notes down on which node it is, and waits."""


class Cluster(NamedTuple):
    """Two nodes with one processor each."""

    address: str
    second: subprocess.Popen[bytes]
    environment: dict[str, str]
    hidden: Path
    """A folder whose contents the second node does not see, where that can be arranged."""
    is_hidden: bool


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def node(log: Path, environment: dict[str, str], *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            ("sh", "-c", 'trap "" INT; exec "$@"', "sh", *command),  # as in a background
            stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
    wait_for(lambda: process.poll() is not None or "Ray runtime started" in log.read_text())
    assert process.poll() is None, log.read_text()
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a node and what it started, as if its machine had lost power."""
    parents = [psutil.Process(process.pid)]
    everything = [*parents, *parents[0].children(recursive=True)]
    session = [p for p in psutil.process_iter() if _session(p.pid) == process.pid]
    for one in {*everything, *session}:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has just ended, or is another user's
        return None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("ray")
    logs = tmp_path_factory.mktemp("ray")
    hidden = tmp_path_factory.mktemp("hidden")
    # A token of its own, so that no other process of this machine talks to the cluster.
    environment = dict(os.environ) | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(tmp_path_factory.mktemp("tmp")),
    }
    root = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # its sockets need a short path
    address = f"127.0.0.1:{free_port()}"
    head = (*RAY, "--head", "--node-ip-address=127.0.0.1", f"--port={address.split(':')[1]}",
            "--include-dashboard=false", f"--temp-dir={root}")  # fmt: skip
    second: tuple[str, ...] = (*RAY, f"--address={address}", "--node-ip-address=127.0.0.2")
    unshare = ("unshare", "--mount")
    can_hide = not subprocess.run((*unshare, "true"), capture_output=True, check=False).returncode
    if can_hide:
        mount = 'mount -t tmpfs none "$0" && exec "$@"'
        second = (*unshare, "sh", "-c", mount, str(hidden), *second)
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in (("head", head), ("second", second)):
            nodes.append(node(logs / name, environment | {"NODE": name}, *command))
        # Where a driver of this machine looks for its node: the head, not the one that will die.
        for path in root.glob("session_*/node_ip_address.json"):
            path.write_text('{"node_ip_address": "127.0.0.1"}')
        yield Cluster(address, nodes[1], environment, hidden, can_hide)
    finally:
        for process in nodes:
            if process.poll() is None:
                kill(process)
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def started(cluster: Cluster, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command on the cluster that is going on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "polyak", *map(str, arguments), "--address", cluster.address],
        env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_results_come_back_from_a_node_that_does_not_share_the_folder(
    cluster: Cluster, here: Path
) -> None:
    runs_dir = cluster.hidden / "runs"
    command = ("benchmark", "--env-ids", TWIN, "--algorithms", "ddpg", *FLAGS, "--num-seeds", 2)
    with started(cluster, *command, "--runs-dir", runs_dir) as process:
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out == "2 of 2 runs are done\n"
    places = []
    for seed in (1, 2):
        words = [*FLAGS, "--runs-dir", str(runs_dir), *grid.task_flags(TWIN, seed)]
        (run,) = Index().runs(job := grid.job(["ddpg", *words], train_options))
        assert run.status["state"] == "finished"
        assert weights(run) == weights(train(here, seed=seed))
        assert job.log.is_file()
        places.append(run.config["runs_dir"] == str(runs_dir))
    assert sorted(places) == ([False, True] if cluster.is_hidden else [True, True])
    assert sorted(p.name for p in runs_dir.iterdir() if p.is_file()) == []  # nothing left about
    assert not list(Path(cluster.environment["TMPDIR"]).glob("polyak-*/*"))


def states() -> list[str]:
    storage = JournalStorage(JournalFileBackend("s.journal"))
    return [t.state.name for t in optuna.load_study(study_name="s", storage=storage).trials]


def trains(trial: int) -> psutil.Process | None:
    """The process of a trial."""
    for process in psutil.process_iter(["cmdline"]):
        if any(f"/trial-{trial:04}" in word for word in process.info["cmdline"] or ()):
            return process
    return None


def test_a_search_is_interrupted_and_a_worker_of_it_is_killed(cluster: Cluster, here: Path) -> None:
    command = (*TUNE, "--storage", "s.journal", "--study", "s", "--trials", 2, "--workers")
    folder = here / "s" / "trial-0000"
    with started(cluster, *command, 2) as process:
        wait_for(lambda: list(folder.glob("*/checkpoint/*.json")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "interrupted (the same command goes on)" in err
    assert states()[0] == "RUNNING"
    (path,) = folder.glob("*/config.json")
    run = Run(path.parent)
    assert run.status["state"] == "interrupted"

    with started(cluster, *command, 1) as process:  # begun again by Ray, or nobody goes on
        wait_for(lambda: trains(0))
        trial = trains(0)
        assert trial is not None
        worker = trial.parent()
        assert worker is not None
        for one in (worker, trial):
            one.kill()
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out.splitlines()[-2].startswith("best_value=")  # after what Ray itself says
    assert out.splitlines()[-1] == "preset=s.toml"
    assert states() == ["COMPLETE", "COMPLETE"]
    assert sorted(re.findall(r"complete: trial (\d), value", err)) == ["0", "1"]
    assert list(folder.glob("*/config.json")) == [path]  # it went on where it was
    assert run.status["state"] == "finished"
    assert not list(here.glob("s/.polyak-*"))


def test_a_search_on_a_node_that_does_not_share_the_folder(cluster: Cluster, here: Path) -> None:
    if not cluster.is_hidden:
        pytest.skip("a folder can be hidden from a node by root alone")
    storage = cluster.hidden / "tune" / "s.journal"
    with started(cluster, *TUNE, "--storage", storage, "--workers", 2) as process:
        _, err = process.communicate(timeout=180)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith(
        f"polyak: error: {socket.gethostname()}, a machine of the Ray cluster, does not see"
    )


def test_a_run_whose_node_dies_goes_to_another(cluster: Cluster, here: Path) -> None:
    (here / "worker.py").write_text(WORKER)
    command = ("benchmark", "--command", f"{sys.executable} worker.py", "--env-ids")

    def notes() -> list[str]:
        return (here / "notes").read_text().split()[::2] if (here / "notes").exists() else []

    with started(cluster, *command, "a", "--num-seeds", 2) as process:
        wait_for(lambda: sorted(notes()) == ["head", "second"])
        kill(cluster.second)
        (here / "go").touch()
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "2 of 2 runs are done"  # after what Ray itself says
    assert sorted(notes()) == ["head", "head", "second"]

    # The cluster that is left: an interruption ends the run as well.
    (here / "go").unlink()
    with started(cluster, *command, "b", "--num-seeds", 1) as process:
        wait_for(lambda: len(notes()) == 4)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
    assert process.returncode == 130
    pid = int((here / "notes").read_text().split()[-1])
    wait_for(lambda: not psutil.pid_exists(pid))


@pytest.mark.parametrize(
    "command", [("benchmark", "--env-ids", TWIN, "--algorithms", "ddpg", *FLAGS), TUNE]
)
def test_no_cluster_and_no_ray(
    command: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    address = f"127.0.0.1:{free_port()}"
    line = polyak_cli(*command, "--address", address).line
    assert line.startswith(f"no Ray cluster at {address}: ")
    assert "no meaning with --launcher local" in (
        polyak_cli(*command, "--launcher", "local", "--address", address).line
    )
    assert "--ray-gpus-per-run must be" in polyak_cli(*command, "--ray-gpus-per-run", "1.5").line
    monkeypatch.setitem(sys.modules, "ray", None)
    line = polyak_cli(*command, "--launcher", "ray").line
    assert line == "ray is not installed: pip install 'polyak[ray]'"
    assert not list(here.iterdir())
