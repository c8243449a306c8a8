"""The command line: what is accepted, what is refused in one line, and how it ends."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyak
from polyak import cli, settings
from polyak.cli.train_flags import train_parser
from polyak.runs import Run
from tests import toys
from tests.plumbing.running import (
    ALGORITHMS,
    SMALL,
    TWIN,
    Answer,
    flags,
    polyak_cli,
    polyak_process,
    train,
)

SCRIPT = Path(sys.executable).with_name("polyak")


def small(algorithm: str = "ddpg", *more: object, **options: Any) -> Answer:
    """A small training run from the command line."""
    return polyak_cli("train", algorithm, *flags(**(SMALL | options)), *more)


def run_of(answer: Answer) -> Run:
    """The run that a command made."""
    assert answer.code == 0, answer.err
    return Run(Path(answer.out.splitlines()[0].removeprefix("run=")))


def parsed(algorithm: str, *arguments: object) -> dict[str, Any]:
    """All settings that a command line of `polyak train` asks for."""
    given = vars(train_parser(algorithm).parse_args([str(a) for a in arguments]))
    return settings.setup(algorithm, given).asdict()


# What is refused


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "COMMAND"),
        ("dance", "'dance'"),
        ("trian ddpg", "'trian'"),
        ("train dpg", "did you mean ddpg"),
        ("train ppo", "no algorithm 'ppo'"),
        ("train ppo_continuous_action", "no algorithm 'ppo_continuous_action'"),
        ("train ddpg_discrete_action", "no algorithm"),
        ("train DDPG", "did you mean ddpg|choose from ddpg"),
        ("train --env-id Hopper-v5", "name the algorithm first"),
        ("train --preset inverted-pendulum ddpg", "name the algorithm first"),
        ("train ddpg td3", "unknown argument td3"),
        ("train ddpg --total-timestep 5", "did you mean --total-timesteps"),
        ("train ddpg --policy-noise 0.1", "unknown argument --policy-noise"),
        ("train ddpg --autotune False", "unknown argument --autotune"),
        ("train td3 --target-network-frequency 2", "unknown argument --target-network-frequency"),
        ("train sac --exploration-noise 0.1", "unknown argument --exploration-noise"),
        ("train ddpg --lr=1", "unknown argument --lr=1"),
        ("train ddpg -x", "unknown argument -x"),
        ("train ddpg --env-id", "--env-id"),
        ("train ddpg --seed", "--seed"),
        ("train ddpg --seed one", "--seed.*'one'"),
        ("train ddpg --seed 1.5", "--seed.*'1.5'"),
        ("train ddpg --seed -1", "--seed must be 0 or more"),
        ("train ddpg --gamma high", "--gamma.*'high'"),
        ("train ddpg --gamma 1.01", "--gamma must be between 0 and 1"),
        ("train ddpg --gamma nan", "--gamma must be a finite number"),
        ("train ddpg --tau 0", "--tau must be above 0"),
        ("train ddpg --tau 2", "--tau must be above 0 and at most 1"),
        ("train ddpg --learning-rate 0", "must be above 0"),
        ("train ddpg --learning-rate -1", "must be above 0"),
        ("train ddpg --actor-lr inf", "--actor-lr must be a finite number"),
        ("train ddpg --total-timesteps 0", "--total-timesteps must be at least 1"),
        ("train ddpg --total-timesteps -5", "--total-timesteps must be at least 1"),
        ("train ddpg --total-timesteps 1e400", "--total-timesteps"),
        ("train ddpg --total-timesteps nan", "--total-timesteps"),
        ("train ddpg --total-timesteps 10000", "--learning-starts must be below .*10000"),
        ("train ddpg --total-timesteps 9 --learning-starts 9", "--learning-starts must be below"),
        ("train ddpg --learning-starts -1", "--learning-starts must be 0 or more"),
        ("train ddpg --batch-size 0", "--batch-size must be at least 1"),
        ("train ddpg --batch-size 300 --buffer-size 200", "--batch-size must be at most.*200"),
        ("train ddpg --buffer-size 0", "--buffer-size must be at least 1"),
        ("train ddpg --num-envs 0", "--num-envs must be at least 1"),
        ("train ddpg --num-envs 300 --buffer-size 256", "--num-envs must be at most.*256"),
        ("train ddpg --hidden-dim 0", "--hidden-dim must be at least 1"),
        ("train ddpg --policy-frequency 0", "--policy-frequency must be at least 1"),
        ("train sac --target-network-frequency 0", "--target-network-frequency must be at least 1"),
        ("train ddpg --log-interval 0", "--log-interval must be at least 1"),
        ("train ddpg --eval-interval -1", "--eval-interval must be 0 or more"),
        ("train ddpg --eval-episodes -1", "--eval-episodes must be 0 or more"),
        ("train ddpg --exploration-noise -0.1", "--exploration-noise must be 0 or more"),
        ("train td3 --noise-clip -0.1", "--noise-clip must be 0 or more"),
        ("train sac --alpha 0.1", "--no-autotune"),
        ("train sac --alpha -1 --no-autotune", "--alpha must be 0 or more"),
        ("train ddpg --torch-deterministic maybe", "'maybe'"),
        ("train ddpg --save-model please", "'please'"),
        ("train ddpg --device tpu", "--device must be auto, cpu or cuda"),
        ("train ddpg --backend numpy", "no ddpg in numpy"),
        ("train ddpg --env-id Hoper-v5", "did you mean Hopper-v5"),
        ("train ddpg --env-id=", "environment '' has no name"),
        ("train ddpg --env-id toys:", "environment 'toys:' has no name"),
        ("train ddpg --env-id Pusher-v4", "use polyak/Pusher-v4"),
        ("train ddpg --env-id CartPole-v1", "continuous-control task"),
        ("train ddpg --env-id nowhere_at_all:X-v0", "module 'nowhere_at_all'"),
        ("train ddpg --preset sideways", "there is inverted-pendulum"),
        ("train sac --preset inverted-pendulum", "no preset 'inverted-pendulum' for sac"),
        ("train ddpg --preset", "--preset"),
        ("train ddpg --load-path x", "add --skip-train"),
        ("train ddpg --skip-train", "needs --load-path"),
        ("train ddpg --skip-train --load-path nowhere", "no saved agent in nowhere"),
        ("train ddpg --record-path a.avi", "name a .gif or an .mp4 file"),
        ("train ddpg --record-path a", "name a .gif or an .mp4 file"),
        ("train ddpg --record-path a.gif --record-fps 0", "--record-fps"),
        ("train ddpg --record-path a.gif --record-fps 51", "51 frames per second"),
        ("train ddpg --record-path a.gif --record-episodes 0", "--record-episodes"),
        ("train ddpg --record-path a.gif --record-frame-skip 0", "--record-frame-skip"),
        ("evaluate", "path"),
        ("evaluate nowhere", "no saved agent in nowhere"),
        ("evaluate . --episodes 0", "--episodes must be|must be at least 1"),
        ("evaluate . --episodes many", "--episodes.*'many'"),
        ("evaluate . --seed -1", "--seed.*must be 0 or more"),
        ("evaluate . --seeds 1", "did you mean --seed"),
        ("enjoy nowhere", "no saved agent in nowhere"),
        ("enjoy nowhere --record-path a.gif", "no saved agent in nowhere"),
        ("push", "RUN"),
        ("push nowhere", "config.json"),
        ("push nowhere --entitty x", "did you mean --entity"),
        ("report", "runs"),
        ("report nowhere", "no runs in nowhere"),
        ("report . --outptu x", "did you mean --output"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else None,
)
def test_what_a_user_may_get_wrong_is_one_line_before_anything_happens(
    here: Path, arguments: str, reason: str
) -> None:
    answer = polyak_cli(*arguments.split())
    assert re.search(reason, answer.line)
    assert not re.search(r"\b_\w+", answer.line)  # names of our own functions are no help
    assert not answer.out
    assert not list(here.iterdir())


@pytest.mark.parametrize("kind", toys.REFUSED)
def test_spaces_that_cannot_be_used_are_refused_before_training(here: Path, kind: str) -> None:
    answer = small(env_id=toys.spaces_id(kind))
    assert answer.line.startswith(toys.spaces_id(kind))
    assert not list(here.iterdir())


def test_cuda_without_a_gpu_is_refused_and_auto_says_what_it_chose(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = small(device="cuda")
    assert answer.line.startswith("--device cuda: ")
    assert not list(here.iterdir())
    automatic = small(device="auto")
    assert automatic.err.startswith("device: cpu")
    assert run_of(automatic).config["context"]["device"].startswith("device: cpu")


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/nowhere"])
def test_a_runs_folder_that_cannot_be_written(here: Path, folder: str) -> None:
    (here / "file").touch()  # root may write anywhere, but not below a file
    answer = small(runs_dir=folder)
    assert folder in answer.line
    assert "--runs-dir" in answer.line
    assert "File exists" not in answer.line  # that is not what is wrong
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.parametrize("flag", ["--save-path", "--record-path"])
def test_other_places_that_cannot_be_written_are_noticed_before_training(
    here: Path, flag: str
) -> None:
    (here / "file").touch()
    answer = small("ddpg", flag, "file/below/agent.gif")
    assert "file/below/agent.gif" in answer.line
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gamma = ", "mine.toml is not valid TOML"),
        ("gamma = 0.9\ngamma = 0.9", "mine.toml is not valid TOML"),
        ("gama = 0.9", "'gama'; did you mean gamma"),
        ("zzz = 0.9", "no setting 'zzz'"),
        ("policy_noise = 0.9", "no setting 'policy_noise'"),
        ("gamma = 'high'", "gamma must be float, not 'high'"),
        ("gamma = true", "gamma must be float, not True"),
        ("seed = 1.5", "seed must be int, not 1.5"),
        ("seed = [1, 2]", "seed must be int"),
        ("save_model = 1", "save_model must be bool, not 1"),
        ("env_id = 5", "env_id must be str, not 5"),
        ("[ddpg]\ngamma = 0.9", "no setting 'ddpg'"),
        ("preset = 'inverted-pendulum'", "'preset'"),
        ("gamma = 2.0", "--gamma must be between 0 and 1"),
    ],
)
def test_presets_that_do_not_hold(here: Path, text: str, reason: str) -> None:
    (here / "mine.toml").write_text(text)
    answer = polyak_cli("train", "ddpg", "--preset", "mine.toml")
    assert reason in answer.line


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_presets_that_are_none(here: Path, content: bytes | None) -> None:
    path = here / "mine.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    assert "mine.toml" in polyak_cli("train", "ddpg", "--preset", "mine.toml").line


def test_an_agent_of_another_algorithm_or_task_is_refused(
    trained: dict[str, Run], here: Path
) -> None:
    path = trained["td3"].path
    load = ("--skip-train", "--load-path", path)
    assert "trained by td3, not sac" in polyak_cli("train", "sac", *load).line
    answer = polyak_cli("train", "td3", *load, "--env-id", "Hopper-v5")
    assert f"plays {TWIN}, not Hopper-v5" in answer.line
    assert "unknown" in polyak_cli("train", "td3", *load, "--gama", 1).line


def test_a_damaged_agent_is_refused(trained: dict[str, Run], tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text("{}")
    for command in (["evaluate"], ["enjoy"], ["train", "ddpg", "--skip-train", "--load-path"]):
        assert "agent.json" in polyak_cli(*command, tmp_path).line


# What is accepted


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--total-steps", 99999], "total_timesteps", 99999),
        (["--start-steps", 7], "learning_starts", 7),
        (["--policy-lr", 0.5], "actor_lr", 0.5),
        (["--q-lr", 0.5], "critic_lr", 0.5),
        (["--no-cuda"], "device", "cpu"),
        (["--torch-deterministic", "False"], "torch_deterministic", False),
        (["--torch-deterministic", "false"], "torch_deterministic", False),
        (["--torch-deterministic=0"], "torch_deterministic", False),
        (["--no-torch-deterministic"], "torch_deterministic", False),
        (["--torch-deterministic"], "torch_deterministic", True),
        (["--save-model"], "save_model", True),
        (["--save-model", "True"], "save_model", True),
        (["--no-save-model"], "save_model", False),
        (["--total-timesteps", "1e5"], "total_timesteps", 100_000),
        (["--total-timesteps", "1_000_000"], "total_timesteps", 1_000_000),
        (["--learning-starts", "1e4"], "learning_starts", 10_000),
        (["--gamma", "1"], "gamma", 1.0),
        (["--gamma=.5"], "gamma", 0.5),
        (["--seed", 0], "seed", 0),
        (["--seed", 2**62], "seed", 2**62),
        (["--exp-name", "my name"], "exp_name", "my name"),
    ],
)
def test_spellings(arguments: list[object], name: str, value: object) -> None:
    changed, usual = parsed("ddpg", *arguments), parsed("ddpg")
    assert changed[name] == value
    assert type(changed[name]) is type(value)
    assert {key for key in changed if changed[key] != usual[key]} <= {name}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_learning_rate_for_all_unless_one_is_set_apart(algorithm: str) -> None:
    def rates(*arguments: object) -> tuple[float, float]:
        found = parsed(algorithm, *arguments)
        return found["actor_lr"], found["critic_lr"]

    assert rates() == ((3e-4, 1e-3) if algorithm == "sac" else (3e-4, 3e-4))
    assert rates("--learning-rate", 0.1) == (0.1, 0.1)
    assert rates("--learning-rate", 0.1, "--actor-lr", 0.2) == (0.2, 0.1)
    assert rates("--q-lr", 0.3, "--learning-rate", 0.1) == (0.1, 0.3)


def test_the_command_line_wins_over_a_preset_and_a_preset_over_defaults(here: Path) -> None:
    (here / "mine.toml").write_text("gamma = 0.5\nactor_lr = 0.1\nseed = 9\nbatch_size = 2e1\n")
    preset = ("--preset", "mine.toml")
    found = parsed("td3", *preset, "--seed", 3)
    assert (found["gamma"], found["seed"], found["batch_size"]) == (0.5, 3, 20)
    assert parsed("td3", "--seed", 3, *preset) == found
    assert {k for k in found if found[k] != parsed("td3")[k]} == {
        "gamma",
        "actor_lr",
        "seed",
        "batch_size",
    }


def test_a_learning_rate_on_the_command_line_wins_over_the_rates_of_a_preset(here: Path) -> None:
    (here / "mine.toml").write_text("actor_lr = 0.1\ncritic_lr = 0.1\n")
    found = parsed("ddpg", "--preset", "mine.toml", "--learning-rate", 0.5)
    assert (found["actor_lr"], found["critic_lr"]) == (0.5, 0.5)
    found = parsed("ddpg", "--preset", "mine.toml", "--actor-lr", 0.5)
    assert (found["actor_lr"], found["critic_lr"]) == (0.5, 0.1)


def test_presets_that_ship_are_sound() -> None:
    shipped = {(a, p) for a in ALGORITHMS for p in settings.presets(a)}
    assert ("ddpg", "inverted-pendulum") in shipped
    for algorithm, preset in shipped:
        assert parsed(algorithm, "--preset", preset)["env_id"]
    pendulum = parsed("ddpg", "--preset", "inverted-pendulum")
    expected = {
        "env_id": "InvertedPendulum-v5",
        "total_timesteps": 20_000,
        "learning_starts": 1_000,
        "batch_size": 256,
        "buffer_size": 200_000,
        "gamma": 0.99,
        "tau": 0.005,
        "actor_lr": 1e-3,
        "critic_lr": 1e-3,
        "hidden_dim": 256,
        "exploration_noise": 0.1,
        "policy_frequency": 1,
        "seed": 42,
        "eval_interval": 2_000,
        "eval_episodes": 5,
    }
    assert expected.items() <= pendulum.items()


def test_defaults_are_those_of_the_field() -> None:
    common = {
        "env_id": "Hopper-v5",
        "total_timesteps": 1_000_000,
        "buffer_size": 1_000_000,
        "gamma": 0.99,
        "tau": 0.005,
        "batch_size": 256,
        "hidden_dim": 256,
        "num_envs": 1,
        "seed": 1,
        "policy_frequency": 2,
        "eval_interval": 10_000,
        "eval_episodes": 10,
        "torch_deterministic": True,
        "actor_lr": 3e-4,
    }
    own = {
        "ddpg": {"exploration_noise": 0.1, "learning_starts": 25_000, "critic_lr": 3e-4},
        "td3": {
            "exploration_noise": 0.1,
            "learning_starts": 25_000,
            "critic_lr": 3e-4,
            "policy_noise": 0.2,
            "noise_clip": 0.5,
        },
        "sac": {
            "learning_starts": 5_000,
            "critic_lr": 1e-3,
            "target_network_frequency": 1,
            "alpha": 0.2,
            "autotune": True,
        },
    }
    for algorithm in ALGORITHMS:
        assert (common | own[algorithm]).items() <= parsed(algorithm).items()


@pytest.mark.parametrize("folder", ["with space", "ünïcödé 文件", "50% 'of' \"it\""])
def test_paths_of_any_letters(here: Path, folder: str) -> None:
    place = here / folder
    answer = small(runs_dir=place / "runs", save_path=place / "agent", eval_interval=30,
                   eval_episodes=1, exp_name="näme / with: \\ letters")  # fmt: skip
    run = run_of(answer)
    assert run.path.parent == place / "runs"
    assert run.config["exp_name"] == "näme / with: \\ letters"
    evaluated = polyak_cli("evaluate", place / "agent", "--trust-env")
    assert evaluated.code == 0
    assert polyak_cli("report", place, "--output", place / "out").code == 0
    assert (place / "out" / "learning_curve.png").exists()


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_smoke_command_makes_five_updates(
    here: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, save: bool
) -> None:
    module: Any = importlib.import_module(f"polyak.algorithms.{algorithm}_torch")
    update, batches = module.update, []

    def spy(config: Any, state: Any, batch: Any, noise: Any) -> Any:
        batches.append(batch.reward.shape)
        return update(config, state, batch, noise)

    monkeypatch.setattr(module, "update", spy)
    command = (
        f"train {algorithm}_continuous_action --env-id Hopper-v4 --learning-starts 100 "
        "--batch-size 32 --total-timesteps 105"
    )
    answer = polyak_cli(*command.split(), *["--save-model"] * save)
    run = run_of(answer)
    assert batches == [(32,)] * 5
    assert run.path.name.startswith(f"Hopper-v4__{algorithm}_continuous_action__1__")
    assert run.status["state"] == "finished"
    results = json.loads((run.path / "final" / "agent.json").read_text())["results"]
    assert len(results["evaluation"]["returns"]) == 10
    assert ("final" in results) == save
    mean = np.mean(results["evaluation"]["returns"])
    assert answer.out.splitlines() == [f"run={run.path}", f"final_eval_return={mean:.2f}"]


@pytest.mark.parametrize(
    "env_id",
    [
        "Hopper-v5",
        "HalfCheetah-v5",
        "Humanoid-v5",
        "polyak/Pusher-v5",
        "Reacher-v5",
        "Pendulum-v1",
    ],
)
def test_short_runs_on_the_tasks_of_the_field(here: Path, env_id: str) -> None:
    run = run_of(small("sac", env_id=env_id, num_envs=2))
    assert run.status | {"time": 0} == {"state": "finished", "step": 60, "error": "", "time": 0}
    assert [row["step"] for row in run.metrics("losses/qf_loss")] == [30, 40, 50, 60]
    evaluated = polyak_cli("evaluate", run.path, "--episodes", 1)
    assert evaluated.code == 0
    assert [path.name for path in here.iterdir()] == ["runs"]


def test_modules_in_the_working_folder_are_found_only_where_one_was_named(
    trained: dict[str, Run], here: Path
) -> None:
    """Libraries try to import others that may be absent: in the folder of a downloaded agent such
    a file would run unasked."""
    (here / "here_only.py").write_text("")
    for command in (["report", trained["td3"].path], ["evaluate", trained["td3"].path]):
        polyak_cli(*command)
        assert str(here) not in sys.path
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("here_only")


def test_a_working_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert polyak_cli("--help").code == 0
    assert small().line


def test_a_warning_is_one_line(here: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        answer = small(env_id="Pusher-v5", total_timesteps=21)
    assert answer.code == 0
    (line,) = (line for line in answer.err.splitlines() if "warning" in line)
    assert line.startswith("polyak: warning: Pusher-v5 is broken")
    assert line.endswith("polyak/Pusher-v5 has the contact restored")


def test_playing_a_saved_agent_instead_of_training(
    trained: dict[str, Run], here: Path, tmp_path: Path
) -> None:
    run = train(tmp_path, "ddpg", env_id="Pendulum-v1", total_timesteps=21)
    played = polyak_cli("train", "ddpg", "--skip-train", "--load-path", run.path)
    assert played.code == 0
    assert played.out.count("episode=") == 10
    assert not list(here.iterdir())  # no run was made
    assert played.out == polyak_cli("evaluate", run.path).out


def test_help_lists_every_flag_with_its_default(trained: dict[str, Run]) -> None:
    answer = polyak_cli("train", "sac", "--help")
    assert answer.code == 0
    for name, field in settings.fields("sac").items():
        if name != "algorithm":
            assert "--" + name.replace("_", "-") in answer.out
            for alias in field.metadata["aliases"]:
                assert alias in answer.out
    for fact in ("--learning-rate", "--no-cuda", "--preset", "default: 5000", "default: 0.001"):
        assert fact in " ".join(answer.out.split())
    for command in (["--help"], ["train", "--help"], ["evaluate", "--help"], ["report", "--help"]):
        assert polyak_cli(*command).out.startswith("usage: polyak")


# In processes of their own

LIGHT = """
import sys
from polyak import cli
try:
    code = cli.main(sys.argv[1:])
