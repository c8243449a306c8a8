"""The runs of a benchmark on Ray: one task for each, on this machine or on a cluster."""

from __future__ import annotations

import dataclasses
import getpass
import io
import os
import shutil
import signal
import socket
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyak.benchmark import local, ray_cluster
from polyak.benchmark.grid import Job
from polyak.benchmark.local import Outcome, Process
from polyak.benchmark.progress import Progress, say
from polyak.benchmark.status import Index


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
    with ray_cluster.connected(address) as ray:
        ray_cluster.check_room(ray, _threads(waiting[0]), gpus)
        progress = Progress(jobs, done, index)
        failed: list[Job] = []
        running: dict[Any, Job] = {}
        tokens = {d: ray_cluster.leave_token(d) for d in {job.runs_dir for job in waiting}}
        try:
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    job = waiting.pop(0)
                    task = ray_cluster.task(ray, _task, _threads(job), gpus)
                    token = str(tokens[job.runs_dir])
                    running[task.remote(job, token, str(Path.cwd()), dict(environment))] = job
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
            ray_cluster.cancel(ray, running)
            raise
        finally:
            for path in tokens.values():
                path.unlink(missing_ok=True)
            progress.close()
    return failed


def _report(ray: Any, reference: Any) -> Report:
    try:
        report: Report = ray_cluster.result(ray, reference)
    except ray.exceptions.RayError as error:  # its worker or node died too often
        reason = " ".join(str(error).split())
        return Report(Outcome.FAILED, "the cluster", f"  {reason}", None)
    return report


def _task(job: Job, token: str, folder: str, environment: dict[str, str]) -> Report:
    """Makes one run on a machine of the cluster.

    Args:
        job: the run.
        token: a file that exists where the runs folder is shared.
        folder: where the benchmark was started; relative paths begin there.
        environment: more variables of the run's environment.
    """
    ray_cluster.obey_cancel()
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


def _threads(job: Job) -> int:
    return job.setup.settings.threads if job.setup else 1


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
