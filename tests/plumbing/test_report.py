"""`polyak report`: what is drawn of finished, unfinished and broken runs, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polyak.runs import Run
from tests import toys
from tests.plumbing.running import ALGORITHMS, polyak_cli, train

figures = pytest.importorskip("matplotlib.figure")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved."""
    found: list[Any] = []
    savefig = figures.Figure.savefig

    def spy(figure: Any, *args: Any, **kwargs: Any) -> None:
        found.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(figures.Figure, "savefig", spy)
    return found


@pytest.fixture
def copied(trained: dict[str, Run], tmp_path: Path) -> Run:
    """A finished run to be changed."""
    return Run(Path(shutil.copytree(trained["ddpg"].path, tmp_path / "copied" / "run")))


def legend(figure: Any, axes: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axes].get_legend().get_texts()]


def is_picture(path: Path) -> bool:
    with Image.open(path) as image:
        image.load()
        return image.format == "PNG" and min(image.size) > 300


def test_one_run(trained: dict[str, Run], here: Path, drawn: list[Any]) -> None:
    run = trained["sac"]
    answer = polyak_cli("report", run.path, "--output", here / "new" / "folder")
    assert answer.code == 0
    picture = here / "new" / "folder" / "learning_curve.png"
    assert answer.out == f"curve={picture}\n"
    assert is_picture(picture)
    (axes,) = drawn[0].axes
    assert axes.get_title() == run.config["env_id"]
    assert axes.get_xlabel() == "environment steps"
    assert legend(drawn[0]) == ["sac_continuous_action, seed 1"]
    # What the lines show is what the run recorded.
    dots, line = axes.get_lines()
    for plot, metric in ((dots, "charts/episodic_return"), (line, "eval/episodic_return")):
        rows = run.metrics(metric)
        assert list(plot.get_xdata()) == [row["step"] for row in rows]
        assert list(plot.get_ydata()) == [row[metric] for row in rows]
        assert len(rows) >= 3
    assert [path.name for path in here.iterdir()] == ["new"]


def test_several_runs_and_tasks(
    trained: dict[str, Run], here: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    other = train(tmp_path / "other", env_id="toys/Const-v0", seed=5)
    answer = polyak_cli("report", trained["ddpg"].path.parent, other.path.parent)
    assert answer.code == 0
    assert is_picture(here / "report" / "learning_curve.png")
    titles = [axes.get_title() for axes in drawn[0].axes]
    assert sorted(titles) == sorted(["tests.toys:toys/Twin-v0", "toys/Const-v0"])
    twins = legend(drawn[0], titles.index("tests.toys:toys/Twin-v0"))
    assert sorted(twins) == [f"{name}_continuous_action, seed 1" for name in sorted(ALGORITHMS)]
    assert legend(drawn[0], titles.index("toys/Const-v0")) == ["ddpg_continuous_action, seed 5"]


def test_a_run_named_twice_is_drawn_once(
    trained: dict[str, Run], here: Path, drawn: list[Any]
) -> None:
    path = trained["td3"].path
    assert polyak_cli("report", path, path.parent / path.name, os.path.relpath(path)).code == 0
    assert len(legend(drawn[0])) == 1


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_unfinished_runs_are_marked(copied: Run, here: Path, drawn: list[Any], state: str) -> None:
    copied.write_status(state, 40)
    assert polyak_cli("report", copied.path).code == 0
    assert legend(drawn[0]) == [f"ddpg_continuous_action, seed 1 ({state})"]


def test_what_a_killed_process_leaves_is_drawn(copied: Run, here: Path, drawn: list[Any]) -> None:
    """The last row cut off, no final agent, and half a file beside the status."""
    copied.write_status("running", 40)
    shutil.rmtree(copied.path / "final")
    (copied.path / "status.json.tmp").write_text('{"sta')
    rows = copied.metrics("eval/episodic_return")
    with (copied.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "time": 1.0, "eval/episodic_ret')
    assert polyak_cli("report", copied.path).code == 0
    assert len(drawn[0].axes[0].get_lines()[1].get_xdata()) == len(rows)


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json"])
def test_a_run_that_was_killed_before_it_began(copied: Run, here: Path, name: str) -> None:
    (copied.path / name).unlink()
    answer = polyak_cli("report", copied.path)
    assert answer.code == 0 or name in answer.line


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "config.json"])
@pytest.mark.parametrize("text", ["", "nonsense\n", "[]\n", "{}\n", '{"step": "x"}\n'])
def test_a_damaged_file_is_named(copied: Run, here: Path, name: str, text: str) -> None:
    (copied.path / name).write_text(text)
    answer = polyak_cli("report", copied.path)
    # A configuration without our settings is another program's: no run at all.
    reason = r"config\.json|no runs in" if name == "config.json" else re.escape(name)
    assert answer.code == 0 or re.search(reason, answer.line)


def test_configurations_of_other_programs_are_no_runs(
    trained: dict[str, Run], here: Path, drawn: list[Any]
) -> None:
    """Many programs call a file config.json."""
    shutil.copytree(trained["td3"].path, here / "run")
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert polyak_cli("report", here, "--output", here / "out").code == 0
    assert legend(drawn[0]) == ["td3_continuous_action, seed 1"]
    shutil.rmtree(here / "run")
    assert "no runs in" in polyak_cli("report", here).line


def test_a_run_without_a_single_row(here: Path, tmp_path: Path) -> None:
    run = train(tmp_path, env_id=toys.register("Const", length=99), total_timesteps=21)
    (run.path / "metrics.jsonl").write_text("")
    assert polyak_cli("report", run.path).code == 0
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
        assert (
            "cannot write file"
            in polyak_cli("report", trained["ddpg"].path, "--output", output).line
        )
