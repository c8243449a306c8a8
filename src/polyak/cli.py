"""The command line. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import functools
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, get_args

from polyak import __version__, algorithms
from polyak.algorithms.configs import CONFIGS
from polyak.errors import PolyakError

if TYPE_CHECKING:
    from polyak.runs import Run

TRAIN_USAGE = "polyak train ALGORITHM [--env-id ID] [--preset NAME] [--resume RUN] [flags]"
LARGEST_PICTURE = 4096
"""Pixels of a side: far beyond what anyone watches, well within what OpenGL draws."""


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 2 for a user's error, 130 when interrupted."""
    warnings.showwarning = _show_warning
    for name in ("stdout", "stderr"):  # None where the caller closed them
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere())
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths that a terminal cannot show
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
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


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["train"]:
        _train(arguments[1:])
        return
    if arguments[:1] == ["benchmark"]:
        _benchmark(arguments[1:])
        return
    if arguments[:1] == ["tune"]:
        _tune(arguments[1:])
        return
    parser = Parser(
        prog="polyak", description="Trains continuous-control agents: DDPG, TD3 and SAC."
    )
    parser.add_argument("--version", action="version", version=f"polyak {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("train", help="train an agent: " + TRAIN_USAGE, add_help=False)
    commands.add_parser("benchmark", help="make every run of a grid", add_help=False)
    commands.add_parser("tune", help="search for settings with a high return", add_help=False)

    command = commands.add_parser("evaluate", help="evaluate a saved agent, noise off")
    _agent_arguments(command)
    command.add_argument("--episodes", type=_positive, help="default: those of its last evaluation")
    command.set_defaults(command=_evaluate)

    command = commands.add_parser(
        "enjoy", help="watch a saved agent, or record it, or several side by side"
    )
    _agent_arguments(command, several=True)
    _record_arguments(command)
    command.set_defaults(command=_enjoy)

    command = commands.add_parser("push", help="publish a run's agent on the Hugging Face Hub")
    command.add_argument("path", type=Path, metavar="RUN", help="run folder")
    command.add_argument("--entity", help="organisation to publish as; default: yourself")
    command.add_argument("--private", action="store_true", help="make a new repository private")
    _trust_argument(command)
    command.set_defaults(command=_push)

    command = commands.add_parser("runs", help="list runs, or compare their settings")
    command.add_argument("paths", nargs="*", type=Path, help="run folders, or folders of them")
    for name, text in (
        ("env-id", "the task"),
        ("algorithm", "ddpg, td3 or sac"),
        ("backend", "the library"),
        ("exp-name", "the experiment"),
        ("state", "running, finished, failed or interrupted"),
    ):
        command.add_argument(f"--{name}", help=f"only runs with this: {text}; * is any text")
    command.add_argument("--seed", type=_whole, help="only runs with this seed")
    command.add_argument(
        "--compare", action="store_true", help="show the settings in which the runs differ"
    )
    command.set_defaults(command=_runs)

    command = commands.add_parser("export", help="write a saved agent for use without Polyak")
    command.add_argument("path", type=Path, help="run folder or saved agent")
    command.add_argument("--format", choices=["onnx"], required=True, help="kind of file")
    command.add_argument("--output", type=Path, help="file; default: policy.onnx beside the agent")
    command.set_defaults(command=_export)

    command = commands.add_parser("report", help="tables, curves and a page of some runs")
    command.add_argument("runs", nargs="+", type=Path, help="run folders, or folders of them")
    command.add_argument("--output", type=Path, default=Path("report"), help="folder to write")
    command.set_defaults(command=_report)

    options, unknown = parser.parse_known_args(arguments)
    _refuse_unknown(unknown, parser, commands.choices[arguments[0]])
    options.command(options)


def _train(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        names = ", ".join(CONFIGS)
        print(
            f"usage: {TRAIN_USAGE}\n\nalgorithms: {names} (or an experiment's name, such as "
            "ddpg_continuous_action)\n\n`polyak train ALGORITHM --help` lists the flags."
        )
        return
    arguments = _with_algorithm(arguments)
    given = _train_options(arguments[0], arguments[1:])
    own = {name: given.pop(name) for name in OWN if name in given}
    upload, entity = own.get("upload_model", False), own.get("hf_entity")
    if entity is not None and not upload:
        raise PolyakError("--hf-entity needs --upload-model")
    if own.get("skip_train"):
        if upload:
            raise PolyakError("--upload-model is for training: use polyak push RUN")
        _skip_train(arguments[0], own, given)
        return
    if "load_path" in own:
        raise PolyakError("--load-path is for playing a saved agent: add --skip-train")
    if "trust_env" in own and "resume" not in own:
        raise PolyakError("--trust-env is for playing a saved agent: add --skip-train")
    going_on = {name: own[name] for name in ("resume", "trust_env") if name in own}
    _need_record_path(own)

    from polyak import training

    if upload:
        _hub().publisher(entity)  # refuses now what it would refuse after the training
        given.setdefault("save_model", True)  # whose evaluation the model card shows
    if "record_path" in own:
        from polyak.video import VideoWriter

        with VideoWriter(own["record_path"], own.get("record_fps", 20)):
            pass  # refuses now what it would refuse after the training
    if (num_seeds := own.get("num_seeds")) is not None:
        _train_seeds(arguments[0], num_seeds, own, given)
        return
    run = training.train(arguments[0], progress=True, **going_on, **given)
    _print_run(run)
    if "record_path" in own:
        _record(run.path / "final", own | {"trust_env": True})  # which has just been run
    _upload(run, own)


def _print_run(run: Run) -> None:
    print(f"run={run.path}")
    if (result := run.final_eval_return) is not None:
        print(f"final_eval_return={result:.2f}")


def _upload(run: Run, own: dict[str, Any]) -> None:
    """Publishes what has just been trained, if that was asked for."""
    if own.get("upload_model"):
        try:
            print(f"url={_hub().push(run.path, entity=own.get('hf_entity'), trust_env=True)}")
        except PolyakError as error:
            raise PolyakError(f"{error}; the run is whole: polyak push {run.path}") from error


def _train_seeds(name: str, num_seeds: int, own: dict[str, Any], given: dict[str, Any]) -> None:
    """Trains some seeds side by side; prints those that finished, then raises if one did not."""
    from polyak import training
    from polyak.runs import Run

    if "record_path" in own:
        raise PolyakError("--record-path films one agent: leave it out with --num-seeds")
    resume = own.get("resume", "")
    outcomes = training.train_seeds(name, num_seeds, resume=resume, progress=True, **given)
    failed = {}
    for seed, outcome in outcomes.items():
        if isinstance(outcome, Run):
            _print_run(outcome)
            _upload(outcome, own)
        else:
            failed[seed] = outcome
    for error in failed.values():
        if not isinstance(error, PolyakError):  # stopped, or a fault that deserves its trace
            raise error
    if failed:
        reasons = "; ".join(f"seed {seed}: {error}" for seed, error in failed.items())
        raise PolyakError(f"{len(failed)} of {num_seeds} seeds failed: {reasons}")


def _with_algorithm(arguments: list[str]) -> list[str]:
    """The arguments, preceded by the algorithm where a run that goes on tells it."""
    if not arguments[0].startswith("-"):
        return arguments
    parser = Parser(prog="polyak train", add_help=False, allow_abbrev=False)
    parser.add_argument("--resume")
    resume = parser.parse_known_args(arguments)[0].resume
    if resume is None or resume == "auto":
        raise PolyakError(f"name the algorithm first: {TRAIN_USAGE}")
    from polyak import runs

    return [str(runs.read_json(Path(resume) / "config.json").get("algorithm")), *arguments]


def _train_options(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The options that flags of `polyak train NAME` ask for."""
    parser = train_parser(name)
    options, unknown = parser.parse_known_args(arguments)
    _refuse_unknown(unknown, parser)
    return vars(options)


def _benchmark(arguments: list[str]) -> None:
    from polyak.benchmark import command

    parser = Parser(
        prog="polyak benchmark", usage=command.USAGE, description=command.DESCRIPTION,
        argument_default=argparse.SUPPRESS, allow_abbrev=False,
    )  # fmt: skip
    command.add_flags(parser)
    if code := command.main(parser, arguments, _train_options, ("--resume", "auto")):
        raise SystemExit(code)


def _tune(arguments: list[str]) -> None:
    from polyak.tune import command

    parser = Parser(
        prog="polyak tune", usage=command.USAGE, description=command.DESCRIPTION,
        argument_default=argparse.SUPPRESS, allow_abbrev=False,
    )  # fmt: skip
    command.add_flags(parser)
    command.main(parser, arguments, _train_options)


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


def train_parser(name: str) -> argparse.ArgumentParser:
    """The flags of `polyak train NAME`, made from the settings' own declarations.

    A flag that was not given is absent from the result, so that presets and defaults can be told
    from what the user asked for.
    """
    from polyak import settings

    algorithm, _ = algorithms.parse(name)
    parser = Parser(
        prog=f"polyak train {name}", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    known = ", ".join(settings.presets(algorithm)) or "none ship"
    parser.add_argument("--preset", help=f"tuned settings ({known}), or a TOML file of your own")
    parser.add_argument(
        "--resume",
        metavar="RUN|auto",
        help="go on with a run where it stopped; auto: the newest unfinished one of these "
        "settings, else a new one",
    )
    parser.add_argument(
        "--num-seeds",
        type=_positive,
        help="train this many seeds side by side in one process, from --seed on",
    )
    parser.add_argument("--learning-rate", type=float, help="step size of all optimisers")
    parser.add_argument(
        "--no-cuda", action="store_const", const="cpu", dest="device", help="same as --device cpu"
    )
    hints = settings.types(algorithm)
    for key, field in settings.fields(algorithm).items():
        if key == "algorithm":
            continue
        flag = "--" + key.replace("_", "-")
        text = field.metadata["help"].replace("%", "%%")
        notes = [f"default: {field.default}"] if field.default not in ("", None) else []
        notes += [field.metadata["source"]] if field.metadata["source"] else []
        default = f" ({'; '.join(notes)})" if notes else ""
        kind = next(t for t in (*get_args(hints[key]), hints[key]) if t is not type(None))
        names = (flag, *field.metadata["aliases"])
        if kind is bool:
            parser.add_argument(*names, dest=key, nargs="?", const=True, type=_boolean,
                                metavar="BOOL", help=text + default)  # fmt: skip
            parser.add_argument("--no-" + flag[2:], dest=key, action="store_false",
                                help=argparse.SUPPRESS)  # fmt: skip
        else:
            number = _integer if kind is int else kind
            parser.add_argument(*names, dest=key, type=number, metavar=kind.__name__.upper(),
                                help=text + default)  # fmt: skip
    parser.add_argument(
        "--cuda", nargs="?", const="auto", type=lambda text: "auto" if _boolean(text) else "cpu",
        dest="device", help=argparse.SUPPRESS,
    )  # fmt: skip
    parser.add_argument(
        "--skip-train", action="store_true", help="only play the agent in --load-path"
    )
    parser.add_argument("--load-path", type=Path, help="saved agent for --skip-train")
    _trust_argument(parser)
    parser.add_argument("--upload-model", nargs="?", const=True, type=_boolean, metavar="BOOL",
        help="publish the agent on the Hugging Face Hub; implies --save-model")  # fmt: skip
    parser.add_argument("--hf-entity", help="organisation to publish as; default: yourself")
    _record_arguments(parser, prefix="record-")
    return parser


def _skip_train(name: str, own: dict[str, Any], given: dict[str, Any]) -> None:
    from polyak import models, settings

    if "load_path" not in own:
        raise PolyakError("--skip-train needs --load-path with a saved agent")
    algorithm, _ = algorithms.parse(name)
    agent = models.load(own["load_path"])
    if agent.info["algorithm"] != algorithm:
        raise PolyakError(
            f"{own['load_path']} was trained by {agent.info['algorithm']}, not {algorithm}"
        )
    chosen = settings.setup(name, given).settings
    if "env_id" in given and given["env_id"] != agent.spec.env_id:
        raise PolyakError(f"{own['load_path']} plays {agent.spec.env_id}, not {chosen.env_id}")
    _need_record_path(own)
    seed = given.get("seed")
    if "record_path" in own:
        _record(own["load_path"], own | {k: given[k] for k in ("seed", "backend") if k in given})
    else:
        trust = own.get("trust_env", False)
        _print_evaluation(
            own["load_path"],
            given.get("eval_episodes"),
            seed,
            trust=trust,
            backend=given.get("backend"),
        )


def _evaluate(options: argparse.Namespace) -> None:
    (path,), seed = _named_agents(options)
    _print_evaluation(
        path, options.episodes, seed, trust=options.trust_env, backend=options.backend
    )


def _enjoy(options: argparse.Namespace) -> None:
    own = {k: v for k, v in vars(options).items() if v is not None and k != "seed"}
    _need_record_path(own, but=("record_episodes",))  # of which a window shows some, too
    paths, seed = _named_agents(options)
    if seed is not None:
        own["seed"] = seed
    if len(paths) == 1:
        _record(paths[0], own)
    else:
        _record_reel(paths, own)


def _named_agents(options: argparse.Namespace) -> tuple[list[Path], int | None]:
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

    hub = _hub()
    if not by_name:
        return [hub.fetch(options.hf_repository, options.revision)], options.seed
    if options.env_id is None:
        raise PolyakError("--exp-name needs --env-id, the task that the agent was trained on")
    agent = (options.env_id, options.exp_name, 1 if options.seed is None else options.seed)
    return [hub.fetch_named(*agent, options.hf_entity, options.revision)], None


def _push(options: argparse.Namespace) -> None:
    url = _hub().push(
        options.path,
        entity=options.entity,
        private=options.private,
        trust_env=options.trust_env,
    )
    print(f"url={url}")


def _hub() -> ModuleType:
    """The module `hub`, whose library then keeps its bars and notes out of logs."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    from polyak import hub

    return hub


def _report(options: argparse.Namespace) -> None:
    from polyak.report.write import write

    written = write(options.runs, options.output)
    print(written.summary, file=sys.stderr)
    print(f"curve={written.curve}\npage={written.page}\ntables={written.tables}")


def _runs(options: argparse.Namespace) -> None:
    from polyak import listing

    names = ("env_id", "algorithm", "backend", "exp_name", "state", "seed")
    filters = {k: v for k in names if (v := getattr(options, k)) is not None}
    entries = listing.find(options.paths or [Path("runs")], filters)
    print(listing.differences(entries) if options.compare else listing.table(entries))
    print(f"{len(entries)} runs", file=sys.stderr)


def _export(options: argparse.Namespace) -> None:
    from polyak import export

    path, difference = export.to_onnx(options.path, options.output)
    print(f"exported={path} largest_difference={difference:.1e}")


def _print_evaluation(
    path: Path, episodes: int | None, seed: int | None, *, trust: bool, backend: str | None
) -> None:
    from polyak import models

    result = models.evaluate_saved(
        path, episodes=episodes, seed=seed, trust_env=trust, backend=backend
    )
    for index, (start, total, length) in enumerate(zip(*result, strict=True)):
        print(f"episode={index + 1} seed={start} return={total:.6g} length={length}")
    print(f"eval_return={result.mean:.2f} std={result.std:.2f} episodes={len(result.seeds)}")


def _need_record_path(own: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    for name in own:
        if name.startswith("record_") and name not in but and "record_path" not in own:
            raise PolyakError(f"--{name.replace('_', '-')} needs --record-path FILE.gif or .mp4")


def _record(path: Path, own: dict[str, Any]) -> None:
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


def _record_reel(paths: list[Path], own: dict[str, Any]) -> None:
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
    """The arguments of `recording` that were given."""
    names = ("fps", "frame_skip", "width", "height", "camera")
    return {name: own[f"record_{name}"] for name in names if f"record_{name}" in own}


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _agent_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
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
    add("--seed", type=_whole, help="seed of the episodes; default: the agent's own. With "
        "--exp-name: the seed it was trained with (default: 1)")  # fmt: skip
    _trust_argument(parser)


def _trust_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-env",
        action="store_true",
        help="allow a saved agent or run to name a module of yours that registers its environment",
    )


def _record_arguments(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    add = parser.add_argument
    add("--record-path", type=Path, help="write a .gif or .mp4")
    names = ("--record-episodes",) if prefix else ("--record-episodes", "--episodes")
    add(*names, dest="record_episodes", type=_positive, help="episodes (default: 1)")
    add("--record-fps", type=_positive, help="frames per second (default: 20)")
    add("--record-frame-skip", type=_positive,
        help="environment steps per frame (default: 8)")  # fmt: skip
    add("--record-width", type=_pixels, help="of MuJoCo tasks, in pixels (default: 480)")
    add("--record-height", type=_pixels, help="of MuJoCo tasks, in pixels (default: 480)")
    add("--record-camera", metavar="NAME",
        help='camera of the MuJoCo model (default: "track" if it has that)')  # fmt: skip
    add("--record-label", action="store_const", const=True,
        help="write step and return into the picture")  # fmt: skip


def _refuse_unknown(unknown: list[str], *parsers: argparse.ArgumentParser) -> None:
    for argument in unknown:
        flag = argument.split("=")[0]
        known = [option for parser in parsers for option in parser._option_string_actions]
        near = difflib.get_close_matches(flag, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f" (see {parsers[-1].prog} --help)"
        raise PolyakError(f"unknown argument {argument}{hint}")


def _integer(text: str) -> int:
    """Accepts 1000000, 1_000_000 and 1e6."""
    for parse in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            if int(value := parse(text)) == value:
                return int(value)
    raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")


def _positive(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _pixels(text: str) -> int:
    value = _positive(text)
    if value > LARGEST_PICTURE:
        raise argparse.ArgumentTypeError(f"must be at most {LARGEST_PICTURE}, not {value}")
    return value


def _whole(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {value}")
    return value


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be True or False, not {text!r}")
    return values[text.lower()]


@functools.cache
def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


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
