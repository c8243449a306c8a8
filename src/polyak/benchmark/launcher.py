"""Where runs are made: the flags that say it, for all commands that make runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from polyak.errors import PolyakError


def add_flag(parser: argparse._ActionsContainer, *names: str) -> None:
    """The flag `--launcher`, with these launchers to choose from."""
    parser.add_argument(
        "--launcher", choices=names, help="default: local, or what the other flags speak of"
    )


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the launcher `ray`."""
    add = parser.add_argument_group("Ray").add_argument
    add(
        "--address", help="of a cluster (default: RAY_ADDRESS, else a cluster here, else a new one)"
    )
    add("--ray-gpus-per-run", type=float, metavar="N", help="may be a fraction (default: 0)")


def choose(given: Mapping[str, Any]) -> str:
    """The launcher that these flags mean, by name.

    Raises:
        PolyakError: some are of another than others.
    """
    spoken_of = {key.split("_")[0] for key in given if key.startswith(("slurm_", "ray_"))}
    spoken_of |= {"ray"} if "address" in given else set()
    launcher = given.get("launcher") or next(iter(sorted(spoken_of)), "local")
    if other := spoken_of - {launcher}:
        raise PolyakError(f"flags of {min(other)} have no meaning with --launcher {launcher}")
    return str(launcher)


def ray_gpus(given: Mapping[str, Any]) -> float:
    """GPUs of a run.

    Raises:
        PolyakError: Ray has no such number of them.
    """
    gpus = given.get("ray_gpus_per_run", 0.0)
    if not (0.0 <= gpus <= 1.0 or (gpus > 1.0 and gpus.is_integer())):
        raise PolyakError(f"--ray-gpus-per-run must be a fraction or a whole number, not {gpus}")
    return float(gpus)
