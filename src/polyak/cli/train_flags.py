"""The flags of `polyak train`, made from the settings' own declarations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from polyak import algorithms
from polyak.cli import recording
from polyak.cli.parser import Parser, boolean, integer, positive, refuse_unknown, trust_flag
from polyak.errors import PolyakError

USAGE = "polyak train ALGORITHM [--env-id ID] [--preset NAME] [--resume RUN] [flags]"

OWN = (
    "resume",
    "num_seeds",
    "load_path",
    "skip_train",
    "trust_env",
    "upload_model",
    "hf_entity",
    "record_path",
    "record_episodes",
    "record_fps",
    "record_frame_skip",
    "record_width",
    "record_height",
    "record_camera",
    "record_label",
)
"""Flags of `polyak train` that are no settings of a run."""


def train_options(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The options that flags of `polyak train NAME` ask for.

    Raises:
        PolyakError: a flag is unknown, or its value is not of its type.
    """
    parser = train_parser(name)
    options, unknown = parser.parse_known_args(arguments)
    refuse_unknown(unknown, parser)
    return vars(options)


def train_parser(name: str) -> argparse.ArgumentParser:
    """The parser of `polyak train NAME`.

    A flag that was not given is absent from the result, so that presets and defaults can be told
    from what the user asked for.

    Raises:
        PolyakError: there is no such algorithm.
    """
    from polyak import settings

    algorithm, _ = algorithms.parse(name)
    parser = Parser(
        prog=f"polyak train {name}", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    add = parser.add_argument
    known = ", ".join(settings.presets(algorithm)) or "none ship"
    add("--preset", help=f"tuned settings ({known}), or a TOML file of your own")
    add("--resume", metavar="RUN|auto",
        help="go on with a run where it stopped; auto: the newest unfinished one of these "
        "settings, else a new one")  # fmt: skip
    add("--num-seeds", type=positive,
        help="train this many seeds side by side in one process, from --seed on")  # fmt: skip
    add("--learning-rate", type=float, help="step size of all optimisers")
    add("--no-cuda", action="store_const", const="cpu", dest="device",
        help="same as --device cpu")  # fmt: skip
    _add_settings(parser, algorithm)
    add("--cuda", nargs="?", const="auto", type=lambda text: "auto" if boolean(text) else "cpu",
        dest="device", help=argparse.SUPPRESS)  # fmt: skip
    add("--skip-train", action="store_true", help="only play the agent in --load-path")
    add("--load-path", type=Path, help="saved agent for --skip-train")
    trust_flag(parser)
    add("--upload-model", nargs="?", const=True, type=boolean, metavar="BOOL",
        help="publish the agent on the Hugging Face Hub; implies --save-model")  # fmt: skip
    add("--hf-entity", help="organisation to publish as; default: yourself")
    recording.add_flags(parser, short=False)
    return parser


def _add_settings(parser: argparse.ArgumentParser, algorithm: str) -> None:
    """A flag for each setting, with its aliases; for what is true or false a `--no-` form, too."""
    from polyak import settings

    hints = settings.types(algorithm)
    for key, field in settings.fields(algorithm).items():
        if key == "algorithm":
            continue
        flag = "--" + key.replace("_", "-")
        names = (flag, *field.metadata["aliases"])
        text = field.metadata["help"].replace("%", "%%")
        notes = [f"default: {field.default}"] if field.default not in ("", None) else []
        notes += [field.metadata["source"]] if field.metadata["source"] else []
        text += f" ({'; '.join(notes)})" if notes else ""
        kind = next(t for t in (*get_args(hints[key]), hints[key]) if t is not type(None))
        if kind is bool:
            parser.add_argument(*names, dest=key, nargs="?", const=True, type=boolean,
                                metavar="BOOL", help=text)  # fmt: skip
            parser.add_argument("--no-" + flag[2:], dest=key, action="store_false",
                                help=argparse.SUPPRESS)  # fmt: skip
        else:
            number = integer if kind is int else kind
            parser.add_argument(*names, dest=key, type=number, metavar=kind.__name__.upper(),
                                help=text)  # fmt: skip


def with_algorithm(arguments: list[str]) -> list[str]:
    """The arguments, preceded by the algorithm where a run that goes on tells it.

    Raises:
        PolyakError: neither does, or the run cannot be read.
    """
    if not arguments[0].startswith("-"):
        return arguments
    parser = Parser(prog="polyak train", add_help=False, allow_abbrev=False)
    parser.add_argument("--resume")
    resume = parser.parse_known_args(arguments)[0].resume
    if resume is None or resume == "auto":
        raise PolyakError(f"name the algorithm first: {USAGE}")
    from polyak.resume import named

    return [str(named(resume).config.get("algorithm")), *arguments]
