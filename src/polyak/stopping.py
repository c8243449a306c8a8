"""A polite end: signals that ask a run to stop are noted, and the loop obeys between two rounds.

A state that is saved there is whole. Whoever cannot wait asks twice.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C, a batch system's end, a closed terminal, and Slurm's warning before its end."""


class Stopped(KeyboardInterrupt):
    """The run ended because it was asked to, and nothing is lost; says how it goes on."""


_asked = threading.Event()


def asked() -> bool:
    """Whether this process was asked to stop; the same for every run in it."""
    return _asked.is_set()


@contextmanager
def on_signals(signals: Collection[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Notes the first of these signals; a second raises KeyboardInterrupt at once.

    Signals that are ignored, as under nohup, stay so. Only the main thread can receive signals:
    in another, and inside of such a context, nothing is changed.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in signals}
    if not main or _note in before.values():
        yield
        return
    before = {n: old for n, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, _note)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        _asked.clear()


def _note(number: int, frame: object) -> None:
    if _asked.is_set():
        raise KeyboardInterrupt
    _asked.set()
