"""Agents in a window or a file, for `polyak enjoy` and `polyak train`, and the flags for that."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from polyak.cli.parser import positive
from polyak.errors import PolyakError

LARGEST_PICTURE = 4096
"""Pixels of a side: far beyond what anyone watches, well within what OpenGL draws."""


def add_flags(parser: argparse.ArgumentParser, *, short: bool) -> None:
    """The flags `--record-*`; `short`: whether `--episodes` says `--record-episodes` too."""
    add = parser.add_argument
    add("--record-path", type=Path, help="write a .gif or .mp4")
    names = ("--record-episodes", "--episodes") if short else ("--record-episodes",)
    add(*names, dest="record_episodes", type=positive, help="episodes (default: 1)")
    add("--record-fps", type=positive, help="frames per second (default: 20)")
    add("--record-frame-skip", type=positive,
        help="environment steps per frame (default: 8)")  # fmt: skip
    add("--record-width", type=_pixels, help="of MuJoCo tasks, in pixels (default: 480)")
    add("--record-height", type=_pixels, help="of MuJoCo tasks, in pixels (default: 480)")
    add("--record-camera", metavar="NAME",
        help='camera of the MuJoCo model (default: "track" if it has that)')  # fmt: skip
    add("--record-label", action="store_const", const=True,
        help="write step and return into the picture")  # fmt: skip


def _pixels(text: str) -> int:
    value = positive(text)
    if value > LARGEST_PICTURE:
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST_PICTURE}, not {value}")
    return value


def need_path(own: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    """Refuses flags of a recording, `but` these, where none is asked for.

    Raises:
        PolyakError: there is one.
    """
    for name in own:
        if name.startswith("record_") and name not in but and "record_path" not in own:
            raise PolyakError(f"--{name.replace('_', '-')} needs --record-path FILE.gif or .mp4")


def check_path(own: dict[str, Any]) -> None:
    """Raises a `PolyakError` where the file of a recording cannot be written."""
    from polyak.video import VideoWriter

    with VideoWriter(own["record_path"], own.get("record_fps", 20)):
        pass


def play(path: Path, own: dict[str, Any]) -> None:
    """Records an agent, and prints its returns, or shows it in a window.

    Args:
        path: run folder or saved agent.
        own: the flags that were given: `record_*`, `seed`, `backend`, `trust_env`.
    """
    from polyak import models, recording

    agent = models.load(path, own.get("backend"))
    env_id = models.trusted_env_id(agent, own.get("trust_env", False))
    seeds = models.seeds(agent, own.get("record_episodes", 1), own.get("seed"))
    if "record_path" not in own:
        recording.watch(agent.policy(), env_id, seeds=seeds)
        return
    returns = recording.record(
        agent.policy(), env_id, own["record_path"], seeds=seeds,
        **_filmed(own), label=own.get("record_label", False),
    )  # fmt: skip
    print(f"recorded={own['record_path']} returns={_numbers(returns)}")


def reel(paths: list[Path], own: dict[str, Any]) -> None:
    """Records several agents of one task side by side, by their step; see `play`."""
    from polyak import models, recording

    if "record_path" not in own:
        raise PolyakError("several agents are only recorded: add --record-path FILE.gif or .mp4")
    found = (models.load(path, own.get("backend")) for path in paths)
    agents = sorted(found, key=lambda agent: agent.info["step"])
    env_id = models.trusted_env_id(agents[-1], own.get("trust_env", False))
    policies = {}
    for agent in agents:
        if agent.spec.env_id != env_id:
            raise PolyakError(f"agents of one task, please: {env_id} is not {agent.spec.env_id}")
        name = f"{agent.info['algorithm']} after {agent.info['step']:,}"
        while name in policies:  # other seeds, say
            name += "'"
        policies[name] = agent.policy()
    seeds = models.seeds(agents[-1], own.get("record_episodes", 1), own.get("seed"))
    recorded = recording.reel(policies, env_id, own["record_path"], seeds=seeds, **_filmed(own))
    print(f"recorded={own['record_path']}")
    for name, returns in recorded.items():
        print(f"{name}: returns={_numbers(returns)}")


def _filmed(own: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `polyak.recording` that were given."""
    names = ("fps", "frame_skip", "width", "height", "camera")
    return {name: own[f"record_{name}"] for name in names if f"record_{name}" in own}


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
