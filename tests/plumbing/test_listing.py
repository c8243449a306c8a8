"""`polyak runs`: every run is listed with what it is, filtered, and compared by its settings."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from polyak.runs import Run
from tests.plumbing.running import ALGORITHMS, TWIN, polyak_cli, train

HEAD = ["task", "algorithm", "backend", "seed", "state", "steps", "best_return", "run"]


def listed(*arguments: object) -> list[list[str]]:
    """The cells of every line but the headings."""
    answer = polyak_cli("runs", *arguments)
    assert answer.code == 0, answer.err
    head, *rows = (line.split() for line in answer.out.splitlines())
    assert head[-1] == "run"
    assert answer.err == f"{len(rows)} runs\n"
    return rows


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all states: finished, interrupted, and one whose status is damaged."""
    folder = tmp_path_factory.mktemp("several")
    for seed, gamma in ((1, 0.9), (2, 0.9), (3, 0.8)):
        run = train(folder, "td3", seed=seed, gamma=gamma, eval_interval=30, eval_episodes=1)
        if seed == 2:
            run.write_status("interrupted", 40)
        if seed == 3:
            (run.path / "status.json").write_text("{")
    train(folder, "sac", env_id="toys/Const-v0")
    return folder


def test_a_run_is_listed_with_what_it_is(trained: dict[str, Run]) -> None:
    rows = listed(trained["ddpg"].path.parent)
    assert len(rows) == len(ALGORITHMS)
    for row in rows:
        run = trained[row[1]]
        best = f"{run.best_eval_return:.2f}"
        assert row == [TWIN, row[1], "torch", "1", "finished", "60/60", best, str(run.path)]
        evaluations = [r["eval/episodic_return"] for r in run.metrics("eval/episodic_return")]
        assert run.best_eval_return == pytest.approx(max(evaluations))


def test_states_steps_and_runs_without_evaluation(several: Path) -> None:
    found = {(row[1], row[3]): row[4:7] for row in listed(several)}
    assert found["td3", "1"][:2] == ["finished", "60/60"]
    assert found["td3", "2"][:2] == ["interrupted", "40/60"]
    assert found["td3", "3"][:2] == ["unreadable", "0/60"]
    assert found["sac", "1"] == ["finished", "60/60", "-"]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ([], 4),
        (["--algorithm", "td3"], 3),
        (["--algorithm", "td3", "--seed", "2"], 1),
        (["--seed", "1"], 2),
        (["--state", "finished"], 2),
        (["--state", "unreadable"], 1),
        (["--env-id", "toys/*"], 1),
        (["--env-id", "*/Twin-v0", "--state", "*ed"], 2),
        (["--env_id", "twin*"], 0),
        (["--exp-name", "sac_continuous_action"], 1),
        (["--backend", "torch"], 4),
        (["--backend", "jax"], 0),
    ],
)
def test_filters(several: Path, filters: list[str], count: int) -> None:
    assert len(listed(several, *filters)) == count


def test_comparing_shows_the_settings_that_differ_and_no_others(several: Path) -> None:
    out = polyak_cli("runs", several, "--algorithm", "td3", "--compare").out
    head, *rows = (line.split() for line in out.splitlines())
    assert head == ["seed", "gamma", "best_return", "run"]
    assert [row[:2] for row in rows] == [["1", "0.9"], ["2", "0.9"], ["3", "0.8"]]
    # Settings that one of the algorithms lacks differ, too.
    head, *rows = (
        line.split() for line in polyak_cli("runs", several, "--compare").out.splitlines()
    )
    assert {"algorithm", "env_id", "alpha", "policy_noise", "eval_interval"} <= set(head)
    assert {row[head.index("alpha")] for row in rows} == {"-", "0.2"}
    out = polyak_cli("runs", several, "--seed", 2, "--compare").out
    assert out.splitlines()[0].split() == ["best_return", "run"]


def test_the_runs_of_this_folder_by_default(here: Path, trained: dict[str, Run]) -> None:
    shutil.copytree(trained["sac"].path, here / "runs" / "one")
    (row,) = listed()
    assert row[-1] == "runs/one"
    assert polyak_cli("runs", "nowhere").line == (
        "no runs in nowhere: give run folders or folders of them"
    )
    assert "did you mean --compare" in polyak_cli("runs", "--compar3").line


def test_a_thousand_runs_are_listed_quickly(tmp_path: Path, trained: dict[str, Run]) -> None:
    source = trained["td3"].path
    config = json.loads((source / "config.json").read_text())
    status = (source / "status.json").read_text()
    agent = (source / "best" / "agent.json").read_text()
    for seed in range(1000):
        run = tmp_path / f"run-{seed}"
        (run / "best").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps(config | {"seed": seed}))
        (run / "status.json").write_text(status)
        (run / "best" / "agent.json").write_text(agent)
    began = time.process_time()
    assert len(listed(tmp_path, "--state", "finished")) == 1000
    assert time.process_time() - began < 3.0  # about half a second