except SystemExit as exit:
    code = exit.code
heavy = {"torch", "jax", "gymnasium", "mujoco", "tensorboardX", "matplotlib", "huggingface_hub"}
print("heavy:", *heavy & set(sys.modules))
"""


@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "train", "train dpg", "train ddpg -h", "push -h"]
)
def test_what_needs_no_library_imports_none(tmp_path: Path, arguments: str) -> None:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *arguments.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines()[-1].strip() == "heavy:"
    assert time.perf_counter() - began < 3  # a fifth of a second when nothing else runs


def into_a_closed_pipe(*arguments: object, cwd: Path) -> tuple[int, str]:
    """Exit code and standard error of the script where nobody reads its output."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [SCRIPT, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=cwd,
        )
    finally:
        os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", ["--help", "train", "train ddpg --help"])
def test_help_into_a_closed_pipe_is_silent(tmp_path: Path, arguments: str) -> None:
    code, err = into_a_closed_pipe(*arguments.split(), cwd=tmp_path)
    assert err == ""
    assert code in (0, 141)


MODULE = """
import gymnasium
from tests.toys import Const
gymnasium.register("Mine-v0", entry_point=Const)
"""


def test_the_script_finds_a_module_in_the_working_folder_and_survives_a_closed_pipe(
    tmp_path: Path,
) -> None:
    """One process for both, since each costs seconds. `python -m` would find the module anyway."""
    (tmp_path / "my_task.py").write_text(MODULE)
    options = SMALL | {"env_id": "my_task:Mine-v0", "runs_dir": tmp_path / "my runs"}
    code, err = into_a_closed_pipe("train", "ddpg", *flags(**options), cwd=tmp_path)
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert "my_task" not in err.replace(str(tmp_path), "").replace("my_task-Mine", "")
    assert code == 141  # what a shell says of a program that a closed pipe ended
    (run,) = (tmp_path / "my runs").iterdir()
    assert Run(run).status["state"] == "finished"


