"""Commands that play or write one saved agent: `evaluate`, `enjoy`, `export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from polyak import algorithms
from polyak.cli import hub, recording
from polyak.cli.parser import positive, trust_flag, whole
from polyak.errors import PolyakError


def evaluate_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak evaluate`."""
    _agent_flags(parser)
    parser.add_argument("--episodes", type=positive, help="default: those of its last evaluation")


def evaluate(options: argparse.Namespace) -> None:
    """`polyak evaluate`."""
    (path,), seed = _named(options)
    print_evaluation(path, options.episodes, seed, trust=options.trust_env, backend=options.backend)


def print_evaluation(
    path: Path, episodes: int | None, seed: int | None, *, trust: bool, backend: str | None
) -> None:
    """Evaluates a saved agent and prints each episode, then their mean; None: its own."""
    from polyak import models

    result = models.evaluate_saved(
        path, episodes=episodes, seed=seed, trust_env=trust, backend=backend
    )
    for index, (start, total, length) in enumerate(zip(*result, strict=True)):
        print(f"episode={index + 1} seed={start} return={total:.6g} length={length}")
    print(f"eval_return={result.mean:.2f} std={result.std:.2f} episodes={len(result.seeds)}")


def enjoy_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak enjoy`."""
    _agent_flags(parser, several=True)
    recording.add_flags(parser, short=True)


def enjoy(options: argparse.Namespace) -> None:
    """`polyak enjoy`."""
    own = {k: v for k, v in vars(options).items() if v is not None and k != "seed"}
    recording.need_path(own, but=("record_episodes",))  # of which a window shows some, too
    paths, seed = _named(options)
    if seed is not None:
        own["seed"] = seed
    if len(paths) == 1:
        recording.play(paths[0], own)
    else:
        recording.reel(paths, own)


def export_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `polyak export`."""
    parser.add_argument("path", type=Path, help="run folder or saved agent")
    parser.add_argument("--format", choices=["onnx"], required=True, help="kind of file")
    parser.add_argument("--output", type=Path, help="file; default: policy.onnx beside the agent")


def export(options: argparse.Namespace) -> None:
    """`polyak export`."""
    from polyak import export

    path, difference = export.to_onnx(options.path, options.output)
    print(f"exported={path} largest_difference={difference:.1e}")


def _agent_flags(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """The flags that name an agent, here or on the Hub, and say how its episodes begin."""
    add = parser.add_argument
    text = "run folder or saved agent"
    if several:
        add("path", nargs="*", type=Path,
            help=f"{text}; several are recorded side by side, by their step")  # fmt: skip
    else:
        add("path", nargs="?", type=lambda path: [Path(path)], help=text)
    add("--backend", choices=list(algorithms.BACKENDS),
        help="library that computes; default: the one that trained it")  # fmt: skip
    add("--hf-repository", metavar="OWNER/NAME", help="an agent on the Hugging Face Hub instead")
    add("--exp-name", help="the agent on the Hub of this experiment, with --env-id and --seed")
    add("--env-id", help="task that the agent of --exp-name was trained on")
    add("--hf-entity", help="whose the agent of --exp-name is; default: yours")
    add("--revision", help="branch, tag or commit of the repository; default: the newest")
    add("--seed", type=whole, help="seed of the episodes; default: the agent's own. With "
        "--exp-name: the seed it was trained with (default: 1)")  # fmt: skip
    trust_flag(parser)


def _named(options: argparse.Namespace) -> tuple[list[Path], int | None]:
    """The agents that a command names, fetched if need be, and the seed of episodes if given."""
    ways = (options.path or None, options.hf_repository, options.exp_name)
    if sum(way is not None for way in ways) != 1:
        raise PolyakError(
            "name one agent: a path, --hf-repository OWNER/NAME, or --exp-name with --env-id"
        )
    by_name = options.exp_name is not None
    for flag, given, fits in (
        ("--revision", options.revision, not options.path),
        ("--env-id", options.env_id, by_name),
        ("--hf-entity", options.hf_entity, by_name),
    ):
        if given is not None and not fits:
            raise PolyakError(f"{flag} is for agents on the Hub: see --help")
    if options.path:
        return options.path, options.seed

    library = hub.quiet()
    if not by_name:
        return [library.fetch(options.hf_repository, options.revision)], options.seed
    if options.env_id is None:
        raise PolyakError("--exp-name needs --env-id, the task that the agent was trained on")
    agent = (options.env_id, options.exp_name, 1 if options.seed is None else options.seed)
    return [library.fetch_named(*agent, options.hf_entity, options.revision)], None
