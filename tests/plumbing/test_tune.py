"""The search: real studies of real processes, which are pruned, fail, are interrupted or killed."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from polyak import settings
from polyak.algorithms.configs import CONFIGS
from polyak.benchmark.grid import Job
from polyak.cli.train_flags import train_options
from polyak.errors import PolyakError
from polyak.runs import Run
from polyak.tune import command, preset, work
from polyak.tune.spaces import SPACES, Dimension, Scale, space
from polyak.tune.study import Search, opened
from polyak.tune.trial import Outcome, Trial, objective
from tests import toys
from tests.plumbing.running import ALGORITHMS, SMALL, TWIN, flags, polyak_cli, weights

ROOT = Path(__file__).parents[2]
FIXED = {k: v for k, v in SMALL.items() if k not in ("learning_starts", "eval_interval")} | {
    "eval_episodes": 2
}
TUNE = ("tune", "ddpg", *flags(**FIXED))
"""Trials of a few seconds, most of which their processes take to begin."""

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def search(*given: str, study: str = "s", trial_flags: Mapping[str, Any] = FIXED) -> Search:
    """What a command line searches."""
    options = train_options("ddpg", flags(**trial_flags) + list(given))
    return command._search("ddpg", {"study": study}, options)[0]


def storage(path: str) -> Any:
    if path.endswith(".db"):
        return f"sqlite:///{path}"
    return JournalStorage(JournalFileBackend(path))


def trials(path: str, study: str = "s") -> list[optuna.trial.FrozenTrial]:
    """What a study holds, read with nothing but Optuna."""
    return optuna.load_study(study_name=study, storage=storage(path)).trials


def finished(folder: Path) -> list[Run]:
    found = [Run(path.parent) for path in sorted(folder.glob("*/config.json"))]
    return [run for run in found if run.status["state"] == "finished"]


# What is searched


@every_algorithm
def test_defaults_lie_in_the_space_and_its_ends_make_runs(algorithm: str) -> None:
    dimensions = space(algorithm, {}, 1_000_000)
    defaults = CONFIGS[algorithm]()
    for name, dimension in dimensions.items():
        assert dimension.low <= getattr(defaults, name) <= dimension.high
    for ends in ("low", "high"):
        trial = optuna.trial.FixedTrial(
            {d.parameter(name): d.inner(getattr(d, ends)) for name, d in dimensions.items()}
        )
        chosen = {name: d.suggest(name, trial) for name, d in dimensions.items()}
        assert chosen == {name: getattr(d, ends) for name, d in dimensions.items()}
        settings.setup(algorithm, chosen)


@pytest.mark.parametrize(
    ("dimension", "inside", "outside"),
    [
        (Dimension(1e-4, 1e-2), 0.00123456, 0.00123),
        (Dimension(0.9, 0.999, Scale.COMPLEMENT), 0.0123456, 0.9877),
        (Dimension(64, 512, Scale.POWER), 7, 128),
        (Dimension(1, 4, Scale.LINEAR), 3, 3),
    ],
)
def test_parameters_become_settings(dimension: Dimension, inside: float, outside: float) -> None:
    trial = optuna.trial.FixedTrial({dimension.parameter("x"): inside})
    assert dimension.suggest("x", trial) == outside
    assert type(dimension.suggest("x", trial)) is type(outside)


def test_the_warm_up_is_a_share_of_the_run() -> None:
    def bounds(total: int) -> tuple[float, float]:
        found = space("td3", {}, total)["learning_starts"]
        return found.low, found.high

    assert bounds(1_000_000) == (5_000, 25_000)
    assert bounds(20_000) == (100, 4_000)
    assert bounds(2) == (1, 1)


def test_what_is_fixed_is_not_searched() -> None:
    everything = {*SPACES["ddpg"], "learning_starts"}
    assert search().space.keys() == everything - {"batch_size", "hidden_dim"}
    rates = search("--learning-rate", "1e-3").space.keys()
    assert not {"actor_lr", "critic_lr"} & rates
    assert "alpha" not in space("sac", {}, 100)
    assert "alpha" in space("sac", {"autotune": False}, 100)
    assert "alpha" not in space("sac", {"autotune": False, "alpha": 0.1}, 100)


@every_algorithm
def test_the_docs_tell_every_bound(algorithm: str) -> None:
    text = (ROOT / "docs" / "tune.md").read_text()
    for setting, dimension in SPACES[algorithm].items():
        (row,) = re.findall(rf"^\| `{setting}` \| (.*?) \|", text, re.MULTILINE)
        assert row == str(dimension)


def test_the_objective_is_the_mean_of_the_last_evaluations() -> None:
    assert objective({0: 100.0, 10: 1.0, 20: 2.0, 30: 3.0, 40: 7.0}) == 4.0
    assert objective({0: 100.0, 10: 1.0}) == 1.0


# What is refused


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--trials", "0"], "--trials must be at least 1"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--num-seeds", "0"], "--num-seeds must be at least 1"),
        (["--actor-rl", "1"], "did you mean --actor-lr?"),
        (["--resume", "auto"], "--resume is for a single run"),
        (["--runs-dir", "x"], "--runs-dir differs between trials: use --storage"),
        (["--save-path", "x"], "--save-path differs between trials"),
        (["--eval-interval", "0"], "--eval-interval 0 leaves nothing to judge a trial by"),
        (["--eval-episodes", "0"], "--eval-episodes 0 leaves nothing to judge a trial by"),
        (["--study", "../x"], "must be a name for a folder"),
        (["--total-timesteps", "1"], "--learning-starts must be below --total-timesteps 1"),
        (["--buffer-size", "8", "--batch-size", "9"], "--batch-size must be at most"),
        (["--env-id", "NoSuch-v0"], "NoSuch"),
        (flags(**dict.fromkeys(SPACES["ddpg"], 1), learning_starts=1), "every setting is fixed"),
    ],
)
def test_mistakes_end_in_a_line_before_anything_is_written(
    given: list[str], line: str, here: Path
) -> None:
    assert line in polyak_cli(*TUNE, *given).line
    assert not list(here.iterdir())


def test_the_algorithm_comes_first(here: Path) -> None:
    assert "name the algorithm first" in polyak_cli("tune", "--env-id", TWIN).line
    assert "td4" in polyak_cli("tune", "td4").line
    assert "--no-pruning" in polyak_cli("tune", "--help").out


def test_a_missing_library_is_named_with_its_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert polyak_cli(*TUNE).line == "polyak tune needs Optuna: pip install 'polyak[tune]'"


@pytest.mark.parametrize("name", ["x.db", "x.journal"])
def test_a_storage_that_is_none(name: str, here: Path) -> None:
    (here / name).write_text("something else\n" * 100)
    assert f"{name} holds no studies" in polyak_cli(*TUNE, "--storage", name).line
    assert (here / name).read_text().startswith("something else")


def test_a_storage_that_cannot_be_written(here: Path) -> None:
    (here / "file").touch()
    assert "cannot use file/x.journal" in polyak_cli(*TUNE, "--storage", "file/x.journal").line


def test_a_preset_of_ones_own_is_not_replaced(here: Path) -> None:
    (here / "mine.toml").write_text("gamma = 0.9\n")
    assert "choose another --output" in polyak_cli(*TUNE, "--output", "mine.toml").line
    assert (here / "mine.toml").read_text() == "gamma = 0.9\n"


def test_a_study_of_something_else(here: Path) -> None:
    with opened(search()):
        pass
    with opened(search()):
        pass
    for flag, how in (
        ("--gamma=0.5", "without --gamma"),
        ("--eval-episodes=3", "with --eval-episodes 2"),
    ):
        with (
            pytest.raises(PolyakError, match=f"was begun {how}: .*another --study"),
            opened(search(flag)),
        ):
            pass
    with opened(search("--gamma=0.5", study="other")):  # in a storage of its own
        pass


def test_presets_hold_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "preset.toml"
    preset.check(path)
    values = {"text": 'a "b" \\ é\n\x7f', "yes": True, "whole": 3, "small": 1e-7, "float": 2.0}
    preset.write(path, ["two\nlines"], values)
    assert tomllib.loads(path.read_text("utf-8")) == values
    preset.check(path)
    assert [p.name for p in path.parent.iterdir()] == ["preset.toml"]


# Who has which trial


def chosen(trial: Trial) -> dict[str, Any]:
    (job,) = trial.jobs
    assert job.setup is not None
    return job.setup.asdict()


@pytest.mark.parametrize("end", ["db", "journal"])
def test_two_processes_share_the_trials_and_leave_none(end: str, here: Path) -> None:
    one = search()
    one = Search(**vars(one) | {"storage": Path(f"s.{end}")})
    with opened(one) as first, opened(one) as second:
        claimed = [study.claim(3) for study in (first, second, first, second)]
        assert [trial and trial.number for trial in claimed] == [0, 1, 2, None]
        zero, left, two = (trial for trial in claimed if trial is not None)
        left.release()  # as the death of its process does
        again = first.claim(3)
        assert again is not None
        assert again.number == 1
        assert chosen(again) == chosen(left)
        assert second.claim(3) is None
        first.tell(zero, Outcome.PRUNED)
        first.tell(two, Outcome.LEFT)
        first.tell(again, Outcome.PRUNED)
        two_again = second.claim(2)
        assert two_again is not None
        assert two_again.number == 2
        assert second.claim(3) is None
        fourth = second.claim(4)
        assert fourth is not None
        assert fourth.number == 3
        for study, trial in ((second, two_again), (second, fourth)):
            study.tell(trial, Outcome.LEFT)
    assert [trial.state.name for trial in trials(f"s.{end}")] == [
        "PRUNED", "PRUNED", "RUNNING", "RUNNING",
    ]  # fmt: skip


def test_the_first_trial_has_the_defaults_and_stopping_changes_no_later_one(here: Path) -> None:
    def claimed(one: Search, count: int, stops: bool) -> list[dict[str, Any]]:
        found = []
        for _ in range(count if stops else 1):
            with opened(one) as study:
                for _ in range(1 if stops else count):
                    trial = study.claim(count)
                    assert trial is not None
                    found.append(chosen(trial) | {"runs_dir": ""})
                    study.tell(trial, Outcome.PRUNED)
        return found

    first, *others = claimed(search(), 4, stops=False)
    defaults = CONFIGS["ddpg"]()
    assert all(first[k] == getattr(defaults, k) for k in SPACES["ddpg"] if k not in FIXED)
    assert first["learning_starts"] == 12  # a fifth of the run: the default is beyond it
    assert len({one["tau"] for one in others}) == 3
    assert claimed(search(study="t"), 4, stops=True) == [first, *others]
    other_seed = claimed(search("--seed=2", study="u"), 4, stops=False)
    assert other_seed[1]["tau"] != others[0]["tau"]


# Real trials


def test_a_study_and_its_preset(here: Path) -> None:
    given = (*TUNE, "--storage", "s.db", "--study", "s", "--num-seeds", 2, "--workers", 2)
    answer = polyak_cli(*given, "--trials", 2)
    assert answer.code == 0, answer.err
    found = trials("s.db")
    assert [trial.state.name for trial in found] == ["COMPLETE", "COMPLETE"]
    for trial in found:
        folder = here / "s" / f"trial-{trial.number:04}"
        runs = finished(folder)
        assert [run.config["seed"] for run in runs] == [1, 2]
        assert not list(folder.glob("*/checkpoint"))
        rows = [run.metrics("eval/episodic_return") for run in runs]
        means = {
            row["step"]: statistics.fmean(r[i]["eval/episodic_return"] for r in rows)
            for i, row in enumerate(rows[0])
        }
        assert [*means] == list(range(0, 61, 6))
        assert trial.intermediate_values == means
        assert trial.value == pytest.approx(statistics.fmean([means[48], means[54], means[60]]))

    best = max(found, key=lambda trial: trial.value or 0.0)
    assert f"best_value={best.value:.2f} trial={best.number}\npreset=s.toml\n" == answer.out
    text = (here / "s.toml").read_text()
    assert f"trial {best.number}, return {best.value:.6g}" in text
    again = settings.setup("ddpg", {"preset": "s.toml", "eval_interval": 6, "seed": 1}).asdict()
    config = finished(here / "s" / f"trial-{best.number:04}")[0].config
    differing = {key for key, value in again.items() if config[key] != value}
    assert differing == {"runs_dir", "keep_checkpoint"}

    before = sorted(here.glob("s/*/*"))
    assert polyak_cli(*given, "--trials", 2).out == answer.out
    assert sorted(here.glob("s/*/*")) == before


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_search_that_ends_goes_on(how: signal.Signals, here: Path) -> None:
    given = [*map(str, TUNE), "--study", "s", "--trials", "1", "--total-timesteps", "800",
             "--learning-starts", "100", "--checkpoint-interval", "100"]  # fmt: skip
    folder = here / "tune" / "s" / "trial-0000"
    process = subprocess.Popen(
        [sys.executable, "-m", "polyak", *given], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: list(folder.glob("*/checkpoint/*.json")))
    finally:
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    (frozen,) = trials("tune/s.journal")
    assert frozen.state.name == "RUNNING"
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted (the same command goes on)" in err
        (path,) = folder.glob("*/status.json")
        assert Run(path.parent).status["state"] == "interrupted"

    answer = polyak_cli(*given)  # after SIGKILL it waits for the process that lives on
    assert answer.code == 0, answer.err
    assert "goes on: trial 0" in answer.err
    (frozen,) = trials("tune/s.journal")
    (run,) = finished(folder)
    assert len(list(folder.glob("*/config.json"))) == 1
    assert frozen.intermediate_values.keys() == set(range(0, 801, 80))
    if how is signal.SIGINT:  # the same bits as if nothing had happened
        alone = polyak_cli("train", "ddpg", "--preset", "tune/s.toml", "--eval-interval", 80)
        assert alone.code == 0, alone.err
        assert weights(run) == weights(finished(here / "runs")[0])


def test_a_bad_trial_is_pruned(here: Path) -> None:
    one = search("--total-timesteps=3000")
    with opened(one) as study:
        for _ in range(5):
            trial = study.claim(5)
            assert trial is not None
            own = study._own[trial.number]
            for step in range(0, 3001, 300):
                own.report(1e9, step)
            own.study.tell(own, 1e9)
            trial.release()
    answer = polyak_cli(*TUNE, "--study", "s", "--trials", 6, "--total-timesteps", 3000)
    assert "pruned: trial 5 at step" in answer.err
    frozen = trials(str(one.storage))[5]
    assert frozen.state.name == "PRUNED"
    assert frozen.user_attrs["outcome"] == "pruned"
    assert 1000 <= max(frozen.intermediate_values) < 3000  # not in the first third
    folder = one.folder / "trial-0005"
    assert not finished(folder)
    assert not list(folder.glob("*/checkpoint"))


def test_settings_that_diverge_count_as_bad(here: Path) -> None:
    answer = polyak_cli(*TUNE, "--study", "s", "--trials", 1, "--learning-rate", "1e30")
    assert "diverged: trial 0" in answer.err
    assert answer.err.splitlines()[-1] == (
        "polyak: error: no trial of s is complete: raise --trials"
    )
    (frozen,) = trials("tune/s.journal")
    assert (frozen.state.name, frozen.user_attrs["outcome"]) == ("PRUNED", "diverged")


def test_trials_that_fail_end_the_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "PATIENCE", 2)
    poison = toys.PREFIX + "toys/PoisonReward-v0"
    given = (*TUNE, "--env-id", poison, "--study", "s", "--workers", 2)
    answer = polyak_cli(*given, "--trials", 9)
    assert answer.code == 2
    assert re.search("2 trials in a row failed: exit code 2; .* is nan", answer.err)
    assert [trial.state.name for trial in trials("tune/s.journal")][:2] == ["FAIL", "FAIL"]


def test_a_lock_that_another_study_holds(here: Path) -> None:
    one = search()
    with opened(one) as study:
        trial = study.claim(1)
        assert trial is not None
        one.storage.unlink()
        with (
            opened(one) as new,
            pytest.raises(PolyakError, match=r"has the study .* been replaced"),
        ):
            new.claim(1)
        os.close(trial._lock)


@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGTERM, Outcome.LEFT), (signal.SIGKILL, Outcome.FAILED)]
)
def test_a_process_that_was_ended_from_outside(
    number: signal.Signals, outcome: Outcome, here: Path
) -> None:
    with opened(search()) as study:
        trial = study.claim(1)
        assert trial is not None
        trial._child = subprocess.Popen(["sleep", "60"])
        assert trial.running()
        trial.signal(number)
        trial.wait()
        assert trial.outcome() is outcome
        study.tell(trial, outcome)
    (frozen,) = trials("tune/s.journal")
    assert frozen.state.name == ("RUNNING" if outcome is Outcome.LEFT else "FAIL")


def test_jobs_of_a_trial_differ_by_seed_alone(here: Path) -> None:
    options = train_options("td3", ["--seed", "4"])
    found = command._search("td3", {"num_seeds": 3, "study": "s"}, options)[0]
    jobs: list[Job] = found.jobs(Path("x"), {"tau": 0.02})
    assert [job.seed for job in jobs] == [4, 5, 6]
    assert all("--tau=0.02" in job.arguments for job in jobs)
