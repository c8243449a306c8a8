"""A Ray cluster, of this machine or elsewhere: what all that is made on one has in common."""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from polyak.benchmark.progress import say
from polyak.errors import PolyakError

RETRIES = 5
"""Times that a task is begun again because its worker or node died."""
GRACE = 60.0
"""Seconds for tasks that were cancelled to end: to save a checkpoint."""


def load(address: str | None) -> ModuleType:
    """Ray, once it is sure that it is installed and that somebody listens at the address.

    Args:
        address: as for `connected`.

    Raises:
        PolyakError: it is not, or nobody does.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ModuleNotFoundError as error:
        raise PolyakError("ray is not installed: pip install 'polyak[ray]'") from error
    given = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = given.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():  # not a word such as "auto"
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        except (OSError, OverflowError) as error:  # Ray itself would try for minutes
            raise PolyakError(f"no Ray cluster at {given}: {error}") from error
    return ray


@contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, connected to a cluster until the end of the context.

    Args:
        address: of the cluster; None for the one in RAY_ADDRESS, the one of this machine, or a new
            one.

    Raises:
        PolyakError: Ray is not installed, or no cluster answers.
    """
    ray: Any = load(address)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's have no common class
        reason = " ".join(str(error).split())[:200]
        raise PolyakError(f"no Ray cluster at {address or 'this machine'}: {reason}") from error
    try:
        # Where Ray began a cluster, its own handler would end that, and all tasks, at once.
        signal.signal(signal.SIGTERM, terminated)
        yield ray
    finally:
        ray.shutdown()


def check_room(ray: Any, threads: int, gpus: float) -> None:
    """Says so if no node can run a run: Ray waits for one, which only some clusters then add."""
    wanted = {"CPU": float(threads), "GPU": gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(k, 0.0) >= v for k, v in wanted.items()) for node in nodes):
        say(
            f"no node of the Ray cluster has the {wanted['CPU']:g} CPUs and {gpus:g} GPUs of a run "
            "(--threads, --ray-gpus-per-run); waiting for one"
        )


def task(ray: Any, function: Callable[..., object], threads: int, gpus: float) -> Any:
    """A function as a task of Ray, begun again where its worker or node dies.

    Args:
        ray: connected.
        function: what the task does.
        threads: processors that it takes.
        gpus: the same; may be a fraction.
    """
    return ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(function)


def result(ray: Any, reference: Any) -> Any:
    """What a task returned.

    Raises:
        ray.exceptions.RayError: its worker or node died too often, or it failed.
        PolyakError: the cluster is lost.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayError:  # first: that of a task may be an OSError as well
        raise
    except OSError as error:
        raise PolyakError(f"lost the Ray cluster ({error}): give the command again") from error


def obey_cancel() -> None:
    """Lets `cancel` interrupt this task, also on a machine whose Ray was begun in the background.

    A shell that starts something in the background makes it, and all that it starts, ignore
    SIGINT, by which Ray interrupts a task.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def cancel(ray: Any, running: Collection[Any]) -> None:
    """Interrupts tasks, which get a KeyboardInterrupt if they obey, and waits for their end."""
    for reference in running:
        ray.cancel(reference)
    if running:
        ray.wait(list(running), num_returns=len(running), timeout=GRACE)


def leave_token(folder: Path) -> Path:
    """A file, to be removed, by which a machine of the cluster knows that it sees the folder.

    Raises:
        PolyakError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.resolve() / f".polyak-{uuid.uuid4().hex}"
        path.touch()
    except OSError as error:
        raise PolyakError(f"cannot write into {folder}: {error.strerror}") from error
    return path
