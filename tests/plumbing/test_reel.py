"""Several agents side by side, text in pictures, and the flags that shape a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyak
from polyak import models, recording
from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.evaluation import evaluate
from polyak.runs import Run
from tests.plumbing.running import polyak_cli, train
from tests.plumbing.test_recording import StandIn, gl, idle, read_gif, stand_in

__all__ = ["gl", "stand_in"]  # fixtures

Lines = list[list[str]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What was written into each picture; still is."""
    found: Lines = []
    write = recording.with_text

    def spy(frame: np.ndarray, lines: list[str]) -> np.ndarray:
        found.append(list(lines))
        return write(frame, lines)

    monkeypatch.setattr(recording, "with_text", spy)
    return found


def test_text_is_readable_on_any_ground() -> None:
    for level in (0, 128, 255):
        plain = np.full((240, 240, 3), level, np.uint8)
        frame = recording.with_text(plain, ["td3 after 1,000", "return 12.3"])
        corner = frame[:40, :120].astype(int)
        assert np.ptp(corner) == 255  # white on its black rim
        assert (frame[60:] == level).all()
        assert (plain == level).all()
    assert not (recording.with_text(plain, ["a"]) == recording.with_text(plain, ["b"])).all()


def test_a_label_tells_step_and_return_and_the_end_is_held(
    tmp_path: Path, stand_in: type[StandIn], written: Lines
) -> None:
    path = tmp_path / "a.gif"
    recording.record(idle, "X", path, seeds=[0], frame_skip=8, fps=10, label=True)
    shown = [["step 0", "return 0.0"], ["step 8", "return 4.0"], ["step 16", "return 8.0"]]
    assert written == [*shown, ["step 20", "return 10.0"]]
    frames, milliseconds = read_gif(path)
    assert len(frames) == 4
    assert milliseconds == 100 * (3 + 10)


