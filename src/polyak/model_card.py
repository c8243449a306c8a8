"""What is published of a run beside its weights: configuration, results, and the model card.

None of it is private: paths, host names and command lines stay here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyak import algorithms, settings
from polyak.version import __version__

PUBLIC_TEXTS = ("algorithm", "backend", "exp_name", "env_id", "device")
"""Settings that are text and no path of the user's. Numbers and switches are public anyway."""

PUBLIC_CONTEXT = ("versions", "processor", "cores", "device", "started")

PROTOCOLS = {
    "final": "noise off, after training",
    "evaluation": "noise off, the last of those during training",
    "exploring": "with exploration noise, after training",
}
"""Evaluations that an agent may hold, the one to be judged by first. See docs/runs.md."""


def published(config: Mapping[str, Any]) -> dict[str, Any]:
    """The public part of a run's config.json.

    What is not known to be public is left out, whatever a later version adds.
    """
    public = {
        key: value
        for key, value in config.items()
        if key in PUBLIC_TEXTS or value is None or isinstance(value, bool | int | float)
    }
    context = config.get("context")
    context = context if isinstance(context, dict) else {}
    public["context"] = {key: context[key] for key in PUBLIC_CONTEXT if key in context}
    git = context.get("git")
    if isinstance(git, dict) and git.get("commit"):
        public["context"]["commit"] = git["commit"]
    return public


def experiment(info: Mapping[str, Any]) -> str:
    """The experiment's name from an agent's description, in which it may be anything."""
    name = info.get("exp_name")
    if isinstance(name, str) and name:
        return name
    return algorithms.experiment_name(info["algorithm"], info["backend"])


def results(info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each of an agent's evaluations with its protocol, mean and standard deviation."""
    return {
        name: {
            "protocol": protocol,
            "mean_return": float(np.mean(info["results"][name]["returns"])),
            "std_return": float(np.std(info["results"][name]["returns"])),
            "episodes": len(info["results"][name]["returns"]),
            **info["results"][name],
        }
        for name, protocol in PROTOCOLS.items()
        if info["results"].get(name, {}).get("returns")
    }


def training_command(config: Mapping[str, Any]) -> list[str]:
    """The command that trains such an agent: every public setting that is not its default."""
    algorithm = config["algorithm"]
    command = ["polyak", "train", algorithm]
    for key, field in settings.fields(algorithm).items():
        value = config.get(key)
        usual = field.default
        if key == "exp_name":
            usual = algorithms.experiment_name(algorithm, config.get("backend", "torch"))
        if key == "algorithm" or key in settings.PLACE or value in (None, usual):
            continue
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    return command


def write(
    repository: str,
    info: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    kind: str,
    replay: str | None,
) -> str:
    """The model card: metadata for the Hub, then Markdown.

    Args:
        repository: `owner/name`, where it will be.
        info: the agent's description, checked by `models.load`.
        config: see `published`.
        kind: `final` or `best`, which of the run's agents this is.
        replay: address of a film, .mp4 or .gif.
    """
    env_id, algorithm = info["env_id"], info["algorithm"].upper()
    found = results(info)
    lines = [
        f"# {algorithm} on {_code(env_id)}",
        "",
        *_film(replay),
        "| | |",
        "|---|---|",
        f"| task | {_code(env_id)} |",
        f"| algorithm | {algorithm}, experiment {_code(experiment(info))} |",
        f"| seed | {info['seed']} |",
        f"| trained for | {_code(info.get('step'))} environment steps |",
    ]
    if kind == "best":
        lines.append("| agent | the one with the best evaluation during training |")
    versions = config["context"].get("versions") or info.get("versions") or {}
    if isinstance(versions, dict):
        text = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"| versions | {_code(text)} |")
    lines += ["", "## Results", "", *_results(found, kind)]
    lines += ["", "## Use", "", *_commands(repository, info)]
    lines += ["", "## Train it again", "", *_block("sh", shlex.join(training_command(config)))]
    return f"---\n{_metadata(repository, info, found)}\n---\n\n" + "\n".join(lines) + "\n"


def _metadata(repository: str, info: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The card's YAML, in the form from which the Hub shows the result."""
    from huggingface_hub import EvalResult, ModelCardData

    env_id = info["env_id"]
    evaluations = [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="reinforcement-learning",
            dataset_type=re.sub(r"[^A-Za-z0-9._/-]+", "-", env_id),
            dataset_name=env_id,
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=f"{result['mean_return']:.2f} +/- {result['std_return']:.2f}",
        )
        for result in list(found.values())[:1]
    ]
    return ModelCardData(
        library_name="polyak",
        pipeline_tag="reinforcement-learning",
        tags=[
            "reinforcement-learning",
            "deep-reinforcement-learning",
            "continuous-control",
            info["algorithm"],
            info["backend"],
            env_id,
        ],
        model_name=repository.partition("/")[2],
        eval_results=evaluations or None,
    ).to_yaml()


def _film(replay: str | None) -> list[str]:
    if replay is None:
        return []
    if replay.endswith(".gif"):
        return [f"![one episode, noise off]({replay})", ""]
    return [f'<video controls autoplay loop muted src="{replay}"></video>', ""]


def _results(found: Mapping[str, Mapping[str, Any]], kind: str) -> list[str]:
    if not found:
        return ["This agent was not evaluated."]
    lines = [
        "| evaluation | mean return | standard deviation | episodes |",
        "|---|---|---|---|",
    ]
    for name, result in found.items():
        protocol = result["protocol"]
        if name == "evaluation" and kind == "best":
            protocol = "noise off, the best of those during training, which flatters it"
        lines.append(
            f"| {protocol} | {result['mean_return']:.2f} | {result['std_return']:.2f} "
            f"| {result['episodes']} |"
        )
    return [*lines, "", "Every seed and return is in `results.json`."]


def _commands(repository: str, info: Mapping[str, Any]) -> list[str]:
    owner = repository.partition("/")[0]
    trust = ["--trust-env"] if ":" in info["env_id"] else []
    named = ["--hf-repository", repository]
    by_name = ["--exp-name", experiment(info), "--env-id", info["env_id"],
               "--seed", str(info["seed"]), "--hf-entity", owner]  # fmt: skip
    commands = [
        ["polyak", "evaluate", *named, *trust],
        ["polyak", "enjoy", *named, *trust, "--record-path", "replay.gif"],
        ["polyak", "enjoy", *by_name, *trust, "--record-path", "replay.gif"],
    ]
    code = (
        "import polyak\n"
        "\n"
        f'agent = polyak.load(polyak.fetch("{repository}"))\n'
        "# agent.act(obs): an observation of the task to an action in the task's own units"
    )
    needs = f"With Polyak {__version__} or newer and its extras `{info['backend']}`, `hub`, `video`"
    also = ["The environment comes from a module of its author: have it, and trust it.", ""]
    return [
        f"{needs} (without `--record-path`, `enjoy` opens a window):",
        "",
        *_block("sh", "\n".join(map(shlex.join, commands))),
        "",
        *(also if trust else []),
        *_block("python", code),
    ]


def _block(language: str, code: str) -> list[str]:
    return [f"```{language}", *code.splitlines(), "```"]


def _code(text: object) -> str:
    """Text of any kind as Markdown code in one line of a table."""
    return f"`{' '.join(re.sub(r'[`|]', ' ', str(text)).split())}`"
