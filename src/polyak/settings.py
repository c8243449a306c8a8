"""What can be set of a run, beside the algorithm's own settings, and how both come together."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_type_hints

from polyak import algorithms
from polyak.algorithms.configs import CONFIGS, Config, setting
from polyak.errors import PolyakError

LARGEST = 10**12
"""No count of anything in a run is larger."""

MOST_SEEDS = 10_000
"""Runs of a kind at once: far more than any machine's memory holds."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run: the task, how long, on what, and what is kept."""

    algorithm: str = setting("ddpg", "the algorithm")
    backend: str = setting("torch", "library that computes: torch or jax")
    exp_name: str = setting("", "name of the experiment; by default the algorithm's")
    env_id: str = setting("Hopper-v5", "a registered Gymnasium id, or module:Env-v0")
    total_timesteps: int = setting(
        1_000_000, "environment steps, over all environments", aliases=("--total-steps",)
    )
    num_envs: int = setting(1, "environments stepped side by side")
    seed: int = setting(1, "seed of everything random")
    device: str = setting("auto", "auto, cpu or cuda")
    threads: int = setting(1, "processor threads on a CPU; 2 pay on an otherwise idle machine")
    torch_deterministic: bool = setting(True, "on a GPU, refuse operations that are not repeatable")
    log_interval: int = setting(100, "environment steps between rows of losses and speed")
    eval_interval: int = setting(10_000, "environment steps between evaluations; 0 = none")
    eval_episodes: int = setting(10, "episodes per evaluation, noise off; 0 = none")
    capture_video: bool = setting(
        False, "film about ten training episodes of the first environment"
    )
    track: bool = setting(False, "also send the metrics to Weights & Biases")
    wandb_project_name: str = setting("polyak", "its project")
    wandb_entity: str = setting("", "user or team that owns the project; by default your own")
    wandb_group: str = setting("", "group of the run")
    save_model: bool = setting(
        False, "evaluate the final agent over 10 more episodes and keep that"
    )
    checkpoint_interval: int = setting(
        10_000, "environment steps between checkpoints; 0 = only when stopped and at the end"
    )
    keep_checkpoint: bool = setting(
        True, "keep the last checkpoint of a finished run, to train it longer later"
    )
    save_path: str = setting("", "also save the final agent in this folder")
    runs_dir: str = setting("runs", "folder that holds the run folders")
    tags: str = setting("", "labels of the run, comma-separated; W&B's tags too")


PLACE = frozenset(
    {
        "runs_dir",
        "save_path",
        "threads",
        "device",
        "checkpoint_interval",
        "keep_checkpoint",
        "tags",
        "track",
        "wandb_project_name",
        "wandb_entity",
        "wandb_group",
    }
)
"""Settings that say where and how a run is computed and kept, not what is computed: runs that
differ only in these are the same."""


@dataclass(frozen=True)
class Setup:
    """A complete, checked description of a run."""

    settings: Settings
    config: Config

    def asdict(self) -> dict[str, Any]:
        """All settings in one flat dictionary, as `config.json` holds them."""
        return dataclasses.asdict(self.settings) | dataclasses.asdict(self.config)


def fields(algorithm: str) -> dict[str, dataclasses.Field[Any]]:
    """Every setting of an algorithm by name: the run's first, then the algorithm's."""
    both = (*dataclasses.fields(Settings), *dataclasses.fields(CONFIGS[algorithm]))
    return {field.name: field for field in both}


def option_names(algorithm: str) -> set[str]:
    """Everything that `setup` takes for an algorithm: its settings, and what stands for several."""
    return {*fields(algorithm), "preset", "learning_rate"}


def types(algorithm: str) -> dict[str, Any]:
    """The type of every setting by name."""
    return get_type_hints(Settings) | get_type_hints(CONFIGS[algorithm])


def setup(name: str, options: Mapping[str, Any]) -> Setup:
    """Puts options together into a checked set-up.

    Args:
        name: an algorithm (`ddpg`) or experiment (`ddpg_continuous_action`).
        options: settings by field name. Besides the fields there are `preset` (a name under
            `presets/` or a TOML file; explicit options win over it) and `learning_rate` (both step
            sizes; `actor_lr` and `critic_lr` win over it).

    Raises:
        PolyakError: an unknown name (the nearest is named), a wrong type, a value out of range.
    """
    return _assemble(explicit(name, options))


