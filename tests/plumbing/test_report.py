"""`polyak report`: which runs count, what is written of them, and what is refused."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyak.runs import Run
from tests import toys
from tests.plumbing import folders
from tests.plumbing.running import ALGORITHMS, TWIN, Answer, polyak_cli, train

pytest.importorskip("matplotlib")

PICTURES = ("learning_curve", "learning_curve_time", "performance_profile", "sample_efficiency")
OUTCOMES = [(0, 0.0), (500, 300.0), (1000, 700.0)]


@pytest.fixture
def rendered() -> None:
    """For tests that look at files: pictures are drawn for real, which takes a second."""


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, in the order of `PICTURES`."""
    return [] if "rendered" in request.fixturenames else folders.undrawn(monkeypatch)


@pytest.fixture
def copied(trained: dict[str, Run], tmp_path: Path) -> Run:
    """A finished run to be changed."""
    return Run(Path(shutil.copytree(trained["ddpg"].path, tmp_path / "copied" / "run")))


def report(*paths: object) -> Answer:
    answer = polyak_cli("report", *paths)
    assert answer.code == 0, answer.err
    return answer


def table(name: str, folder: Path = Path("report")) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def legend(figure: Any, axes: int = 0) -> list[str]:
    box = figure.axes[axes].get_legend()
    return [text.get_text().strip() for text in box.get_texts()] if box else []


def line(axes: Any, label: str) -> Any:
    (found,) = [line for line in axes.get_lines() if line.get_label().strip() == label]
    return found


def is_picture(path: Path) -> bool:
    with Image.open(path) as image:
        image.load()
        return image.format == "PNG" and min(image.size) > 300


