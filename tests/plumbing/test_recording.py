"""Videos: what is in the file, what never stays behind, and one line for whatever goes wrong."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
from PIL import Image, ImageSequence

from polyak import recording
from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.recording import choose_gl_backend, record
from polyak.video import VideoWriter


def square(position: int, height: int = 48, width: int = 64) -> np.ndarray:
    """A red square on a grey ramp, (height, width, 3) uint8."""
    frame = np.empty((height, width, 3), np.uint8)
    frame[:] = np.linspace(40, 200, width, dtype=np.uint8)[None, :, None]
    frame[10:20, position : position + 10] = (220, 30, 30)
    return frame


class StandIn:
    """An environment that moves a square one pixel a step and truncates after 20 steps."""

    made: ClassVar[list[StandIn]] = []

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        self.unwrapped = SimpleNamespace()
        self.time, self.closed = 0, False
        self.made.append(self)

    def reset(self, seed: int) -> np.ndarray:
        self.time = 0
        return np.zeros(3, np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self.time += 1
        return np.full(3, self.time, np.float32), 0.5, False, self.time == 20

    def render(self) -> np.ndarray:
        return square(self.time)

    def close(self) -> None:
        self.closed = True


def idle(obs: np.ndarray) -> np.ndarray:
    return np.zeros(1, np.float32)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    monkeypatch.setattr(recording, "Environment", StandIn)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    StandIn.made = []
    return StandIn


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No display and nothing chosen; what a test chooses is undone after it."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def gl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A working OpenGL library, or the test is skipped."""
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    try:
        choose_gl_backend()
    except PolyakError as error:
        pytest.skip(str(error))


def read_gif(path: Path) -> tuple[np.ndarray, int]:
    """Frames (T, H, W, 3) and the total time in milliseconds."""
    with Image.open(path) as image:
        shown = [
            (np.asarray(f.convert("RGB")), f.info["duration"])
            for f in ImageSequence.Iterator(image)
        ]
    return np.stack([frame for frame, _ in shown]), sum(time for _, time in shown)


