"""Commands over many runs: `benchmark` and `tune` make them, `runs` and `report` look at them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from polyak.cli.parser import Parser, whole
from polyak.cli.train_flags import train_options


def benchmark(arguments: list[str]) -> None:
    """`polyak benchmark`, whose flags include those of `polyak train`.

    Raises:
        SystemExit: a run failed.
    """
    from polyak.benchmark import command

    parser = Parser(
        prog="polyak benchmark", usage=command.USAGE, description=command.DESCRIPTION,
        argument_default=argparse.SUPPRESS, allow_abbrev=False,
    )  # fmt: skip
    command.add_flags(parser)
    if code := command.main(parser, arguments, train_options, ("--resume", "auto")):
        raise SystemExit(code)


def tune(arguments: list[str]) -> None:
    """`polyak tune`, whose flags include those of `polyak train`."""
    from polyak.tune import command

    parser = Parser(
        prog="polyak tune", usage=command.USAGE, description=command.DESCRIPTION,
        argument_default=argparse.SUPPRESS, allow_abbrev=False,
    )  # fmt: skip
    command.add_flags(parser)
    command.main(parser, arguments, train_options)


def list_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak runs`."""
    add = parser.add_argument
    add("paths", nargs="*", type=Path, help="run folders, or folders of them")
    for name, text in (
        ("env-id", "the task"),
        ("algorithm", "ddpg, td3 or sac"),
        ("backend", "the library"),
        ("exp-name", "the experiment"),
        ("state", "running, finished, failed or interrupted"),
    ):
        add(f"--{name}", help=f"only runs with this: {text}; * is any text")
    add("--seed", type=whole, help="only runs with this seed")
    add("--compare", action="store_true", help="show the settings in which the runs differ")


def list_runs(options: argparse.Namespace) -> None:
    """`polyak runs`."""
    from polyak import listing

    names = ("env_id", "algorithm", "backend", "exp_name", "state", "seed")
    filters = {k: v for k in names if (v := getattr(options, k)) is not None}
    entries = listing.find(options.paths or [Path("runs")], filters)
    print(listing.differences(entries) if options.compare else listing.table(entries))
    print(f"{len(entries)} runs", file=sys.stderr)


def report_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak report`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="run folders, or folders of them")
    add("--output", type=Path, default=Path("report"), help="folder to write")


def report(options: argparse.Namespace) -> None:
    """`polyak report`."""
    from polyak.report.write import write

    written = write(options.runs, options.output)
    print(written.summary, file=sys.stderr)
    print(f"curve={written.curve}\npage={written.page}\ntables={written.tables}")