def test_a_closed_standard_error_does_not_stop_training(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # what Python makes of it, under some supervisors
    assert cli.main(["train", "ddpg", *flags(**SMALL)]) == 0
    sys.stderr.close()  # which a process of its own would have kept to its end
    (run,) = (here / "runs").iterdir()
    assert Run(run).status["state"] == "finished"


@pytest.mark.parametrize("end", ["full", "broken"])
def test_a_run_outlives_its_standard_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A log on a full disk, or the end of the program that was reading the progress."""
    if end == "full":
        stream = Path("/dev/full").open("w")  # noqa: SIM115 - closed below
    else:
        reading, writing = os.pipe()
        os.close(reading)
        stream = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    assert cli.main(["train", "ddpg", *flags(**SMALL)]) == 0
    (run,) = (here / "runs").iterdir()
    assert Run(run).status["state"] == "finished"
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.parametrize("arguments", ["train dpg", "dance", "train ddpg --gamma high"])
def test_an_error_in_a_process_is_one_line_and_code_2(tmp_path: Path, arguments: str) -> None:
    assert polyak_process(*arguments.split(), cwd=tmp_path).line
    assert not list(tmp_path.iterdir())


def test_a_save_path_named_like_a_folder_of_the_run(here: Path) -> None:
    run = run_of(small(save_path="best", eval_interval=10))
    assert polyak.load(run.path / "best").info["step"] <= polyak.load(here / "best").info["step"]
    assert polyak.load(here / "best").info["step"] == run.status["step"]


def test_an_agent_that_diverged_at_the_very_end_is_not_kept(here: Path) -> None:
    """Its last update came after the last losses that were looked at; MuJoCo may swallow NaN."""
    answer = small(actor_lr=1e39, policy_frequency=1, eval_interval=0, learning_starts=20,
                   total_timesteps=21)  # fmt: skip
    assert answer.code == 2
    assert "training diverged" in answer.err.splitlines()[-1]
    (run,) = (here / "runs").iterdir()
    assert Run(run).status["state"] == "failed"
    assert Run(run).final_eval_return is None


@pytest.mark.parametrize("flag", ["--record-fps", "--record-episodes", "--record-frame-skip"])
def test_flags_of_a_recording_need_one(here: Path, flag: str) -> None:
    assert f"{flag} needs --record-path" in polyak_cli("train", "ddpg", flag, 3).line
    assert not list(here.iterdir())


def test_trust_is_for_saved_agents(here: Path) -> None:
    assert "--trust-env is for --skip-train" in polyak_cli("train", "ddpg", "--trust-env").line


def test_underscores_and_cuda_as_other_scripts_spell_them(here: Path) -> None:
    chosen = parsed(
        "ddpg", "--env_id", "my_module:Env-v0", "--total_timesteps=50000", "--cuda", "False"
    )
    assert chosen["env_id"] == "my_module:Env-v0"
    assert chosen["total_timesteps"] == 50_000
    assert chosen["device"] == "cpu"


@pytest.mark.parametrize(
    "flag", [("--threads", 10**5), ("--seed", 2**63), ("--policy-frequency", 10**6)]
)
def test_numbers_that_only_a_slip_explains(here: Path, flag: tuple[str, int]) -> None:
    assert flag[0] in polyak_cli("train", "ddpg", *flag).line
