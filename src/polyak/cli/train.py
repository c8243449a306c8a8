"""`polyak train`: one run, several seeds side by side, or only the agent of an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyak import algorithms
from polyak.algorithms.configs import CONFIGS
from polyak.cli import agents, hub, recording
from polyak.cli.train_flags import OWN, USAGE, train_options, with_algorithm
from polyak.errors import PolyakError

if TYPE_CHECKING:
    from polyak.runs import Run


def train(arguments: list[str]) -> None:
    """`polyak train`. What would be refused after the training is refused before it."""
    if not arguments or arguments[0] in ("-h", "--help"):
        names = ", ".join(CONFIGS)
        print(
            f"usage: {USAGE}\n\nalgorithms: {names} (or an experiment's name, such as "
            "ddpg_continuous_action)\n\n`polyak train ALGORITHM --help` lists the flags."
        )
        return
    name, *flags = with_algorithm(arguments)
    given = train_options(name, flags)
    own = {flag: given.pop(flag) for flag in OWN if flag in given}
    upload, entity = own.get("upload_model", False), own.get("hf_entity")
    if entity is not None and not upload:
        raise PolyakError("--hf-entity needs --upload-model")
    if own.get("resume") == "":
        raise PolyakError("--resume is empty: give a run folder, or auto")
    if own.get("skip_train"):
        if upload:
            raise PolyakError("--upload-model is for training: use polyak push RUN")
        for flag in ("resume", "num_seeds"):
            if flag in own:
                raise PolyakError(f"--{flag.replace('_', '-')} is for training: not --skip-train")
        _skip_train(name, own, given)
        return
    if "load_path" in own:
        raise PolyakError("--load-path is for playing a saved agent: add --skip-train")
    if "trust_env" in own and own.get("resume", "auto") == "auto":
        raise PolyakError("--trust-env is for --skip-train or --resume RUN: name one of them")
    recording.need_path(own)
    if upload:
        hub.quiet().publisher(entity)
        given.setdefault("save_model", True)  # whose evaluation the model card shows
    if "record_path" in own:
        recording.check_path(own)
    if "num_seeds" in own:
        _train_seeds(name, own, given)
    else:
        _train_one(name, own, given)


def _train_one(name: str, own: dict[str, Any], given: dict[str, Any]) -> None:
    from polyak import training

    going_on = {flag: own[flag] for flag in ("resume", "trust_env") if flag in own}
    run = training.train(name, progress=True, **going_on, **given)
    _print_run(run)
    if "record_path" in own:
        recording.play(run.path / "final", own | {"trust_env": True})  # which has just been run
    _upload(run, own)


def _train_seeds(name: str, own: dict[str, Any], given: dict[str, Any]) -> None:
    """Trains some seeds side by side; prints those that finished, then raises if one did not."""
    from polyak import training
    from polyak.runs import Run
    from polyak.stopping import Stopped

    if "record_path" in own:
        raise PolyakError("--record-path films one agent: leave it out with --num-seeds")
    num_seeds, resume = own["num_seeds"], own.get("resume", "")
    outcomes = training.train_seeds(name, num_seeds, resume=resume, progress=True, **given)
    finished = {seed: run for seed, run in outcomes.items() if isinstance(run, Run)}
    failed = {seed: error for seed, error in outcomes.items() if not isinstance(error, Run)}
    for run in finished.values():
        _print_run(run)
    for seed, run in finished.items():
        try:
            _upload(run, own)
        except PolyakError as problem:
            failed[seed] = problem
    if any(isinstance(error, Stopped) for error in failed.values()):
        raise Stopped("; go on with the same command and --resume auto")
    for error in failed.values():
        if not isinstance(error, PolyakError):  # a fault that deserves its trace
            raise error
    if failed:
        reasons = "; ".join(f"seed {seed}: {error}" for seed, error in failed.items())
        raise PolyakError(f"{len(failed)} of {num_seeds} seeds failed: {reasons}")


def _skip_train(name: str, own: dict[str, Any], given: dict[str, Any]) -> None:
    """Evaluates or records the agent in `--load-path` and trains nothing."""
    from polyak import models, settings

    if "load_path" not in own:
        raise PolyakError("--skip-train needs --load-path with a saved agent")
    path = own["load_path"]
    algorithm, _ = algorithms.parse(name)
    agent = models.load(path)
    if agent.info["algorithm"] != algorithm:
        raise PolyakError(f"{path} was trained by {agent.info['algorithm']}, not {algorithm}")
    chosen = settings.setup(name, given).settings
    if "env_id" in given and given["env_id"] != agent.spec.env_id:
        raise PolyakError(f"{path} plays {agent.spec.env_id}, not {chosen.env_id}")
    recording.need_path(own)
    if "record_path" in own:
        played = {flag: given[flag] for flag in ("seed", "backend") if flag in given}
        recording.play(path, own | played)
    else:
        agents.print_evaluation(
            path,
            given.get("eval_episodes"),
            given.get("seed"),
            trust=own.get("trust_env", False),
            backend=given.get("backend"),
        )


def _print_run(run: Run) -> None:
    print(f"run={run.path}")
    if (result := run.final_eval_return) is not None:
        print(f"final_eval_return={result:.2f}")


def _upload(run: Run, own: dict[str, Any]) -> None:
    """Publishes what has just been trained, if that was asked for."""
    if own.get("upload_model"):
        try:
            url = hub.quiet().push(run.path, entity=own.get("hf_entity"), trust_env=True)
            print(f"url={url}")
        except PolyakError as error:
            raise PolyakError(f"{error}; the run is whole: polyak push {run.path}") from error
