"""The loop and its records: repeatable, counted in environment steps, and honest when it stops."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

import polyak
from polyak import evaluation, models, review, runs, settings, tracking
from polyak.environments import TRAINING, Environment, seeds_for
from polyak.errors import PolyakError
from polyak.evaluation import Evaluation
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
    weights,
)

# The same seed

REPEATABLE = """
import json, sys
from pathlib import Path
from tests.plumbing import test_training
folder = Path(sys.argv[1])
print(json.dumps({case: test_training.repeatable(folder, case, 3) for case in test_training.CASES}))
"""
CASES = (*ALGORITHMS, "sac on MuJoCo")


def repeatable(folder: Path, case: str, seed: int) -> list[str]:
    """Digests of a run's first 100 actions, where a toy tells them, and of its final weights."""
    algorithm, _, mujoco = case.partition(" on ")
    actions: list[np.ndarray] = []
    env_id = "InvertedPendulum-v5" if mujoco else toys.register("Twin", log=actions.append)
    options: dict[str, Any] = {"total_timesteps": 110, "learning_starts": 50, "seed": seed}
    run = train(folder, algorithm, env_id=env_id, **options)
    assert mujoco or len(actions) == 110
    found = (np.array(actions[:100]).tobytes(), weights(run))
    return [hashlib.sha256(data).hexdigest() for data in found]


