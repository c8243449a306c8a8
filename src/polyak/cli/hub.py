"""`polyak push`, and the way of the other commands to the Hugging Face Hub."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType

from polyak.cli.parser import trust_flag


def quiet() -> ModuleType:
    """The module `polyak.hub`, whose library then keeps its bars and notes out of logs."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    from polyak import hub

    return hub


def push_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak push`."""
    add = parser.add_argument
    add("path", type=Path, metavar="RUN", help="run folder")
    add("--entity", help="organisation to publish as; default: yourself")
    add("--private", action="store_true", help="make a new repository private")
    trust_flag(parser)


def push(options: argparse.Namespace) -> None:
    """`polyak push`."""
    url = quiet().push(
        options.path,
        entity=options.entity,
        private=options.private,
        trust_env=options.trust_env,
    )
    print(f"url={url}")