def explicit(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, by field name and in each field's type, without what is left to defaults.

    Takes and raises what `setup` does.
    """
    algorithm, backend = algorithms.parse(name)
    chosen = dict(options)
    preset = chosen.pop("preset", None)
    tuned = read_preset(preset, algorithm) if preset else {}
    merged = _spread_rate(tuned) | _spread_rate(chosen)
    if backend is not None and merged.setdefault("backend", backend) != backend:
        raise PolyakError(f"{name} runs in {backend}, but --backend says {merged['backend']}")
    merged["algorithm"] = algorithm
    if "alpha" in chosen and algorithm == "sac" and merged.get("autotune", True):
        raise PolyakError("--alpha fixes the entropy coefficient: add --no-autotune")
    return checked_types(algorithm, merged, fields(algorithm))


def recorded(values: Mapping[str, Any]) -> Setup:
    """The set-up that `Setup.asdict` gave, checked as if it were typed in.

    Raises:
        PolyakError: it is none.
    """
    algorithm = values.get("algorithm")
    if not isinstance(algorithm, str) or algorithm not in CONFIGS:
        raise PolyakError(f"unknown algorithm {str(algorithm)[:40]!r}")
    return _assemble(checked_types(algorithm, values, fields(algorithm)))


def _assemble(merged: Mapping[str, Any]) -> Setup:
    """Settings with defaults for the rest, checked together."""
    algorithm = merged["algorithm"]
    own = {field.name for field in dataclasses.fields(Settings)}
    settings = Settings(**{k: v for k, v in merged.items() if k in own})
    if not settings.exp_name:
        exp_name = algorithms.experiment_name(algorithm, settings.backend)
        settings = dataclasses.replace(settings, exp_name=exp_name)
    config = CONFIGS[algorithm](**{k: v for k, v in merged.items() if k not in own})
    _check(settings, config)
    return Setup(settings, config)


def checked_types(
    algorithm: str, options: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """The options, each known and of its setting's type.

    Raises:
        PolyakError: one is not.
    """
    hints = types(algorithm)
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PolyakError(f"{algorithm} has no setting {key!r}{hint}")
    return {key: typed(key, value, hints[key]) for key, value in options.items()}


def read_config(algorithm: str, options: Mapping[str, Any]) -> Config:
    """An algorithm's configuration from a file, checked as if it were typed in.

    Raises:
        PolyakError: an unknown name, a wrong type, a value out of range.
    """
    kind = CONFIGS[algorithm]
    known = {field.name: field for field in dataclasses.fields(kind)}
    config = kind(**checked_types(algorithm, dict(options), known))
    _check(Settings(total_timesteps=max(config.learning_starts + 1, 1)), config)
    return config


def _spread_rate(options: dict[str, Any]) -> dict[str, Any]:
    """`learning_rate` as the two rates that it stands for, and which win over it."""
    options = dict(options)
    rate = options.pop("learning_rate", None)
    return options if rate is None else {"actor_lr": rate, "critic_lr": rate} | options


def presets(algorithm: str) -> list[str]:
    """Names of the presets that ship for an algorithm."""
    folder = resources.files("polyak") / "presets" / algorithm
    if not folder.is_dir():
        return []
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name[-5:] == ".toml")


def read_preset(name: str, algorithm: str) -> dict[str, Any]:
    """Settings from a shipped preset or from a TOML file.

    Raises:
        PolyakError: no such preset or file, or not TOML.
    """
    shipped = resources.files("polyak") / "presets" / algorithm / f"{name}.toml"
    try:
        text = shipped.read_text("utf-8") if shipped.is_file() else Path(name).read_text("utf-8")
        return tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(presets(algorithm)) or "none"
        raise PolyakError(
            f"no preset {name!r} for {algorithm} (there is {known}) and no such TOML file"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise PolyakError(f"preset {name} is not valid TOML: {error}") from error


def typed(key: str, value: Any, hint: Any) -> Any:
    """The value if it has its setting's type; whole floats pass as integers, integers as floats."""
    wanted = get_args(hint) or (hint,)
    if float in wanted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in wanted and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Path) and str in wanted:
        return str(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        names = " or ".join(t.__name__ for t in wanted)
        raise PolyakError(f"{key} must be {names}, not {value!r}")
    return value


def _check(settings: Settings, config: Config) -> None:
    """Refuses what could only fail, or learn nothing, after training began."""
    values = dataclasses.asdict(settings) | dataclasses.asdict(config)

    def need(condition: bool, key: str, what: str) -> None:
        if not condition:
            flag = "--" + key.replace("_", "-")
            raise PolyakError(f"{flag} must be {what}, not {values[key]}")

    for key, value in values.items():
        if isinstance(value, float):
            need(math.isfinite(value), key, "a finite number")
    for key in (
        "total_timesteps",
        "num_envs",
        "buffer_size",
        "batch_size",
        "hidden_dim",
        "threads",
    ):
        need(values[key] >= 1, key, "at least 1")
        need(values[key] <= LARGEST, key, f"at most {LARGEST}")
    for key in ("policy_frequency", "target_network_frequency", "log_interval"):
        need(values.get(key, 1) >= 1, key, "at least 1")
    for key in (
        "seed",
        "learning_starts",
        "eval_interval",
        "eval_episodes",
        "checkpoint_interval",
    ):
        need(values[key] >= 0, key, "0 or more")
    for key in ("exploration_noise", "policy_noise", "noise_clip", "alpha"):
        need(values.get(key, 0) >= 0, key, "0 or more")
    need(settings.seed < 2**63, "seed", f"below {2**63}")
    need(settings.threads <= 256, "threads", "at most 256")
    need(settings.num_envs <= 1000, "num_envs", "at most 1000: they are stepped one by one")
    need(config.policy_frequency <= 1000, "policy_frequency", "at most 1000")
    for key in ("actor_lr", "critic_lr"):
        need(values[key] > 0, key, "above 0")
    need(0 <= config.gamma <= 1, "gamma", "between 0 and 1")
    need(0 < config.tau <= 1, "tau", "above 0 and at most 1")
    need(settings.device in ("auto", "cpu", "cuda"), "device", "auto, cpu or cuda")
    need(
        config.learning_starts < settings.total_timesteps,
        "learning_starts",
        f"below --total-timesteps {settings.total_timesteps}, or nothing is learned",
    )
    need(
        config.batch_size <= config.buffer_size,
        "batch_size",
        f"at most --buffer-size {config.buffer_size}",
    )
    need(
        settings.num_envs <= config.buffer_size,
        "num_envs",
        f"at most --buffer-size {config.buffer_size}",
    )
