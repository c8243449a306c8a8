"""A search on Ray: workers on machines of a cluster, which share the study as processes do."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyak import stopping
from polyak.benchmark import ray_cluster
from polyak.benchmark.progress import say
from polyak.errors import PolyakError
from polyak.tune.study import Search, Study, opened
from polyak.tune.work import POLL, Work


def run(
    study: Study,
    search: Search,
    trials: int,
    found: Callable[[], None],
    *,
    address: str | None,
    workers: int,
    threads: int,
    gpus: float,
) -> None:
    """Gives the study workers, and says what becomes of its trials, until it has enough of them.

    A worker whose process or machine died is begun again, maybe elsewhere. It finds the trial that
    was left.

    Args:
        study: the study, for this process to look at.
        search: what it searches, for the workers to open it.
        trials: how many trials it shall have.
        found: called when a trial is complete, and at the end.
        address: of a cluster; see `ray_cluster.connected`.
        workers: how many trials at a time.
        threads: processors of each.
        gpus: of each; may be a fraction.

    Raises:
        PolyakError: Ray is not installed, no cluster answers, a machine of the cluster does not
            see the study, a worker dies again and again, or trials fail.
        KeyboardInterrupt: it was asked to stop; the workers have ended their trials.
    """
    # Where a machine sees the study but not this working folder, only whole paths are right.
    there = dataclasses.replace(search, storage=search.storage.resolve())
    told = study.standings()
    with ray_cluster.connected(address) as ray:
        ray_cluster.check_room(ray, threads, gpus)
        token = ray_cluster.leave_token(search.folder)
        task = ray_cluster.task(ray, _task, threads, gpus)
        running = [task.remote(there, trials, token, Path.cwd()) for _ in range(workers)]
        try:
            while running:
                ended, running = ray.wait(running, timeout=POLL)
                standings = study.standings()
                news = [standings[n] for n in standings if standings[n] != told.get(n)]
                for line in news:
                    say(line)
                if any(line.startswith("complete") for line in news):
                    found()
                told = standings
                for reference in ended:
                    if problem := _problem(ray, reference):
                        raise PolyakError(problem)
                if stopping.asked():
                    raise stopping.Stopped("(the same command goes on)")
        except BaseException:
            say(f"ending {len(running)} workers; again to kill them")
            ray_cluster.cancel(ray, running)
            raise
        finally:
            token.unlink(missing_ok=True)
    found()


def _task(search: Search, trials: int, token: Path, folder: Path) -> str:
    """One worker, on a machine of the cluster.

    Args:
        search: what the study searches, with whole paths.
        trials: how many trials it shall have.
        token: a file that exists where the study is seen.
        folder: where the command was given.

    Returns:
        What went wrong, in a line; nothing if the study has its trials.
    """
    ray_cluster.obey_cancel()
    host = socket.gethostname()
    if not token.is_file():
        return (
            f"{host}, a machine of the Ray cluster, does not see {search.folder}: put --storage "
            "into a folder that all its machines share"
        )
    with contextlib.suppress(OSError):  # a task may be defined by a module there; most are not
        os.chdir(folder)
    try:
        # Cancelled, it ends between two looks. SIGTERM stays Ray's, which then begins it again.
        with opened(search) as study, stopping.on_signals((signal.SIGINT,)):
            Work(study, trials, 1, lambda: None)()
    except PolyakError as error:
        return f"{error} (on {host})"
    return ""


def _problem(ray: Any, reference: Any) -> str:
    try:
        return str(ray_cluster.result(ray, reference))
    except ray.exceptions.RayError as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= 300 else f"{text[:100]} ... {text[-200:]}"
        return f"a worker failed: {text}"
