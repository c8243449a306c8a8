"""Runs on Ray: one task for each run, on this machine or on a cluster."""

from __future__ import annotations

import dataclasses
import getpass
import io
import logging
import os
import shutil
import signal
import socket
import tarfile
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyak.benchmark import local
from polyak.benchmark.grid import Job
from polyak.benchmark.local import Outcome, Process
from polyak.benchmark.progress import Progress, say
from polyak.benchmark.status import Index
from polyak.errors import PolyakError

RETRIES = 5
"""Times that a run is begun again because its worker or node died."""


class Report(NamedTuple):
    """What a task tells of its run."""

    outcome: Outcome
    where: str
    """The machine."""
    tail: str
    """The end of the log of a run that failed."""
    files: bytes | None
    """The run folder and its log as a tar file; None where the runs folder is shared."""


def run(
    jobs: Sequence[Job],
    *,
    address: str | None,
    workers: int | None,
    gpus: float,
    environment: Mapping[str, str],
    index: Index,
) -> list[Job]:
    """Runs what is not finished; returns those that failed.

    A task takes as many processors as its run has threads. Where its machine sees the runs folder,
    the run is made there; elsewhere it is made in a temporary folder and brought back when it has
    finished. A task whose worker or node died is given to another, where the run goes on from its
    checkpoint if that is in reach, and begins again if not.

    Args:
        jobs: the runs.
        address: of a cluster; None for the one in RAY_ADDRESS, the one of this machine, or a new
            one.
        workers: how many at a time at most; None for as many as the cluster has room for.
        gpus: of each run; may be a fraction.
        environment: more variables of the runs' environment.
        index: the runs that exist.

    Raises:
        PolyakError: Ray is not installed, or no cluster answers.
        KeyboardInterrupt: it was interrupted; the runs were told to end.
    """
    done = {job for job in jobs if index.finished(job)}
    if done:
        say(f"{len(done)} of {len(jobs)} runs are done already")
    waiting = [job for job in jobs if job not in done]
    if not waiting:
        return []
    ray = _connect(address)
    _check_room(ray, waiting[0], gpus)
    progress = Progress(jobs, done, index)
    failed: list[Job] = []
    running: dict[Any, Job] = {}
    tokens = {folder: _leave_token(folder) for folder in {job.runs_dir for job in waiting}}
    try:
        while waiting or running:
            while waiting and (workers is None or len(running) < workers):
                job = waiting.pop(0)
                options = {"num_cpus": _threads(job), "num_gpus": gpus, "max_retries": RETRIES}
                task = ray.remote(**options)(_task)
                running[
                    task.remote(job, str(tokens[job.runs_dir]), str(Path.cwd()), dict(environment))
                ] = job
            ended, _ = ray.wait(list(running), timeout=1.0)
            for reference in ended:
                job = running.pop(reference)
                report = _report(ray, reference)
                if report.files is not None:
                    _unpack(report.files, job.runs_dir)
                text = f"{report.outcome.value}: {job.label}, on {report.where}"
                if report.outcome is Outcome.FAILED:
                    failed.append(job)
                    text = f"{text}; its log ends:\n{report.tail}"
                progress.ended(job, text, failed=report.outcome is Outcome.FAILED)
            progress.show(list(running.values()))
    except KeyboardInterrupt:
        progress.say(f"ending {len(running)} runs")
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=60.0)
        raise
    finally:
        for token in tokens.values():
            token.unlink(missing_ok=True)
        progress.close()
        ray.shutdown()
    return failed


def _report(ray: Any, reference: Any) -> Report:
    try:
        report: Report = ray.get(reference)
    except ray.exceptions.RayError as error:  # its worker or node died too often
        reason = " ".join(str(error).split())
        return Report(Outcome.FAILED, "the cluster", f"  {reason}", None)
    except OSError as error:
        raise PolyakError(f"lost the Ray cluster ({error}): give the command again") from error
    return report


def _task(job: Job, token: str, folder: str, environment: dict[str, str]) -> Report:
    """Makes one run on a machine of the cluster.

    Args:
        job: the run.
        token: a file that exists where the runs folder is shared.
        folder: where the benchmark was started; relative paths begin there.
        environment: more variables of the run's environment.
    """
    shared = Path(token).is_file()
    if shared:
        os.chdir(folder)
    else:
        job = _elsewhere(job)
    index = Index()
    process = Process(job, index, environment)
    try:
        while (outcome := process.poll()) is None:
            time.sleep(local.POLL)
    except BaseException:  # cancelled
        process.signal(signal.SIGTERM)
        process.wait()
        raise
    tail = local.tail(job.log) if outcome is Outcome.FAILED else ""
    packed = None
    if not shared:
        packed = _pack(job, index)
        if outcome is not Outcome.FAILED:
            place = Path.cwd()
            os.chdir(place.parent)
            shutil.rmtree(place)
    return Report(outcome, socket.gethostname(), tail, packed)


def _elsewhere(job: Job) -> Job:
    """The same run in a folder of this machine, the same one each time: a retry finds it again."""
    # The folder for temporary files is everybody's: one of this user alone.
    path = Path(tempfile.gettempdir()) / f"polyak-{getpass.getuser()}" / job.key[:16]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(path)
    if job.setup is None:
        return job
    settings = dataclasses.replace(job.setup.settings, runs_dir=str(path))
    return dataclasses.replace(
        job,
        arguments=(*job.arguments, "--runs-dir", str(path)),
        setup=dataclasses.replace(job.setup, settings=settings),
    )


def _connect(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ModuleNotFoundError as error:
        raise PolyakError("ray is not installed: pip install 'polyak[ray]'") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PolyakError(f"no Ray cluster at {address or 'this machine'}: {reason}") from error
    return ray


def _check_room(ray: Any, job: Job, gpus: float) -> None:
    """Says so if no node can run a run: Ray waits for one, which only some clusters then add."""
    wanted = {"CPU": float(_threads(job)), "GPU": gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(k, 0.0) >= v for k, v in wanted.items()) for node in nodes):
        say(
            f"no node of the Ray cluster has the {wanted['CPU']:g} CPUs and {gpus:g} GPUs of a run "
            "(--threads, --ray-gpus-per-run); waiting for one"
        )


def _threads(job: Job) -> int:
    return job.setup.settings.threads if job.setup else 1


def _leave_token(folder: Path) -> Path:
    """A file by which a machine of the cluster knows that it sees the same folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.resolve() / f".benchmark-{uuid.uuid4().hex}"
        path.touch()
    except OSError as error:
        raise PolyakError(f"cannot write into {folder}: {error.strerror}") from error
    return path


def _pack(job: Job, index: Index) -> bytes:
    """The run folder and the log as a tar file, without what only an unfinished run needs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(job.log, f"logs/{job.log.name}")
        for run in index.runs(job)[-1:]:
            for path in sorted(run.path.iterdir()):
                if path.name != "checkpoint":
                    archive.add(path, f"{run.path.name}/{path.name}")
    return buffer.getvalue()


def _unpack(data: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")  # nothing lands outside of it