def read_mp4(path: Path) -> tuple[np.ndarray, str]:
    """Frames (T, H, W, 3) and what ffmpeg says of the file."""
    exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [exe, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    ffmpeg = subprocess.run(command, capture_output=True, check=True)
    about = ffmpeg.stderr.decode()
    found = re.search(r"Video: .* (\d+)x(\d+)", about)
    assert found is not None
    width, height = map(int, found.groups())
    return np.frombuffer(ffmpeg.stdout, np.uint8).reshape(-1, height, width, 3), about


def write(path: Path, frames: list[np.ndarray], fps: float = 20) -> None:
    with VideoWriter(path, fps) as video:
        for frame in frames:
            video.add(frame)


def one_line(error: pytest.ExceptionInfo[PolyakError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# What is in the file


def test_gif_shows_every_change_for_its_time(tmp_path: Path) -> None:
    sent = [square(position) for position in (0, 0, 3, 6, 6, 9, 12)]  # two stand still
    write(tmp_path / "a.gif", sent, fps=20)
    seen, milliseconds = read_gif(tmp_path / "a.gif")
    moved = [sent[index] for index in (0, 2, 3, 5, 6)]  # equal frames become one, shown longer
    assert seen.shape == (5, 48, 64, 3)
    assert milliseconds == 7 * 50
    np.testing.assert_allclose(seen, moved, atol=4)  # no trace of where the square was before


def test_gif_keeps_the_length_at_rates_that_hundredths_cannot_express(tmp_path: Path) -> None:
    write(tmp_path / "a.gif", [square(position) for position in range(30)], fps=30)
    assert read_gif(tmp_path / "a.gif")[1] == 1000


@pytest.mark.parametrize("colour", [(0, 85, 255), (0, 0, 0), (255, 255, 255)])
def test_gif_shows_colours_that_the_first_frame_lacks(
    tmp_path: Path, colour: tuple[int, int, int]
) -> None:
    plain = np.full((48, 64, 3), colour, np.uint8)
    write(tmp_path / "a.gif", [square(0), plain])
    np.testing.assert_array_equal(read_gif(tmp_path / "a.gif")[0][1], plain)


def test_gif_of_little_movement_is_small(tmp_path: Path) -> None:
    write(tmp_path / "a.gif", [square(t % 50, 480, 480) for t in range(125)])
    assert (tmp_path / "a.gif").stat().st_size < 100_000


def test_mp4_is_h264_of_even_size(tmp_path: Path) -> None:
    sent = [square(position, 49, 65) for position in range(0, 50, 2)]
    write(tmp_path / "a.mp4", sent, fps=25)
    seen, about = read_mp4(tmp_path / "a.mp4")
    assert seen.shape == (25, 48, 64, 3)
    for fact in ("Duration: 00:00:01.00", "Video: h264", "yuv420p", "25 fps"):
        assert fact in about
    assert np.abs(seen.astype(int) - np.stack(sent)[:, :48, :64]).mean() < 8


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_record_keeps_every_nth_state_of_every_episode(
    tmp_path: Path, stand_in: type[StandIn], suffix: str
) -> None:
    path = tmp_path / "new" / "folder" / f"a.{suffix}"
    assert record(idle, "X", path, seeds=[0, 1], frame_skip=8) == [10.0, 10.0]
    frames = read_gif(path)[0] if suffix == "gif" else read_mp4(path)[0]
    assert len(frames) == 2 * 3  # states 0, 8 and 16 of 20
    assert frames.std(axis=0).max() > 0
    assert stand_in.made[0].closed
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# What never stays behind


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_failed_recording_leaves_the_old_file(
    tmp_path: Path, stand_in: type[StandIn], suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text("old")

    def fail_later(obs: np.ndarray) -> np.ndarray:
        if obs[0] == 10:
            raise ZeroDivisionError
        return idle(obs)

    with pytest.raises(ZeroDivisionError):
        record(fail_later, "X", path, seeds=[0])
    assert stand_in.made[0].closed
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_no_frame_no_file(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.gif"), VideoWriter(tmp_path / "a.mp4"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_thirty_recordings_leak_neither_descriptors_nor_memory(tmp_path: Path, gl: None) -> None:
    def held() -> tuple[int, float]:
        gc.collect()
        megabytes = psutil.Process().memory_info().rss / 1e6
        return len(list(Path("/proc/self/fd").iterdir())), megabytes

    for n in range(30):
        suffix = "mp4" if n % 3 == 0 else "gif"
        record(idle, "InvertedPendulum-v5", tmp_path / f"{n}.{suffix}", seeds=[n], width=64)
        if n == 3:  # MuJoCo opens and takes some once for all
            descriptors, memory = held()
    assert held()[0] == descriptors
    assert held()[1] - memory < 15  # 26 recordings; a picture's buffers alone are 2 MB


# MuJoCo


def test_mujoco_frames_move_and_are_cheap(tmp_path: Path, gl: None) -> None:
    path = tmp_path / "a.gif"
    size: dict[str, Any] = {"width": 96, "height": 80}
    (episodic_return,) = record(idle, "Hopper-v5", path, seeds=[3], frame_skip=4, **size)
    frames, _ = read_gif(path)
    assert frames.shape[1:] == (80, 96, 3)
    assert frames.std(axis=0).max() > 10
    environment = Environment("Hopper-v5", render_mode="rgb_array", **size)
    try:
        environment.reset(seed=3)
        recording.start_rendering(environment)
        np.testing.assert_allclose(environment.render().mean(), frames[0].mean(), atol=2)
        mujoco = pytest.importorskip("mujoco")
        task: Any = environment.unwrapped
        renderer = task.mujoco_renderer
        assert not renderer.viewer.scn.flags[mujoco.mjtRndFlag.mjRND_SHADOW]
        assert not renderer.viewer.scn.flags[mujoco.mjtRndFlag.mjRND_REFLECTION]
        assert renderer.viewer.con.offSamples == 0
    finally:
        recording.stop_rendering(environment)
    assert episodic_return > 0


def test_environment_collected_late_does_not_blacken_the_next(gl: None) -> None:
    def start() -> Environment:
        environment = Environment("Hopper-v5", render_mode="rgb_array", width=64, height=64)
        environment.reset(seed=0)
        recording.start_rendering(environment)
        return environment

    first = start()
    recording.stop_rendering(first)
    second = start()
    bright = second.render().mean()
    del first
    gc.collect()
    try:
        assert second.render().mean() == bright > 0
    finally:
        recording.stop_rendering(second)


def test_unknown_camera_names_those_there_are(tmp_path: Path, gl: None) -> None:
    with pytest.raises(PolyakError) as error:
        record(idle, "Hopper-v5", tmp_path / "a.gif", seeds=[0], camera="front")
    assert one_line(error) == "no camera 'front': choose from track"


# Which OpenGL library


@pytest.mark.parametrize(
    ("variables", "working", "chosen", "tried"),
    [
        ({}, {"glfw", "egl", "osmesa"}, "egl", ["egl"]),
        ({}, {"osmesa"}, "osmesa", ["egl", "osmesa"]),
        ({"DISPLAY": ":0"}, {"glfw", "egl"}, "glfw", ["glfw"]),
        ({"DISPLAY": ":0"}, {"egl"}, "egl", ["glfw", "egl"]),  # a display without a server
        ({"WAYLAND_DISPLAY": "wayland-0"}, {"glfw"}, "glfw", ["glfw"]),
        ({"MUJOCO_GL": " OSMesa", "DISPLAY": ":0"}, {"glfw", "osmesa"}, "osmesa", ["osmesa"]),
    ],
)
def test_backend_is_the_asked_one_or_the_first_that_works(
    monkeypatch: pytest.MonkeyPatch,
    headless: None,
    variables: dict[str, str],
    working: set[str],
    chosen: str,
    tried: list[str],
) -> None:
    calls: list[str] = []

    def works(backend: str) -> bool:
        calls.append(backend)
        return backend in working

    monkeypatch.setattr(recording, "_works", works)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert choose_gl_backend() == chosen == os.environ["MUJOCO_GL"]
    assert calls == tried
    assert os.environ["PYOPENGL_PLATFORM"] == ("" if chosen == "glfw" else chosen)


def test_without_any_library_the_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, headless: None
) -> None:
    monkeypatch.setattr(recording, "_works", lambda backend: False)
    with pytest.raises(PolyakError) as error:
        choose_gl_backend()
    assert "libegl1 libgl1-mesa-dri" in one_line(error)
    assert "MUJOCO_GL" in one_line(error)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(PolyakError, match="MUJOCO_GL=osmesa cannot render here"):
        choose_gl_backend()


def test_a_backend_that_cannot_be_loaded_is_noticed_in_a_child(headless: None) -> None:
    assert not recording._works("nonsense")
    assert os.environ["MUJOCO_GL"] == ""


def test_window_without_a_display_is_refused(
    monkeypatch: pytest.MonkeyPatch, headless: None
) -> None:
    with pytest.raises(PolyakError) as error:
        choose_gl_backend("human")
    assert "--record-path" in one_line(error)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(recording, "_works", lambda backend: backend == "glfw")
    assert choose_gl_backend("human") == "glfw"


# One line for whatever goes wrong


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ('pygame is not installed, run `pip install "x"`', "gymnasium[classic-control]"),
        ("no\nGL\ntoday", "cannot render: no GL today"),
    ],
)
def test_first_frame_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stand_in: type[StandIn],
    problem: str,
    remedy: str,
) -> None:
    def render(self: StandIn) -> np.ndarray:
        raise RuntimeError(problem)

    monkeypatch.setattr(StandIn, "render", render)
    with pytest.raises(PolyakError) as error:
        record(idle, "X", tmp_path / "a.gif", seeds=[0])
    assert remedy in one_line(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.avi", "a", "gif"])
def test_other_suffixes_are_refused_before_anything_is_played(
    tmp_path: Path, stand_in: type[StandIn], name: str
) -> None:
    with pytest.raises(PolyakError) as error:
        record(idle, "X", tmp_path / name, seeds=[0])
    assert one_line(error).endswith("name a .gif or an .mp4 file")
    assert not stand_in.made


@pytest.mark.parametrize("options", [{"fps": 0}, {"fps": 60}, {"frame_skip": 0}])
def test_numbers_that_cannot_be_are_refused(
    tmp_path: Path, stand_in: type[StandIn], options: dict[str, Any]
) -> None:
    with pytest.raises(PolyakError) as error:
        record(idle, "X", tmp_path / "a.gif", seeds=[0], **options)
    assert "use 1" in one_line(error)


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_folder_that_cannot_be_written(
    tmp_path: Path, stand_in: type[StandIn], suffix: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolyakError) as error:
        record(idle, "X", tmp_path / "file" / f"a.{suffix}", seeds=[0])
    assert one_line(error).startswith("cannot write ")
    assert not stand_in.made


def test_mp4_without_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(PolyakError) as error:
        VideoWriter(tmp_path / "a.mp4")
    assert 'pip install "polyak[video]"' in one_line(error)


def test_mp4_when_ffmpeg_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg = SimpleNamespace(get_ffmpeg_exe=lambda: "false")  # the program, which exits with 1
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", ffmpeg)
    with pytest.raises(PolyakError) as error:
        write(tmp_path / "a.mp4", [square(0, 480, 480)] * 20)
    assert "ffmpeg stopped" in one_line(error)
    assert not list(tmp_path.iterdir())


def test_training_is_filmed_on_a_schedule(tmp_path: Path) -> None:
    environment = recording.FilmedEnvironment("Hopper-v5", tmp_path / "a {b}", interval=60)
    try:
        environment.reset(seed=1)
        for _ in range(150):
            _, _, terminated, truncated = environment.step(np.zeros(3, np.float32))
            if terminated or truncated:
                environment.reset()
    finally:
        environment.close()
    films = sorted(int(re.findall(r"\d+", p.stem)[0]) for p in (tmp_path / "a {b}").iterdir())
    assert films[0] == 0
    assert len(films) in (2, 3)
    assert all(later - earlier >= 60 for earlier, later in pairwise(films))


def test_a_run_that_goes_on_films_what_is_still_due(tmp_path: Path) -> None:
    environment = recording.FilmedEnvironment("Hopper-v5", tmp_path, interval=60, begun=100)
    try:
        environment.reset(seed=1)
        for _ in range(250):
            _, _, terminated, truncated = environment.step(np.zeros(3, np.float32))
            if terminated or truncated:
                environment.reset()
    finally:
        environment.close()
    films = [int(re.findall(r"\d+", path.stem)[0]) for path in tmp_path.iterdir()]
    assert films
    assert min(films) >= 120


def test_filming_that_fails_ends_the_filming_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise PolyakError("no OpenGL here")

    monkeypatch.setattr(recording, "start_rendering", broken)
    environment = recording.FilmedEnvironment("Hopper-v5", tmp_path, interval=1)
    with pytest.warns(UserWarning, match="no more videos of training: no OpenGL here"):
        environment.reset(seed=1)
    environment.step(np.zeros(3, np.float32))
    environment.reset()
    environment.close()
    assert not list(tmp_path.iterdir())