@pytest.fixture(scope="module")
def other_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a process of its own finds, whose sets and dictionaries hash in another way."""
    done = subprocess.run(
        [sys.executable, "-c", REPEATABLE, str(tmp_path_factory.mktemp("other"))],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_actions_and_weights_in_two_processes(
    tmp_path: Path, other_process: dict[str, list[str]], case: str
) -> None:
    assert repeatable(tmp_path, case, 3) == other_process[case]


def test_another_seed_gives_other_actions_and_weights(
    tmp_path: Path, other_process: dict[str, list[str]]
) -> None:
    for algorithm in ALGORITHMS:
        assert not set(repeatable(tmp_path, algorithm, 4)) & set(other_process[algorithm])


@pytest.fixture(scope="module")
def usual_weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {name: weights(train(tmp_path_factory.mktemp(name), name)) for name in ALGORITHMS}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "options",
    [
        {"eval_interval": 17, "eval_episodes": 2},
        {"save_model": True},
        {"log_interval": 1, "eval_interval": 20, "eval_episodes": 1},
    ],
    ids=lambda options: "-".join(options),
)
def test_watching_changes_nothing(
    tmp_path: Path, usual_weights: dict[str, bytes], algorithm: str, options: Any
) -> None:
    assert weights(train(tmp_path, algorithm, **options)) == usual_weights[algorithm]


def test_watching_changes_nothing_on_mujoco(tmp_path: Path) -> None:
    task = "InvertedPendulum-v5"
    watched = train(tmp_path, env_id=task, eval_interval=10, eval_episodes=2)
    assert weights(watched) == weights(train(tmp_path, env_id=task))


def test_twins_learn_the_same_whatever_the_unit_of_the_action(tmp_path: Path) -> None:
    boxes = [(1.0, 0.0), (0.4, 0.0), (2.0, 3.0)]
    twins = [toys.register("Twin", scale=scale, shift=shift) for scale, shift in boxes]
    assert len({weights(train(tmp_path, "sac", env_id=twin)) for twin in twins}) == 1


# Every setting is recorded and does something

OTHER: dict[str, Any] = {
    "exp_name": "mine",
    "env_id": "toys/One-v0",
    "total_timesteps": 5,
    "num_envs": 2,
    "seed": 7,
    "device": "cpu",
    "threads": 2,
    "torch_deterministic": False,
    "log_interval": 3,
    "eval_interval": 2,
    "eval_episodes": 1,
    "capture_video": True,
    "track": True,
    "wandb_project_name": "elsewhere",
    "wandb_entity": "somebody",
    "wandb_group": "a group",
    "save_model": True,
    "checkpoint_interval": 2,
    "keep_checkpoint": False,
    "save_path": "kept",
    "runs_dir": "elsewhere",
    "tags": "a,b",
    "actor_lr": 1e-2,
    "critic_lr": 1e-2,
    "buffer_size": 1000,
    "batch_size": 3,
    "learning_starts": 1,
    "gamma": 0.5,
    "tau": 0.5,
    "hidden_dim": 3,
    "policy_frequency": 3,
    "exploration_noise": 0.5,
    "policy_noise": 0.5,
    "noise_clip": 0.01,
    "target_network_frequency": 3,
    "autotune": False,
    "alpha": 0.7,
}
"""For every setting a value that is not its default."""

TINY = {
    "env_id": TWIN,
    "total_timesteps": 3,
    "learning_starts": 2,
    "batch_size": 2,
    "hidden_dim": 2,
    "eval_interval": 0,
}
SETTINGS = [
    (algorithm, name)
    for algorithm in ALGORITHMS
    for name in settings.fields(algorithm)
    if name not in ("algorithm", "backend")  # which the command itself names
]


def recorded(algorithm: str, **options: Any) -> dict[str, Any]:
    """What config.json holds of a run that the command line started."""
    answer = polyak_cli("train", algorithm, *flags(**(TINY | options)))
    assert answer.code == 0, answer.err
    config = Run(Path(answer.out.splitlines()[0].removeprefix("run="))).config
    del config["context"]
    return config


@pytest.fixture(scope="module")
def usual_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("usual"))
        return {algorithm: recorded(algorithm) for algorithm in ALGORITHMS}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_setting_is_in_the_configuration(
    usual_settings: dict[str, dict[str, Any]], algorithm: str
) -> None:
    expected = {name: field.default for name, field in settings.fields(algorithm).items()}
    expected |= TINY | {"algorithm": algorithm, "exp_name": f"{algorithm}_continuous_action"}
    assert usual_settings[algorithm] == expected


@pytest.mark.parametrize(("algorithm", "name"), SETTINGS)
def test_every_flag_changes_the_recorded_configuration(
    here: Path, usual_settings: dict[str, dict[str, Any]], algorithm: str, name: str
) -> None:
    before = usual_settings[algorithm]
    assert OTHER[name] != before[name]
    # A fixed alpha is asked for by both flags together.
    more = {"autotune": False} if name == "alpha" else {}
    changed = recorded(algorithm, **{name: OTHER[name]} | more)
    differing = {key for key in changed if changed[key] != before[key]}
    assert differing == {name, *more}
    assert changed[name] == OTHER[name]


def test_a_recorded_configuration_says_how_the_run_came_about(trained: dict[str, Run]) -> None:
    context = trained["sac"].config["context"]
    assert {"python", "numpy", "torch", "gymnasium", "mujoco", "polyak"} <= set(context["versions"])
    assert context["command"] == sys.argv
    assert context["cores"] == os.cpu_count()
    assert trained["sac"].config["threads"] == 1
    assert context["device"] == "device: cpu, threads: 1"


MATTERING: dict[str, dict[str, Any]] = {
    "common": {
        "seed": 7,
        "actor_lr": 1e-2,
        "critic_lr": 1e-2,
        "buffer_size": 20,
        "batch_size": 9,
        "learning_starts": 21,
        "gamma": 0.5,
        "tau": 0.5,
        "hidden_dim": 9,
        "policy_frequency": 3,
        "num_envs": 2,
        "total_timesteps": 36,
    },
    "ddpg": {"exploration_noise": 0.3},
    "td3": {"exploration_noise": 0.3, "policy_noise": 0.4, "noise_clip": 0.05},
    "sac": {"target_network_frequency": 2, "autotune": False},
}


# Fifteen updates tell any two settings apart.
BRIEF = {"total_timesteps": 35}


@pytest.fixture(scope="module")
def brief_weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("brief")
    return {name: weights(train(folder, name, **BRIEF)) for name in ALGORITHMS}


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [(a, n, v) for a in ALGORITHMS for n, v in (MATTERING["common"] | MATTERING[a]).items()],
)
def test_every_setting_of_an_algorithm_changes_what_it_learns(
    tmp_path: Path, brief_weights: dict[str, bytes], algorithm: str, name: str, value: Any
) -> None:
    assert weights(train(tmp_path, algorithm, **BRIEF | {name: value})) != brief_weights[algorithm]


def test_a_fixed_alpha_changes_what_sac_learns(tmp_path: Path) -> None:
    fixed = [weights(train(tmp_path, "sac", autotune=False, alpha=a)) for a in (0.2, 0.7)]
    assert fixed[0] != fixed[1]


def test_no_setting_is_left_out_above() -> None:
    for algorithm in ALGORITHMS:
        own = set(settings.fields(algorithm)) - set(vars(settings.Settings()))
        assert own - {"alpha"} <= set(MATTERING["common"]) | set(MATTERING[algorithm])
        assert set(settings.fields(algorithm)) - {"algorithm", "backend"} <= set(OTHER)


# Counts


class Updates:
    """How often the algorithm was updated, and when its actor was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
        self.critic, self.actor = 0, 0
        self.metrics: list[dict[str, float]] = []
        module: Any = importlib.import_module(f"polyak.algorithms.{algorithm}_torch")
        update = module.update

        def count(*args: Any, **kwargs: Any) -> Any:
            state, metrics = update(*args, **kwargs)
            self.critic += 1
            self.actor += "losses/actor_loss" in metrics
            self.metrics.append({name: float(value) for name, value in metrics.items()})
            return state, metrics

        monkeypatch.setattr(module, "update", count)


