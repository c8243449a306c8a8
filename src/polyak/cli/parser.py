"""What every command parses with: one-line errors, numbers as people write them, near misses."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from polyak.errors import PolyakError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `PolyakError`s, one line each."""

    def parse_known_args(  # type: ignore[override]  # argparse's overloads serve its own types
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Takes `--env_id` for `--env-id`, as CleanRL does; values keep their underscores."""
        spelled = [
            re.sub(r"^--[^=]+", lambda flag: flag[0].replace("_", "-"), argument)
            for argument in (sys.argv[1:] if args is None else args)
        ]
        return super().parse_known_args(spelled, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises the message."""
        raise PolyakError(f"{message} (see {self.prog} --help)")


def refuse_unknown(unknown: list[str], *parsers: argparse.ArgumentParser) -> None:
    """Raises a `PolyakError` for what no parser knew, with the nearest flag that one knows."""
    for argument in unknown:
        flag = argument.split("=")[0]
        known = [option for parser in parsers for option in parser._option_string_actions]
        near = difflib.get_close_matches(flag, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f" (see {parsers[-1].prog} --help)"
        raise PolyakError(f"unknown argument {argument}{hint}")


def trust_flag(parser: argparse.ArgumentParser) -> None:
    """`--trust-env`, of every command that loads what somebody else may have saved."""
    parser.add_argument(
        "--trust-env",
        action="store_true",
        help="allow a saved agent or run to name a module of yours that registers its environment",
    )


# Types of arguments: text -> value, or argparse.ArgumentTypeError


def integer(text: str) -> int:
    """Accepts 1000000, 1_000_000 and 1e6."""
    for parse in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            if int(value := parse(text)) == value:
                return int(value)
    raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")


def positive(text: str) -> int:
    """An `integer` from 1 on."""
    value = integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def whole(text: str) -> int:
    """An `integer` from 0 on."""
    value = integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {value}")
    return value


def boolean(text: str) -> bool:
    """Accepts True and False, 1 and 0, yes and no, in any case."""
    values = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be True or False, not {text!r}")
    return values[text.lower()]