def test_one_run(trained: dict[str, Run], here: Path, rendered: None) -> None:
    run = trained["sac"]
    out = here / "new" / "folder"
    answer = report(run.path, "--output", out)
    assert answer.out == (
        f"curve={out / 'learning_curve.png'}\n"
        f"page={out / 'report.html'}\ntables={out / 'report.md'}\n"
    )
    assert "Runs that count: 1; " in answer.err
    for name in PICTURES:
        assert is_picture(out / f"{name}.png")
        assert (out / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    (row,) = table("returns", out)
    assert row["task"] == TWIN
    assert row["experiment"] == "sac_continuous_action"
    assert float(row["evaluation_mean"]) == run.final_eval_return
    assert row["evaluation_std"] == "" and row["evaluation_n"] == "1"  # n = 1 has no spread
    episodes = [r["charts/episodic_return"] for r in run.metrics("charts/episodic_return")]
    assert len(episodes) < 100
    assert float(row["training_mean"]) == pytest.approx(np.mean(episodes))
    assert row["short"] == "yes"
    assert [path.name for path in here.iterdir()] == ["new"]


def test_curves_show_what_the_run_recorded(
    trained: dict[str, Run], here: Path, drawn: list[Any]
) -> None:
    run = trained["td3"]
    report(run.path)
    left, right = drawn[0].axes
    assert left.get_title() == f"{TWIN}: deterministic evaluation"
    assert right.get_title() == f"{TWIN}: training return"
    assert left.get_xlabel() == "environment steps"
    assert legend(drawn[0]) == ["td3_continuous_action (n = 1)"]
    rows = run.metrics("eval/episodic_return")
    mean = line(left, "td3_continuous_action (n = 1)")
    assert list(mean.get_xdata()) == [row["step"] for row in rows]
    assert list(mean.get_ydata()) == [row["eval/episodic_return"] for row in rows]
    assert not left.collections  # one seed: no interval
    times = drawn[1].axes[0]
    assert times.get_xlabel() == "wall-clock time (minutes)"
    end = line(times, "td3_continuous_action (n = 1)").get_xdata()[-1]
    assert end == pytest.approx(rows[-1]["time"] / 60)


def test_several_runs_and_tasks(
    trained: dict[str, Run], here: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    other = train(tmp_path / "other", env_id="toys/Const-v0", seed=5)
    report(trained["ddpg"].path.parent, other.path.parent)
    found = [(row["task"], row["experiment"]) for row in table("returns")]
    names = sorted(f"{name}_continuous_action" for name in ALGORITHMS)
    expected = [(TWIN, name) for name in names]
    assert found == [*expected, ("toys/Const-v0", "ddpg_continuous_action")]
    assert len(drawn[0].axes) == 4
    assert legend(drawn[0]) == [f"{name} (n = 1)" for name in names]
    assert table("returns")[-1]["evaluation_mean"] == ""  # evaluations were off


def test_a_run_named_twice_counts_once(
    trained: dict[str, Run], here: Path, drawn: list[Any]
) -> None:
    path = trained["td3"].path
    report(path, path.parent / path.name, os.path.relpath(path))
    assert len(table("runs")) == 1


def test_mean_spread_and_interval_over_seeds(here: Path, drawn: list[Any]) -> None:
    for seed, end in ((1, 600.0), (2, 700.0), (10, 800.0)):
        folders.write(here / "runs" / str(seed), seed=seed, evaluations=[(0, 0.0), (1000, end)])
    report("runs")
    (row,) = table("returns")
    assert float(row["evaluation_mean"]) == 700
    assert float(row["evaluation_std"]) == pytest.approx(100)
    assert row["evaluation_n"] == "3"
    assert "700.0 ± 100.0 (n = 3)" in Path("report/report.md").read_text()
    assert [r["seed"] for r in table("runs")] == ["1", "2", "10"]
    (axes,) = drawn[0].axes[:1]
    assert line(axes, "td3_continuous_action (n = 3)").get_ydata()[-1] == 700
    (band,) = axes.collections
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(700 + 4.302653 * 100 / 3**0.5)
    assert axes.get_ylim() == pytest.approx((-40, 840), abs=3)  # the picture is scaled to the lines


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_unfinished_runs_are_shown_and_never_counted(
    here: Path, drawn: list[Any], state: str
) -> None:
    folders.write(here / "runs" / "a", seed=1, evaluations=OUTCOMES)
    folders.write(here / "runs" / "b", seed=2, evaluations=OUTCOMES[:2], state=state, step=500,
                  total_timesteps=1000)  # fmt: skip
    answer = report("runs")
    assert "unfinished, in no mean: 1." in answer.err
    (row,) = table("returns")
    assert (row["evaluation_n"], row["finished"], row["unfinished"]) == ("1", "1", "1")
    name = "td3_continuous_action"
    assert legend(drawn[0])[:2] == [f"{name} (n = 1)", f"{name}, unfinished (1)"]
    states = {r["seed"]: (r["state"], r["counts"]) for r in table("runs")}
    assert states["2"] == (f"{state} at step 500", "unfinished")


def test_nothing_but_unfinished_runs(here: Path, drawn: list[Any]) -> None:
    folders.write(here / "runs" / "a", evaluations=OUTCOMES[:2], state="running", step=500)
    report("runs")
    (row,) = table("returns")
    assert row["evaluation_mean"] == "" and row["finished"] == "0"
    assert legend(drawn[0])[0] == "td3_continuous_action, unfinished (1)"
    assert not Path("report/iqm.csv").exists()


def test_the_newest_finished_run_of_a_seed_counts(here: Path, drawn: list[Any]) -> None:
    for name, written, end in (("b", 3.0, 700.0), ("a", 1.0, 1.0), ("c", 2.0, 2.0)):
        folders.write(here / "runs" / name, written=written, evaluations=[(0, 0.0), (1000, end)])
    # Begun again after the last one finished, and not done: that one still counts.
    folders.write(here / "runs" / "d", written=4.0, state="running", evaluations=[(0, 5.0)])
    answer = report("runs")
    assert "Runs that count: 1; replaced by newer ones: 2;" in answer.err
    (row,) = table("returns")
    assert (row["evaluation_mean"], row["evaluation_n"]) == ("700.0", "1")
    assert "2 finished runs are left out" in Path("report/report.md").read_text()
    counts = {Path(r["folder"]).name: r["counts"] for r in table("runs")}
    assert counts == {"b": "yes", "a": "superseded", "c": "superseded", "d": "unfinished"}
    assert legend(drawn[0])[0] == "td3_continuous_action (n = 1)"


def test_seeds_of_unequal_duration_have_a_mean_as_far_as_all_go(
    here: Path, drawn: list[Any]
) -> None:
    for seed, seconds in ((1, 0.06), (2, 0.12)):
        folders.write(here / "runs" / str(seed), seed=seed, evaluations=OUTCOMES, seconds=seconds)
    report("runs")
    axes = drawn[1].axes[0]
    mean = line(axes, "td3_continuous_action (n = 2)")
    reached = mean.get_xdata()[~np.isnan(mean.get_ydata())]
    assert reached.max() == pytest.approx(1.0)  # minutes; the slower one took 2
    assert max(plot.get_xdata()[-1] for plot in axes.get_lines()) == pytest.approx(2.0)


def test_other_settings_are_another_experiment_and_bookkeeping_is_not(here: Path) -> None:
    runs = here / "runs"
    common: dict[str, Any] = {"evaluations": OUTCOMES}
    folders.write(runs / "a", seed=1, **common, threads=1, runs_dir="x", save_model=True)
    folders.write(runs / "b", seed=2, **common, threads=2, runs_dir="y", tau=0.005)  # the default
    folders.write(runs / "c", seed=3, **common, tau=0.01)
    report("runs")
    rows = {row["experiment"]: row["evaluation_n"] for row in table("returns")}
    name = "td3_continuous_action"
    assert rows == {f"{name} [tau=0.005]": "2", f"{name} [tau=0.01]": "1"}


def test_versions_of_mujoco_and_backends_are_never_mixed(here: Path) -> None:
    runs = here / "runs"
    folders.write(runs / "a", seed=1, evaluations=OUTCOMES)
    folders.write(runs / "b", seed=2, evaluations=OUTCOMES,
                  context={"versions": {"mujoco": "4.0.0"}})  # fmt: skip
    folders.write(runs / "c", seed=3, evaluations=OUTCOMES, backend="jax",
                  exp_name="td3_continuous_action_jax")  # fmt: skip
    report("runs")
    name = "td3_continuous_action"
    names = [f"{name} [mujoco=3.2.0]", f"{name} [mujoco=4.0.0]", f"{name}_jax"]
    assert [row["experiment"] for row in table("returns")] == names


def test_versions_of_a_task_are_never_in_one_row(here: Path) -> None:
    tasks = ("Pusher-v5", "polyak/Pusher-v4", "polyak/Pusher-v5", "HalfCheetah-v4")
    for task in (*tasks, "HalfCheetah-v5"):
        folders.write(here / "runs" / task, env_id=task, evaluations=OUTCOMES)
    report("runs")
    labels = {row["task"]: row["evaluation_n"] for row in table("returns")}
    assert labels == {
        "HalfCheetah-v4": "1",
        "HalfCheetah-v5": "1",
        "Pusher-v5": "1",
        "polyak/Pusher-v4 (contact restored)": "1",
        "polyak/Pusher-v5 (contact restored)": "1",
    }


def test_training_return_is_that_of_the_last_100_episodes(here: Path) -> None:
    episodes = [(1000 + k, float(k)) for k in range(1, 151)]
    folders.write(here / "runs" / "a", episodes=episodes, step=1150)
    report("runs")
    (row,) = table("returns")
    assert float(row["training_mean"]) == pytest.approx(np.mean(np.arange(51, 151)))
    assert row["evaluation_mean"] == "" and row["short"] == ""


def test_published_figures_of_the_same_task_protocol_and_length_share_a_row(here: Path) -> None:
    million = 1_000_000
    common: dict[str, Any] = {
        "evaluations": [(0, 0.0), (million, 9000.0)],
        "episodes": [(million, 8000.0)],
        "step": million,
    }
    folders.write(here / "runs" / "v4", **common, env_id="HalfCheetah-v4")
    folders.write(here / "runs" / "v5", **common, env_id="HalfCheetah-v5")
    folders.write(here / "runs" / "short", env_id="Hopper-v4", episodes=[(1000, 5.0)])
    folders.write(here / "runs" / "pusher", **common, env_id="polyak/Pusher-v4")
    report("runs")
    (row,) = table("published")
    assert row["task"] == "HalfCheetah-v4" and row["protocol"] == "training return"
    assert (row["ours_mean"], row["published_mean"]) == ("8000.0", "9583.22")
    apart = {(r["task"], r["algorithm"], r["backend"], r["protocol"]): r["differs"]
             for r in table("published_apart")}  # fmt: skip
    assert ("HalfCheetah-v4", "td3", "torch", "training return") not in apart
    td3 = ("td3", "torch", "training return")
    assert apart["Hopper-v4", *td3] == "steps: here 1,000"
    assert apart["Pusher-v4", *td3] == "task: here polyak/Pusher-v4 (contact restored)"
    assert apart["HalfCheetah-v4", "td3", "jax", "training return"].startswith("backend")
    assert apart["HalfCheetah-v4", "sac", "torch", "training return"].startswith("algorithm")
    authors = ("td3", "torch", "deterministic evaluation")
    assert apart["HalfCheetah-v1", *authors] == "task: here HalfCheetah-v4, HalfCheetah-v5"
    recent = apart["HalfCheetah-v4", "FlashSAC", "", "as its source defines it"]
    assert recent == "protocol: not stated"


def test_runtimes_are_minutes_and_have_their_unit(here: Path) -> None:
    folders.write(here / "runs" / "a", env_id="Hopper-v4", sps=95.0, seconds=0.012,
                  evaluations=OUTCOMES)  # fmt: skip
    report("runs")
    (row,) = table("runtime")
    assert float(row["sps"]) == 95
    assert float(row["minutes"]) == pytest.approx(175.4, abs=0.1)
    assert float(row["minutes_whole"]) == pytest.approx(200.0)  # 12 ms a step
    assert "Minutes per 1M steps, whole run" in Path("report/report.md").read_text()
    theirs = {(r["task"], r["algorithm"], r["backend"]): r for r in table("published_runtimes")}
    assert theirs["Hopper-v4", "td3", "torch"]["published_minutes"] == "90.9921"
    assert float(theirs["Hopper-v4", "td3", "torch"]["ours_minutes"]) == pytest.approx(200.0)
    assert theirs["Hopper-v4", "td3", "jax"]["ours_minutes"] == ""


def test_the_authors_curve_lies_behind_evaluations_along_steps_alone(
    here: Path, drawn: list[Any]
) -> None:
    folders.write(here / "runs" / "a", step=20_000, evaluations=[(0, 0.0), (20_000, 900.0)],
                  episodes=[(20_000, 800.0)])  # fmt: skip
    report("runs")
    label = "TD3, Fujimoto et al. 2018, HalfCheetah-v1 (n = 10)"
    assert label in legend(drawn[0], 0)
    assert label not in legend(drawn[0], 1) + legend(drawn[1], 0) + legend(drawn[1], 1)
    theirs = line(drawn[0].axes[0], label)
    assert list(theirs.get_xdata()) == [0, 5_000, 10_000, 15_000, 20_000]


def test_scores_over_tasks_by_hand(here: Path, drawn: list[Any]) -> None:
    """TD3 ends at 60 and 80 on one task and at -2 twice on another; SAC is best on the first."""
    runs = here / "runs"

    def one(name: str, task: str, seed: int, start: float, end: float) -> None:
        folders.write(runs / f"{name}{task}{seed}", exp_name=name, algorithm=name, env_id=task,
                      seed=seed, evaluations=[(0, start), (500, end), (1000, end)])  # fmt: skip

    for seed, end in ((1, 60.0), (2, 80.0)):
        one("td3", "Hopper-v5", seed, 0.0, end)
        one("td3", "Reacher-v5", seed, -10.0, -2.0)
        one("sac", "Hopper-v5", seed, 0.0, 100.0)
    report("runs")
    rows = {row["experiment"]: row for row in table("iqm")}
    # Scores 0.6, 0.8 (of 100) and 1, 1 (the best): without a quarter at each end 0.8 and 1.
    assert float(rows["td3"]["iqm_value"]) == pytest.approx(0.9)
    assert rows["td3"]["names"] == "Hopper-v5, Reacher-v5"
    assert float(rows["sac"]["iqm_value"]) == pytest.approx(1.0)
    efficiency = {(r["task"], r["experiment"]): r for r in table("sample_efficiency")}
    hopper = efficiency["Hopper-v5", "td3"]
    assert (hopper["score_0.5_return"], hopper["score_0.5_steps"]) == ("50.0", "500.0")
    # One of two seeds got to 75: no mean over seeds.
    assert (hopper["score_0.75_steps"], hopper["score_0.75_runs"]) == ("", "1")
    profile = line(drawn[2].axes[0], "td3")
    above = dict(zip(np.round(profile.get_xdata(), 3), profile.get_ydata(), strict=True))
    assert (above[0.5], above[0.7], above[0.9], above[1.05]) == (1.0, 0.75, 0.5, 0.0)
    share = line(drawn[3].axes[0], "td3").get_ydata()
    assert (share[0], share[-1]) == pytest.approx((0.0, 0.9))


def test_a_task_without_progress_has_no_score(here: Path) -> None:
    folders.write(here / "runs" / "a", evaluations=[(0, 5.0), (1000, 4.0)])
    folders.write(here / "runs" / "b", env_id="Hopper-v5", evaluations=OUTCOMES)
    report("runs")
    assert [row["names"] for row in table("iqm")] == ["Hopper-v5"]
    assert "progress: HalfCheetah-v5." in Path("report/report.md").read_text()


def test_seeds_beyond_ten_have_their_mean_alone(here: Path, drawn: list[Any]) -> None:
    for seed in range(11):
        folders.write(here / "runs" / str(seed), seed=seed, env_id="Swimmer-v5",
                      evaluations=OUTCOMES)  # fmt: skip
    report("runs")
    (mean,) = drawn[0].axes[0].get_lines()
    assert mean.get_label().strip() == "td3_continuous_action (n = 11)"


def test_a_table_of_an_earlier_report_does_not_stay(here: Path) -> None:
    folders.write(here / "runs" / "a", evaluations=OUTCOMES)
    report("runs")
    assert table("iqm")
    folders.write(here / "other" / "a", evaluations=OUTCOMES[:2], state="running")
    report("other")
    assert not Path("report/iqm.csv").exists()


def test_what_a_picture_has_no_room_for_is_said(
    here: Path, drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyak.report.figures.MOST_TASKS", 2)
    for task in ("Ant-v5", "Hopper-v5", "Walker2d-v5"):
        folders.write(here / "runs" / task, env_id=task, evaluations=OUTCOMES)
    answer = report("runs")
    assert "leave out 1 of the tasks; the page has them" in answer.err
    assert len(drawn[0].axes) == 2 * 2
    assert len(table("returns")) == 3


def test_the_same_runs_give_the_same_files(here: Path, drawn: list[Any]) -> None:
    for seed in (1, 2, 3):
        folders.write(here / "runs" / str(seed), seed=seed,
                      evaluations=[(0, 0.0), (1000, 100.0 + seed)])  # fmt: skip
    report("runs", "--output", "one")
    report("runs", "--output", "two")
    for path in Path("one").iterdir():
        assert path.read_bytes() == (Path("two") / path.name).read_bytes(), path.name


def test_names_mean_nothing_in_tables_and_pictures(here: Path, rendered: None) -> None:
    """Rendered for real: matplotlib would read $...$ as mathematics and leave out an underscore."""
    name = "_x|`a`$\\frac$ *b*\n<b>--\x07日"
    folders.write(here / "runs" / "a", exp_name=name, evaluations=OUTCOMES)
    folders.write(here / "runs" / "b", exp_name="=1+1", evaluations=OUTCOMES)
    report("runs")
    text = Path("report/report.md").read_text()
    assert r"\_x\|\`a\`$\\frac$ \*b\* &lt;b&gt;--" in text
    columns = 0
    for row in text.splitlines():  # each row of a table has the columns of its head
        bars = len(re.findall(r"(?<!\\)\|", row))
        columns = bars if re.fullmatch(r"\|(---\|)+", row) else columns
        assert not row.startswith("| HalfCheetah-v5") or bars == columns
    assert columns
    assert {row["experiment"] for row in table("returns")} == {name, "'=1+1"}


def test_what_a_killed_process_leaves_is_read(copied: Run, here: Path) -> None:
    """The last row cut off, no final agent, and half a file beside the status."""
    copied.write_status("running", 40)
    shutil.rmtree(copied.path / "final")
    (copied.path / "status.json.tmp").write_text('{"sta')
    rows = copied.metrics("eval/episodic_return")
    with (copied.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "time": 1.0, "eval/episodic_ret')
    report(copied.path)
    (row,) = table("runs")
    assert float(row["evaluation"]) == rows[-1]["eval/episodic_return"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json"])
def test_a_run_that_was_killed_before_it_began(copied: Run, here: Path, name: str) -> None:
    (copied.path / name).unlink()
    answer = polyak_cli("report", copied.path)
    assert answer.code == 0 or name in answer.line


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "config.json"])
@pytest.mark.parametrize(
    "text",
    [
        "nonsense\n",
        "[]\n",
        "{}\n",
        '{"step": "x"}\n',
        '{"step": 1, "time": 1, "eval/episodic_return": NaN}\n',
        '{"step": 1, "time": 1, "eval/episodic_return": "x"}\n',
        '{"state": "finished", "step": "x"}\n',
    ],
)
def test_a_damaged_file_is_named(
    copied: Run, here: Path, drawn: list[Any], name: str, text: str
) -> None:
    (copied.path / name).write_text(text)
    answer = polyak_cli("report", copied.path)
    # A configuration without our settings is another program's: no run at all.
    reason = r"config\.json|no runs in" if name == "config.json" else re.escape(name)
    assert re.search(reason, answer.line)


def test_a_finished_run_that_lost_its_last_rows_gives_no_number(copied: Run, here: Path) -> None:
    path = copied.path / "metrics.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    early = [row for row in rows if json.loads(row)["step"] < copied.status["step"]]
    assert early
    for kept in (b"".join(early), b"".join(early) + rows[-1][:-1]):  # by rows, or within the last
        path.write_bytes(kept)
        answer = polyak_cli("report", copied.path)
        assert answer.code == 2
        assert "metrics.jsonl ends at step" in answer.line


def test_a_run_with_a_damaged_configuration_is_not_left_out(
    trained: dict[str, Run], copied: Run, here: Path
) -> None:
    path = copied.path / "config.json"
    path.write_text(path.read_text()[:100])
    for command in ("report", "runs"):
        answer = polyak_cli(command, trained["td3"].path, copied.path)
        assert (answer.code, "config.json is not valid JSON" in answer.line) == (2, True)


def test_configurations_of_other_programs_are_no_runs(
    trained: dict[str, Run], here: Path, drawn: list[Any]
) -> None:
    """Many programs call a file config.json."""
    shutil.copytree(trained["td3"].path, here / "run")
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    report(here, "--output", here / "out")
    assert len(table("runs", here / "out")) == 1
    shutil.rmtree(here / "run")
    assert "no runs in" in polyak_cli("report", here).line


def test_a_run_without_a_single_row(here: Path, tmp_path: Path, rendered: None) -> None:
    run = train(tmp_path, env_id=toys.register("Const", length=99), total_timesteps=21)
    (run.path / "metrics.jsonl").write_text("")
    run.write_status("running", 0)
    report(run.path)
    assert is_picture(here / "report" / "learning_curve.png")


@pytest.mark.parametrize("what", ["nowhere", "empty", "file"])
def test_no_runs_is_one_line(here: Path, what: str) -> None:
    (here / "empty").mkdir()
    (here / "file").touch()
    assert f"no runs in {what}" in polyak_cli("report", what).line
    assert not (here / "report").exists()


def test_one_wrong_path_among_right_ones_is_named(trained: dict[str, Run], here: Path) -> None:
    # Or a slip of the finger would leave a run out of a figure unnoticed.
    assert "nowhere" in polyak_cli("report", trained["ddpg"].path, "nowhere").line


def test_an_output_that_cannot_be_written(trained: dict[str, Run], here: Path) -> None:
    (here / "file").touch()
    for output in ("file", "file/below"):
        answer = polyak_cli("report", trained["ddpg"].path, "--output", output)
        assert f"cannot write {output}" in answer.line


@pytest.mark.parametrize("library", ["matplotlib", "scipy"])
def test_a_missing_library_is_named_with_its_extra(
    trained: dict[str, Run], here: Path, library: str
) -> None:
    code = f"import sys; sys.modules[{library!r}] = None\nfrom polyak.cli import main\n"
    code += f"sys.exit(main(['report', {str(trained['ddpg'].path)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    line = f"polyak: error: a report needs {library}: pip install 'polyak[report]'\n"
    assert done.stderr == line
    assert not [*here.iterdir()]