@pytest.mark.parametrize("learning_starts", [0, 20, 21])
@pytest.mark.parametrize("num_envs", [1, 3, 4])
def test_totals_and_updates_are_counted_in_environment_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_envs: int, learning_starts: int
) -> None:
    updates = Updates(monkeypatch, "td3")
    played: list[np.ndarray] = []
    env_id = toys.register("Twin", log=played.append)
    options = {"num_envs": num_envs, "learning_starts": learning_starts, "total_timesteps": 60}
    run = train(tmp_path, "td3", env_id=env_id, **options)
    assert len(played) == 60
    assert run.status["step"] == 60
    assert updates.critic == 60 - learning_starts
    assert updates.actor == (60 - learning_starts) // 2


def test_a_total_that_is_no_multiple_of_the_environments_is_rounded_up(tmp_path: Path) -> None:
    played: list[np.ndarray] = []
    env_id = toys.register("Twin", log=played.append)
    run = train(tmp_path, env_id=env_id, num_envs=4, total_timesteps=50)
    assert len(played) == run.status["step"] == 52
    assert runs.read_json(run.path / "final" / "agent.json")["step"] == 52
    played.clear()
    assert train(tmp_path, env_id=env_id, num_envs=64, total_timesteps=50).status["step"] == 64


@pytest.mark.parametrize("num_envs", [1, 3, 4])
def test_intervals_are_environment_steps(tmp_path: Path, num_envs: int) -> None:
    options = {"eval_interval": 20, "eval_episodes": 1, "log_interval": 10}
    run = train(tmp_path, num_envs=num_envs, total_timesteps=120, **options)
    # The first round of all environments that reaches a multiple.
    due = [-(-step // num_envs) * num_envs for step in range(0, 121, 20)]
    assert [row["step"] for row in run.metrics("eval/episodic_return")] == due
    due = [-(-step // num_envs) * num_envs for step in range(20, 121, 10)]
    learning = [step for step in due if step > 20]
    assert [row["step"] for row in run.metrics("losses/qf_loss")] == learning


def test_an_evaluation_is_where_the_run_ends_even_between_intervals(tmp_path: Path) -> None:
    run = train(tmp_path, eval_interval=25, eval_episodes=1)
    assert [row["step"] for row in run.metrics("eval/episodic_return")] == [0, 25, 50, 60]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_actor_loss_is_written_only_where_the_actor_was_updated(
    tmp_path: Path, algorithm: str
) -> None:
    run = train(tmp_path, algorithm, policy_frequency=7, log_interval=1)
    assert [row["step"] for row in run.metrics("losses/qf_loss")] == list(range(21, 61))
    assert [row["step"] for row in run.metrics("losses/actor_loss")] == [27, 34, 41, 48, 55]


def test_losses_are_those_of_the_newest_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = Updates(monkeypatch, "sac")
    run = train(tmp_path, "sac", policy_frequency=3)
    rows = run.metrics("losses/qf_loss")
    assert [row["step"] for row in rows] == [30, 40, 50, 60]
    for row in rows:
        made = updates.metrics[: row["step"] - 20]  # the actor's are from up to two updates before
        newest = {name: value for metrics in made for name, value in metrics.items()}
        losses = {name: value for name, value in row.items() if name.startswith("losses/")}
        assert losses == newest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_losses_are_named_as_documented(trained: dict[str, Run], algorithm: str) -> None:
    found = {name for row in trained[algorithm].metrics() for name in row if "losses/" in name}
    expected = {"qf1_loss", "qf_loss", "qf1_values", "actor_loss"}
    if algorithm != "ddpg":
        expected |= {"qf2_loss", "qf2_values"}
    if algorithm == "sac":
        expected |= {"alpha", "alpha_loss"}
    assert found == {f"losses/{name}" for name in expected}
    row = trained[algorithm].metrics("losses/qf_loss")[-1]
    each = [row[f"losses/qf{i}_loss"] for i in (1, 2) if f"losses/qf{i}_loss" in row]
    assert row["losses/qf_loss"] == pytest.approx(np.mean(each), rel=1e-5)


def test_a_run_shorter_than_the_log_interval_still_records_its_losses(tmp_path: Path) -> None:
    run = train(tmp_path, log_interval=1000)
    assert [row["step"] for row in run.metrics("losses/qf_loss")] == [60]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_one_row_for_every_finished_episode_at_its_own_step(tmp_path: Path, num_envs: int) -> None:
    env_id = toys.register("Counter", length=5)
    run = train(tmp_path, env_id=env_id, num_envs=num_envs)
    # All environments end in the same round, each at the step that it takes in that round.
    ends = [
        5 * num_envs * k + i + 1 - num_envs
        for k in range(1, 60 // (5 * num_envs) + 1)
        for i in range(num_envs)
    ]
    rows = run.metrics("charts/episodic_return")
    assert [row["step"] for row in rows] == ends
    assert {row["charts/episodic_return"] for row in rows} == {0 + 1 + 2 + 3 + 4}
    assert {row["charts/episodic_length"] for row in rows} == {5}


def test_nothing_is_said_of_episodes_before_the_first_has_ended(tmp_path: Path) -> None:
    run = train(tmp_path, env_id=toys.register("Const", length=61))
    assert not run.metrics("charts/episodic_return")
    run = train(tmp_path, env_id=toys.register("Const", length=50))
    assert [row["step"] for row in run.metrics("charts/episodic_return")] == [50]


def test_rows_are_in_order_and_say_something(trained: dict[str, Run]) -> None:
    for run in trained.values():
        rows = run.metrics()
        assert all(a["step"] <= b["step"] for a, b in pairwise(rows))
        assert all(a["time"] <= b["time"] for a, b in pairwise(rows))
        assert all(len(row) > 2 for row in rows)  # beside the step and the time


# Speed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The tracker's clock stands still, except where a test moves it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        tracking, "time", SimpleNamespace(perf_counter=lambda: clock.now, time=lambda: 0.0)
    )
    return clock


def test_speed_counts_neither_evaluation_nor_start_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    def pass_time(action: np.ndarray) -> None:
        clock.now += 0.01

    def slow(*args: Any) -> Evaluation:
        clock.now += 1000.0
        return evaluation.evaluate(*args)

    monkeypatch.setattr(review, "evaluate", slow)
    env_id = toys.register("Twin", log=pass_time)
    run = train(tmp_path, env_id=env_id, eval_interval=15, eval_episodes=2)
    rows = run.metrics("charts/SPS")
    assert [row["step"] for row in rows] == [20, 30, 40, 50, 60]
    for row in rows:
        assert row["charts/SPS"] == pytest.approx(100.0, rel=1e-6)
    learning = run.metrics("charts/SPS_learning")
    # From the second row after the first update: what compiles has compiled.
    assert [row["step"] for row in learning] == [40, 50, 60]
    for row in learning:
        assert row["charts/SPS_learning"] == pytest.approx(100.0, rel=1e-6)
    # The time of a row is that of the clock on the wall, evaluations included.
    assert run.metrics()[-1]["time"] > 5000


def test_a_slow_warm_up_is_not_mixed_into_the_speed_of_learning(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    played = 0

    def pass_time(action: np.ndarray) -> None:
        nonlocal played
        played += 1
        clock.now += 10.0 if played <= 20 else 0.01

    run = train(tmp_path, env_id=toys.register("Twin", log=pass_time))
    speeds = {row["step"]: row["charts/SPS"] for row in run.metrics("charts/SPS")}
    assert speeds[20] == pytest.approx(0.1)
    assert speeds[40] == pytest.approx(100.0)
    for row in run.metrics("charts/SPS_learning"):
        assert row["charts/SPS_learning"] == pytest.approx(100.0)


# Evaluation and saved agents


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_evaluation_begins_before_the_first_step(trained: dict[str, Run], algorithm: str) -> None:
    first = trained[algorithm].metrics()[0]
    assert first["step"] == 0
    assert "eval/episodic_return" in first
    assert 0 < first["eval/episodic_length"] <= 20


def test_no_evaluation_when_it_is_off(tmp_path: Path) -> None:
    for options in ({"eval_interval": 0}, {"eval_interval": 10, "eval_episodes": 0}):
        run = train(tmp_path, **options)
        assert not run.metrics("eval/episodic_return")
        assert run.final_eval_return is None
        assert not (run.path / "best").exists()
        assert (run.path / "final" / "agent.json").exists()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_best_and_the_final_agent_are_kept(trained: dict[str, Run], algorithm: str) -> None:
    run = trained[algorithm]
    curve = {
        row["step"]: row["eval/episodic_return"] for row in run.metrics("eval/episodic_return")
    }
    best, final = (runs.read_json(run.path / name / "agent.json") for name in ("best", "final"))
    assert best["step"] == max(curve, key=lambda step: curve[step])
    assert np.mean(best["results"]["evaluation"]["returns"]) == max(curve.values())
    assert final["step"] == 60
    assert np.mean(final["results"]["evaluation"]["returns"]) == curve[60] == run.final_eval_return
    (last,) = run.metrics("eval/final_return")
    assert last["eval/final_return"] == np.mean(final["results"]["final"]["returns"])
    assert last["eval/final_return_exploring"] == np.mean(final["results"]["exploring"]["returns"])
    assert len(final["results"]["final"]["returns"]) == 10
    assert final["results"]["final"]["returns"] != final["results"]["exploring"]["returns"]


def test_the_best_is_the_first_of_equals(tmp_path: Path) -> None:
    run = train(tmp_path, env_id="toys/Const-v0", eval_interval=20, eval_episodes=1)
    assert runs.read_json(run.path / "best" / "agent.json")["step"] == 0


@pytest.mark.parametrize("which", ["best", "final"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_saved_agent_repeats_its_evaluation_bit_for_bit(
    trained: dict[str, Run], algorithm: str, which: str
) -> None:
    path = trained[algorithm].path / which
    agent = polyak.load(path)
    recorded = agent.info["results"]["evaluation"]
    again = evaluation.evaluate(agent.policy(), Environment(TWIN), recorded["seeds"])
    assert again.returns == recorded["returns"]
    assert again.lengths == recorded["lengths"]
    # From a notebook and by the command the same episodes, without being told which.
    assert polyak.evaluate(path, trust_env=True) == again
    answer = polyak_cli("evaluate", path, "--trust-env")
    assert answer.code == 0
    *episodes, summary = answer.out.splitlines()
    said = [dict(pair.split("=") for pair in line.split()) for line in episodes]
    assert [int(row["seed"]) for row in said] == recorded["seeds"]
    assert [int(row["length"]) for row in said] == recorded["lengths"]
    assert [float(row["return"]) for row in said] == pytest.approx(recorded["returns"], rel=1e-5)
    assert summary.startswith(f"eval_return={np.mean(recorded['returns']):.2f} ")


def test_an_evaluation_without_seeds_of_its_own_makes_some(tmp_path: Path) -> None:
    run = train(tmp_path, seed=11)
    asked: list[list[Any]] = [
        [],
        ["--episodes", 3],
        ["--seed", 11, "--episodes", 3],
        ["--seed", 12],
    ]
    answers = [polyak_cli("evaluate", run.path, "--trust-env", *more) for more in asked]
    assert [answer.out.count("episode=") for answer in answers] == [10, 3, 3, 10]
    first = [line.split()[1] for line in answers[0].out.splitlines()[:3]]
    assert [line.split()[1] for line in answers[1].out.splitlines()[:3]] == first
    assert [line.split()[1] for line in answers[2].out.splitlines()[:3]] == first
    assert not set(first) & {line.split()[1] for line in answers[3].out.splitlines()[:-1]}


# Status


def test_status_while_running_and_after(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(action: np.ndarray) -> None:
        (run,) = tmp_path.iterdir()
        seen.append(Run(run).status["state"])

    run = train(tmp_path, env_id=toys.register("Twin", log=look))
    assert seen == ["running"] * 60
    assert run.status | {"time": 0} == {"state": "finished", "step": 60, "error": "", "time": 0}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_poison_fails_the_run_and_leaves_the_best_agent(tmp_path: Path, num_envs: int) -> None:
    training_seed = seeds_for(1, TRAINING, 1)[0]  # evaluation goes on
    env_id = toys.register("Poison", k=15, field="reward", seed=training_seed)
    with pytest.raises(PolyakError, match=r"reward is nan at step (\d+) in environment 0"):
        train(tmp_path, env_id=env_id, num_envs=num_envs, eval_interval=5, eval_episodes=1)
    (path,) = tmp_path.iterdir()
    run = Run(path)
    step = 14 * num_envs + 1
    assert run.status["state"] == "failed"
    assert run.status["step"] in (step - 1, step)
    assert f"reward is nan at step {step} in environment 0" in run.status["error"]
    assert polyak.load(path).act(np.ones(3, np.float32)).shape == (1,)


def test_poison_in_an_evaluation_blames_the_task(tmp_path: Path) -> None:
    # And not the learning rate: nothing has been learned yet.
    env_id = toys.register("Poison", k=2, field="reward")
    with pytest.raises(PolyakError, match="reward is nan"):
        train(tmp_path, env_id=env_id, eval_interval=50, eval_episodes=1)


class Breaking(toys.Const):
    """Raises at its thirtieth step."""

    def move(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        if self.steps == 30:
            raise ZeroDivisionError("the robot\nfell over")
        return super().move(action)


def test_an_environment_that_breaks_fails_the_run(tmp_path: Path) -> None:
    gymnasium.register("toys/Breaking-v0", entry_point=Breaking)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, env_id="toys/Breaking-v0")
    (path,) = tmp_path.iterdir()
    status = Run(path).status
    assert status["state"] == "failed"
    assert "ZeroDivisionError" in status["error"]
    assert "\n" not in status["error"]


def test_divergence_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(PolyakError, match=r"diverged: .* lower --learning-rate"):
        train(tmp_path, learning_rate=1e30)
    (path,) = tmp_path.iterdir()
    assert Run(path).status["state"] == "failed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_disk_that_is_full_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = runs.create

    def with_a_full_file(*args: Any) -> Run:
        run = create(*args)
        (run.path / "metrics.jsonl").symlink_to("/dev/full")
        return run

    monkeypatch.setattr(runs, "create", with_a_full_file)
    with pytest.raises(PolyakError, match=r"cannot write .*metrics\.jsonl: No space left"):
        train(tmp_path, eval_interval=20, eval_episodes=1)
    (path,) = tmp_path.iterdir()
    assert Run(path).status["state"] == "failed"


FULL = """
import resource, sys
from polyak.cli import main
# Like a full disk, but of this process alone: no file grows beyond 16 kB.
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_fills_up_ends_the_run_in_one_line(tmp_path: Path) -> None:
    options = SMALL | {"total_timesteps": 2000, "log_interval": 2, "eval_interval": 20}
    options |= {"eval_episodes": 1, "runs_dir": tmp_path / "runs"}
    done = subprocess.run(
        [sys.executable, "-c", FULL, "train", "ddpg", *flags(**options)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(own_lines(done.stderr)) == 1
    (path,) = (tmp_path / "runs").iterdir()
    assert Run(path).status["state"] == "failed"
    assert polyak.load(path).info["step"] < 2000


def own_lines(err: str) -> list[str]:
    """The lines that Polyak itself wrote at the end, without the progress."""
    lines = [line.rpartition("\r")[2] for line in err.splitlines()]
    return [line for line in lines if line.startswith("polyak: ")]


def test_a_failing_tensorboard_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def write_event(self, *args: Any) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracking, "EventsWriter", Failing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may, and should, say so
        run = train(tmp_path)
    assert run.status["state"] == "finished"
    assert run.metrics("losses/qf_loss")


# Signals

INTERRUPTING = """
import os, signal
import gymnasium
from polyak.environments import TRAINING, seeds_for
from tests import toys

class Interrupting(toys.Twin):
    def __init__(self, number, **kwargs):
        super().__init__(**kwargs)
        self.number = number

    def move(self, action):
        if self.steps == 45 and self.seed == seeds_for(1, TRAINING, 1)[0]:
            os.kill(os.getpid(), self.number)
        return super().move(action)

for name in ("SIGINT", "SIGTERM"):
    number = getattr(signal, name)
    gymnasium.register(f"{name}-v0", entry_point=Interrupting, kwargs={"number": number})
"""


@pytest.fixture(scope="module")
def interrupted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Answer, Path]]]:
    """Runs that a signal ended at their 45th step, by the signal's name.

    SIGTERM in a process of its own: unhandled, it would end the tests as well.
    """
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "interrupting.py").write_text(INTERRUPTING)
    answers = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for name in ("SIGINT", "SIGTERM"):
            options = SMALL | {"env_id": f"interrupting:{name}-v0", "eval_interval": 20}
            options |= {"eval_episodes": 1, "runs_dir": folder / name}
            command = ["train", "ddpg", *flags(**options)]
            try:
                answer = (
                    polyak_cli(*command)
                    if name == "SIGINT"
                    else polyak_process(*command, cwd=folder)
                )
            except KeyboardInterrupt:
                answer = Answer(-1, "", "the interrupt was not handled")
            (run,) = (folder / name).iterdir()
            answers[name] = (answer, run)
        yield answers


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_run_in_one_line(
    interrupted: dict[str, tuple[Answer, Path]], name: str
) -> None:
    answer, path = interrupted[name]
    assert answer.code == 130
    (line,) = own_lines(answer.err)
    command = f"polyak train --resume {path} --trust-env"
    assert line == f"polyak: interrupted at step 45; go on with: {command}"
    assert "Traceback" not in answer.err
    status = Run(path).status
    assert status["state"] == "interrupted"
    assert status["step"] in (44, 45)  # docs/runs.md: steps taken when it was written


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_a_signal_leaves_can_be_loaded_and_evaluated(
    interrupted: dict[str, tuple[Answer, Path]], name: str
) -> None:
    _, path = interrupted[name]
    assert polyak.load(path).info["step"] in (0, 20, 40)
    assert [row["step"] for row in Run(path).metrics("eval/episodic_return")] == [0, 20, 40]
    evaluated = polyak_cli("evaluate", path, "--trust-env", "--episodes", 1)
    assert evaluated.code == 0


# Folders


def test_two_runs_in_one_second_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyak.runs.time.time", lambda: 1234567890.5)
    paths = [train(tmp_path, seed=9).path for _ in range(3)]
    assert len(set(paths)) == 3
    assert all(path.name.startswith("tests.toys-toys-Twin-v0__ddpg") for path in paths)
    assert all("__9__1234567890" in path.name for path in paths)
    assert all(Run(path).status["state"] == "finished" for path in paths)


def test_what_cannot_be_used_leaves_nothing_behind(here: Path) -> None:
    for options in (
        {"env_id": toys.spaces_id("Infinite")},
        {"env_id": "Nowhere-v0"},
        {"learning_starts": 60},
        {"hidden_dim": 0},
        {"save_path": "/dev/null/agent"},
    ):
        with pytest.raises(PolyakError):
            train(here / "runs", **options)
        assert not (here / "runs").exists(), options


# TensorBoard


def scalars(path: Path) -> list[tuple[str, int, float]]:
    """Name, step and value of every scalar in an events file: length, CRC, event, CRC, ..."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found += [
            (value.tag, event.step, value.simple_value)
            for value in event.summary.value
            if value.HasField("simple_value")
        ]
        data = data[16 + length :]
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tensorboard_and_json_lines_agree(trained: dict[str, Run], algorithm: str) -> None:
    run = trained[algorithm]
    (events,) = run.path.glob("events.out.tfevents.*")
    lines = [
        (name, row["step"], float(np.float32(value)))  # TensorBoard keeps single precision
        for row in run.metrics()
        for name, value in row.items()
        if name not in ("step", "time")
    ]
    assert scalars(events) == lines
    assert len({name for name, *_ in lines}) > 10


def test_a_row_cut_off_by_a_crash_is_no_row(tmp_path: Path) -> None:
    run = train(tmp_path)
    rows = run.metrics()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "losses/qf_lo')
    assert run.metrics() == rows


# From Python


def test_a_notebook_gets_what_the_command_line_gets(trained: dict[str, Run]) -> None:
    run = trained["ddpg"]
    agent = polyak.load(run.path)
    assert agent.act(np.zeros(4, np.float32)).shape == (2,)
    assert {"train", "load", "Run", "Agent", "PolyakError"} <= set(polyak.__all__)
    for name in polyak.__all__:
        assert getattr(polyak, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = polyak.nothing_of_ours
    assert models.find(run.path) == run.path / "final"
