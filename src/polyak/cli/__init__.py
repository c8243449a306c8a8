"""The command line: which command runs, and how it ends.

Heavy libraries are imported by the command that needs them.

    parser.py       one-line errors, types of arguments, near misses
    train.py        `train`
    train_flags.py  its flags, made from the settings' declarations
    agents.py       `evaluate`, `enjoy`, `export`
    recording.py    pictures of agents, for `train` and `enjoy`
    hub.py          `push`
    runs.py         `benchmark`, `tune`, `runs`, `report`
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from polyak import __version__
from polyak.cli import agents, hub, runs, train, train_flags
from polyak.cli.parser import Parser, refuse_unknown
from polyak.errors import PolyakError


class Command(NamedTuple):
    """A command whose flags do not depend on its arguments."""

    name: str
    help: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


COMMANDS = (
    Command(
        "evaluate",
        "evaluate a saved agent, noise off",
        agents.evaluate_flags,
        agents.evaluate,
    ),
    Command(
        "enjoy",
        "watch a saved agent, or record it, or several side by side",
        agents.enjoy_flags,
        agents.enjoy,
    ),
    Command("push", "publish a run's agent on the Hugging Face Hub", hub.push_flags, hub.push),
    Command("runs", "list runs, or compare their settings", runs.list_flags, runs.list_runs),
    Command(
        "export",
        "write a saved agent for use without Polyak",
        agents.export_flags,
        agents.export,
    ),
    Command("report", "tables, curves and a page of some runs", runs.report_flags, runs.report),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 2 for a user's error, 130 when interrupted."""
    _prepare_process()
    try:
        _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except PolyakError as error:
        print(f"polyak: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as how:  # says so where it can go on
        with contextlib.suppress(OSError):
            print(f"polyak: interrupted {how}".rstrip(), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        return 141
    except MemoryError:
        causes = "--buffer-size, --batch-size or --hidden-dim"
        print(f"polyak: error: out of memory: lower {causes}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        with contextlib.suppress(OSError):  # the disk may be that of standard error
            print(f"polyak: error: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _dispatch(arguments: list[str]) -> None:
    match arguments:
        case ["train", *rest]:
            train.train(rest)
            return
        case ["benchmark", *rest]:
            runs.benchmark(rest)
            return
        case ["tune", *rest]:
            runs.tune(rest)
            return
    parser = Parser(
        prog="polyak", description="Trains continuous-control agents: DDPG, TD3 and SAC."
    )
    parser.add_argument("--version", action="version", version=f"polyak {__version__}")
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parsers.add_parser("train", help="train an agent: " + train_flags.USAGE, add_help=False)
    parsers.add_parser("benchmark", help="make every run of a grid", add_help=False)
    parsers.add_parser("tune", help="search for settings with a high return", add_help=False)
    for command in COMMANDS:
        own = parsers.add_parser(command.name, help=command.help)
        command.add_flags(own)
        own.set_defaults(run=command.run)
    options, unknown = parser.parse_known_args(arguments)
    refuse_unknown(unknown, parser, parsers.choices[arguments[0]])
    options.run(options)


def _prepare_process() -> None:
    """Warnings become one line each, output always goes somewhere, a signal interrupts."""
    warnings.showwarning = _show_warning
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - to the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths that a terminal cannot show
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    print(f"polyak: warning: {message}", file=sys.stderr)
