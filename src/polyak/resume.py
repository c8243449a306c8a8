"""Which run goes on, and with what settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyak import settings
from polyak.errors import PolyakError
from polyak.runs import Run
from polyak.settings import Setup

AUTO = "auto"

CHANGEABLE = sorted({"total_timesteps", "backend", "save_model"} | settings.PLACE - {"runs_dir"})
"""What may be set anew where a run goes on."""


def choose(
    algorithm: str | None, resume: str, options: Mapping[str, Any], *, trust_env: bool
) -> tuple[Setup, Run | None]:
    """The set-up of the run to train, and its folder if there is one already.

    Args:
        algorithm: an algorithm's or experiment's name; may be None where `resume` names a run.
        resume: a run folder; `auto` for the newest unfinished run of this very set-up, else a new
            one; empty for a new one.
        options: as for `settings.setup`.
        trust_env: allow the configuration in a run folder to name a module that is imported.

    Raises:
        PolyakError: no such run, or an option that cannot be changed any more.
    """
    if resume and resume != AUTO:
        run = named(resume)
        return _continued(run, algorithm, options, trust_env=trust_env), run
    if algorithm is None:
        raise PolyakError("name the algorithm")
    chosen = settings.setup(algorithm, options)
    return chosen, _newest_unfinished(chosen) if resume else None


def named(path: str) -> Run:
    """The run in a folder.

    Raises:
        PolyakError: there is none.
    """
    run = Run(Path(path))
    if not (run.path / "config.json").is_file():
        raise PolyakError(f"no run in {path!r}: give a run folder")
    return run


def _newest_unfinished(chosen: Setup) -> Run | None:
    wanted = chosen.asdict()
    same = []
    for path in Path(chosen.settings.runs_dir).glob("*/config.json"):
        run = Run(path.parent)
        try:
            config, unfinished = run.config, run.status["state"] != "finished"
        except PolyakError:  # of another program, or damaged
            continue
        # A setting that the run does not know had the default when it began.
        known = {key: config.get(key, value) for key, value in wanted.items()}
        if unfinished and _essence(known) == _essence(wanted):
            same.append((path.stat().st_mtime_ns, run))
    return max(same, key=lambda pair: pair[0])[1] if same else None


def _essence(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in settings.PLACE}


def _continued(
    run: Run, algorithm: str | None, options: Mapping[str, Any], *, trust_env: bool
) -> Setup:
    values = {key: value for key, value in run.config.items() if key != "context"}
    try:
        before = settings.recorded(values)
    except PolyakError as error:
        raise PolyakError(f"{run.path / 'config.json'} does not describe a run: {error}") from error
    asked = settings.explicit(algorithm or before.settings.algorithm, options)
    recorded = before.asdict()
    for key, value in asked.items():
        if key not in CHANGEABLE and value != recorded[key]:
            flag = "--" + key.replace("_", "-")
            raise PolyakError(
                f"{run.path} has {flag} {recorded[key]}, not {value}: what can change where a run "
                f"goes on is {', '.join('--' + k.replace('_', '-') for k in CHANGEABLE)}"
            )
    env_id = before.settings.env_id
    if ":" in env_id and not trust_env and "env_id" not in asked:
        raise PolyakError(
            f"the run's environment {env_id!r} would run the module {env_id.rpartition(':')[0]!r}: "
            "add --trust-env if that is yours"
        )
    chosen = settings.recorded(recorded | {k: v for k, v in asked.items() if k in CHANGEABLE})
    if chosen.settings.total_timesteps < before.settings.total_timesteps:
        raise PolyakError(
            f"--total-timesteps {chosen.settings.total_timesteps} is below the run's own "
            f"{before.settings.total_timesteps}: it can only be raised"
        )
    return chosen