def test_agents_side_by_side_wait_for_the_last(
    tmp_path: Path, stand_in: type[StandIn], written: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter((20, 9))
    begin = StandIn.__init__

    def different(self: Any, env_id: str, **kwargs: Any) -> None:
        begin(self, env_id, **kwargs)
        self.end = next(ends)

    def step(self: Any, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.time += 1
        assert self.time <= self.end  # not after its end
        return np.zeros(3, np.float32), 0.5, self.time == self.end, False

    monkeypatch.setattr(StandIn, "__init__", different)
    monkeypatch.setattr(StandIn, "step", step)
    path = tmp_path / "a.gif"
    found = recording.reel({"one": idle, "two": idle}, "X", path, seeds=[0], frame_skip=4, fps=5)
    assert found == {"one": [10.0], "two": [4.5]}
    frames, _ = read_gif(path)
    assert frames.shape == (6, 48, 2 * 64, 3)  # states 0, 4, ..., 16 and the end
    left, right = frames[:, :, :64], frames[:, :, 64:]
    assert (right[3] == right[4]).all()
    assert (right[3] == right[5]).all()
    assert not (left[3] == left[4]).all()
    assert written[0] == ["one", "step 0", "return 0.0"]
    assert written[-1] == ["one", "step 20", "return 10.0"]
    assert ["two", "step 9", "return 4.5"] in written
    assert all(made.closed for made in stand_in.made)


def test_a_reel_of_saved_agents_by_their_step(tmp_path: Path, gl: None) -> None:
    long, short = (
        train(tmp_path / "runs", "sac", env_id="InvertedPendulum-v5", total_timesteps=total,
              eval_interval=total, eval_episodes=1)
        for total in (60, 30)
    )  # fmt: skip
    path = tmp_path / "a.gif"
    size = ("--record-width", 80, "--record-height", 64)
    more = ("--record-path", path, "--record-frame-skip", 1, "--seed", 3)
    answer = polyak_cli("enjoy", long.path, short.path, *more, *size)
    assert answer.code == 0, answer.err
    seeds = models.seeds(polyak.load(long.path), 1, 3)
    env = Environment("InvertedPendulum-v5")
    played = [evaluate(polyak.load(run.path).policy(), env, seeds).returns for run in (short, long)]
    assert answer.out.splitlines() == [
        f"recorded={path}",
        f"sac after 30: returns={played[0][0]:.2f}",
        f"sac after 60: returns={played[1][0]:.2f}",
    ]
    frames, _ = read_gif(path)
    assert frames.shape[1:] == (64, 160, 3)
    assert all(half.std(axis=0).max() > 10 for half in (frames[:, :, :80], frames[:, :, 80:]))


def test_agents_of_different_tasks_are_refused(
    trained: dict[str, Run], tmp_path: Path, here: Path
) -> None:
    other = train(tmp_path / "other", env_id="toys/Const-v0")
    paths = (trained["ddpg"].path, other.path)
    answer = polyak_cli("enjoy", *paths, "--record-path", "a.gif", "--trust-env")
    assert "of one task" in answer.line
    assert "add --record-path" in polyak_cli("enjoy", *paths).line
    assert "no saved agent in nowhere" in (
        polyak_cli("enjoy", paths[0], "nowhere", "--record-path", "a.gif").line
    )
    assert "add --trust-env" in (
        polyak_cli("enjoy", trained["td3"].path, paths[0], "--record-path", "a.gif").line
    )
    assert not list(here.iterdir())


def test_flags_reach_the_recording(
    trained: dict[str, Run], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(recording, "record", lambda *_, **options: given.update(options) or [1.0])
    flags = "--record-width 64 --record-height 48 --record-camera track --record-label"
    flags += " --record-path a.gif --record-fps 5 --record-frame-skip 3 --trust-env"
    assert polyak_cli("enjoy", trained["ddpg"].path, *flags.split()).code == 0
    assert given.pop("seeds")
    assert given == {
        "width": 64, "height": 48, "camera": "track", "label": True, "fps": 5, "frame_skip": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--record-width 64", "--record-width needs --record-path"),
        ("--record-label", "--record-label needs --record-path"),
        ("--record-camera track", "--record-camera needs --record-path"),
        ("--record-path a.gif --record-width 0", "--record-width: must be at least 1"),
        ("--record-path a.gif --record-height 5000", "--record-height: must be at most 4096"),
        ("--record-path a.gif --record-camera front", "no camera 'front': choose from none"),
    ],
)
def test_slips_are_one_line(here: Path, trained: dict[str, Run], flags: str, reason: str) -> None:
    answer = polyak_cli("enjoy", trained["ddpg"].path, "--trust-env", *flags.split())
    assert reason in answer.line
    assert not list(here.iterdir())


def test_a_wider_floor_changes_pictures_and_nothing_else(tmp_path: Path, gl: None) -> None:
    def jump(obs: np.ndarray) -> np.ndarray:
        return np.sin(obs[:3] * 7).astype(np.float32)

    size: dict[str, Any] = {"width": 64, "height": 64}
    returns = recording.record(jump, "Hopper-v5", tmp_path / "a.gif", seeds=[1, 2], **size)
    assert returns == evaluate(jump, Environment("Hopper-v5"), [1, 2]).returns
    for env_id, wider in (("Hopper-v5", 20 * recording.WIDER), ("polyak/Pusher-v5", 1)):
        env = Environment(env_id, render_mode="rgb_array", **size)
        try:
            env.reset(1)
            recording.start_rendering(env)
            model: Any = getattr(env.unwrapped, "model")  # noqa: B009 - of MuJoCo's tasks alone
            assert wider in model.geom_size[:, 0]
        finally:
            recording.stop_rendering(env)


def test_a_frame_skip_that_cannot_be(tmp_path: Path, stand_in: type[StandIn]) -> None:
    with pytest.raises(PolyakError, match="use 1 to keep every frame"):
        recording.reel({"one": idle}, "X", tmp_path / "a.gif", seeds=[0], frame_skip=0)
    assert not stand_in.made
