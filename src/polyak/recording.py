"""Pictures of an agent: which OpenGL library draws them, and what is filmed when.

Rendering depends on system libraries that may be absent. Whatever goes wrong there is a
`PolyakError` of one line, so that a caller with better things to do can note it and go on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.evaluation import Policy, evaluate
from polyak.video import VideoWriter

WIDER = 50
"""Times by which a floor is drawn wider: a fast HalfCheetah has left its own after 8 seconds."""

FLOOR = 10.0
"""Metres of half a side from which a plane is a floor, and no table."""

PACKAGES = "apt-get install libegl1 libgl1-mesa-dri"

# What Gymnasium does before its first frame: make a context, then load OpenGL's functions into it.
_TRIAL = """
import importlib, os, mujoco
context = importlib.import_module("mujoco." + os.environ["MUJOCO_GL"]).GLContext(64, 64)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100)
"""


def choose_gl_backend(mode: str = "rgb_array") -> str:
    """Chooses MuJoCo's OpenGL backend and sets MUJOCO_GL; call it before the first frame.

    For mode "rgb_array": MUJOCO_GL if it is set, else the first that works of GLFW (only with a
    display), EGL and OSMesa. Mode "human" opens a window, which takes GLFW and a display. The
    first call in a process tries the choice out, up to a second; later calls are free.

    Returns "glfw", "egl" or "osmesa".

    Raises:
        PolyakError: a window without a display (GLFW would abort the process), a MUJOCO_GL that
            does not work, or nothing that does.
    """
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    if mode == "human":
        problem = "no display to open a window on: use --record-path FILE.gif instead"
        candidates = ["glfw"] if _has_display() else []
    elif asked:
        problem = f"MUJOCO_GL={asked} cannot render here: unset it, or set glfw, egl or osmesa"
        candidates = [asked]
    else:
        problem = f"no OpenGL library can render here: {PACKAGES} (or choose one with MUJOCO_GL)"
        candidates = ["glfw", "egl", "osmesa"] if _has_display() else ["egl", "osmesa"]
    for backend in candidates:
        if _works(backend):
            os.environ.update(_gl_variables(backend))
            return backend
    raise PolyakError(problem)


def _has_display() -> bool:
    variables = ("DISPLAY", "WAYLAND_DISPLAY")
    return not sys.platform.startswith("linux") or any(map(os.environ.get, variables))


def _gl_variables(backend: str) -> dict[str, str]:
    # MuJoCo refuses EGL and OSMesa if PyOpenGL has been told to use anything else.
    platform = {} if backend == "glfw" else {"PYOPENGL_PLATFORM": backend}
    return {"MUJOCO_GL": backend, **platform}


@functools.cache
def _works(backend: str) -> bool:
    """Tries a backend out in a child: in one process, trying another after a failure aborts Python.

    Only drawing tells: a library may be present without a driver, a display named without a server.
    """
    try:
        trial = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL],
            env={**os.environ, **_gl_variables(backend)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0


def record(
    act: Policy,
    env_id: str,
    path: str | Path,
    *,
    seeds: Iterable[int],
    fps: float = 20,
    frame_skip: int = 8,
    width: int = 480,
    height: int = 480,
    camera: str | None = None,
    label: bool = False,
) -> list[float]:
    """Plays one episode per seed and writes them all to one video.

    Args:
        act: observation (O,) float32 -> action (A,) in [-1, 1].
        env_id: the task.
        path: .gif or .mp4; it appears when the last episode is over, whole or not at all.
        seeds: one for each episode.
        fps: frames per second of video.
        frame_skip: of the states before each environment step, every `frame_skip`-th is shown.
        width: pixels, for MuJoCo environments; others have a size of their own.
        height: likewise.
        camera: see `start_rendering`.
        label: write step and return into the picture, and hold the end of each episode a second.

    Returns the undiscounted episode returns, in the order of the seeds.

    Raises:
        PolyakError: from `VideoWriter`, `start_rendering` or the environment.
    """
    size = {"width": width, "height": height}
    with _stage(path, fps, frame_skip, {"": act}, env_id, size, camera) as (video, (player,)):
        returns = []
        for seed in seeds:
            player.begin(seed)
            _film(video, [player], frame_skip, hold=round(fps) if label else 0, label=label)
            returns.append(player.episodic_return)
    return returns


def reel(
    policies: Mapping[str, Policy],
    env_id: str,
    path: str | Path,
    *,
    seeds: Iterable[int],
    fps: float = 20,
    frame_skip: int = 8,
    width: int = 240,
    height: int = 240,
    camera: str | None = None,
) -> dict[str, list[float]]:
    """Plays several policies side by side from the same first states: how an agent got better.

    Each picture says whose it is, and its step and return. Who is done early stands still until the
    last one is; then the end is held for a second.

    Args:
        policies: by what is written into their pictures, from left to right.
        env_id: the task of them all.
        path: see `record`, as for all that follows; width and height are those of one picture.
        seeds: one for each episode of all.
        fps: see `record`.
        frame_skip: see `record`.
        width: see `record`.
        height: see `record`.
        camera: see `record`.

    Returns the episode returns of each policy, in the order of the seeds.

    Raises:
        PolyakError: see `record`.
    """
    size = {"width": width, "height": height}
    with _stage(path, fps, frame_skip, policies, env_id, size, camera) as (video, players):
        returns: dict[str, list[float]] = {player.name: [] for player in players}
        for seed in seeds:
            for player in players:
                player.begin(seed)
            _film(video, players, frame_skip, hold=round(fps), label=True)
            for player in players:
                returns[player.name].append(player.episodic_return)
    return returns


@contextlib.contextmanager
def _stage(
    path: str | Path,
    fps: float,
    frame_skip: int,
    policies: Mapping[str, Policy],
    env_id: str,
    size: dict[str, int],
    camera: str | None,
) -> Iterator[tuple[VideoWriter, list[_Player]]]:
    """A video to write and a player for each policy, all of which end with the context."""
    if frame_skip < 1:
        raise PolyakError(f"frame skip is {frame_skip}: use 1 to keep every frame, or more")
    with VideoWriter(path, fps) as video, contextlib.ExitStack() as stack:
        players = []
        for name, act in policies.items():
            environment = Environment(env_id, render_mode="rgb_array", **size)
            stack.callback(stop_rendering, environment)
            players.append(_Player(name, act, environment, camera))
        yield video, players


class _Player:
    """A policy in an environment that is drawn, one episode after another."""

    def __init__(
        self, name: str, act: Policy, environment: Environment, camera: str | None
    ) -> None:
        self.name = name
        self._act, self._environment, self._camera = act, environment, camera
        self._ready = False

    def begin(self, seed: int) -> None:
        """Begins an episode."""
        self._obs = self._environment.reset(seed)
        self.step, self.episodic_return, self.over = 0, 0.0, False
        self._last: np.ndarray | None = None
        if not self._ready:
            start_rendering(self._environment, self._camera)
            self._ready = True

    def advance(self) -> None:
        """One step, unless the episode is over."""
        if self.over:
            return
        action = self._act(self._obs)
        self._obs, reward, terminated, truncated = self._environment.step(action)
        self.episodic_return += reward
        self.over = terminated or truncated
        self.step += 1

    def picture(self, *, label: bool) -> np.ndarray:
        """The present state (height, width, 3) uint8; that of an episode that is over stays."""
        if self._last is not None:
            return self._last
        viewer = _viewer(self._environment)
        if viewer is not None:  # another player's may be the current one
            viewer.make_context_current()
        frame = self._environment.render()
        if label:
            lines = [f"step {self.step}", f"return {self.episodic_return:.1f}"]
            frame = with_text(frame, [self.name] * bool(self.name) + lines)
        if self.over:
            self._last = frame
        return frame


def _film(
    video: VideoWriter, players: list[_Player], frame_skip: int, *, hold: int, label: bool
) -> None:
    """Films an episode of every player, side by side, and the end of it for `hold` frames."""

    def shoot() -> None:
        video.add(np.concatenate([player.picture(label=label) for player in players], axis=1))

    step = 0
    while not all(player.over for player in players):
        if step % frame_skip == 0:
            shoot()
        for player in players:
            player.advance()
        step += 1
    for _ in range(hold):
        shoot()


def with_text(frame: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """The frame (height, width, 3) uint8 with lines of text in its upper left corner."""
    image = Image.fromarray(frame)
    size = max(frame.shape[0] // 20, 10)  # pixels
    ImageDraw.Draw(image).multiline_text(
        (size // 2, size // 2),
        "\n".join(lines),
        fill=(255, 255, 255),
        font=ImageFont.load_default(size),
        stroke_width=max(size // 10, 1),  # so that it can be read on any ground
        stroke_fill=(0, 0, 0),
    )
    return np.asarray(image)


def watch(act: Policy, env_id: str, *, seeds: Iterable[int]) -> list[float]:
    """Plays one episode per seed in a window; returns the undiscounted episode returns.

    Raises:
        PolyakError: no display, or the environment cannot be built.
    """
    choose_gl_backend("human")
    environment = Environment(env_id, render_mode="human")
    try:
        return evaluate(act, environment, list(seeds)).returns
    finally:
        stop_rendering(environment)


class FilmedEnvironment(Environment):
    """An environment that films some of its episodes, for watching an agent learn.

    Films the first episode and then the first to begin once `interval` steps have passed since the
    last film began: what it costs in time and disk is bounded by the number of films. Whatever goes
    wrong with a picture ends the filming with one warning, never the training.

    Args:
        env_id: the task.
        folder: gets `training-step-N.mp4` (`.gif` without ffmpeg), N this environment's step.
        interval: steps of this environment between films.
        frame_skip: every `frame_skip`-th state is shown.
        most_frames: where a film is cut; an episode may never end.
        begun: steps of this environment that an earlier process took and perhaps filmed.
    """

    def __init__(
        self,
        env_id: str,
        folder: Path,
        interval: int,
        *,
        frame_skip: int = 8,
        most_frames: int = 250,
        begun: int = 0,
    ) -> None:
        super().__init__(env_id, render_mode="rgb_array", width=320, height=320)
        self._folder = folder
        self._suffix = ".mp4" if importlib.util.find_spec("imageio_ffmpeg") else ".gif"
        self._interval, self._frame_skip, self._most = interval, frame_skip, most_frames
        self._steps = begun
        self._next = (begun // interval + 1) * interval if begun else 0
        self._film: VideoWriter | None = None
        self._ready = False

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Begins an episode, and a film if one is due."""
        obs = super().reset(seed)
        self._guard(self._begin)
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """One step; the state before it may be a frame."""
        if self._film is not None:
            self._guard(self._shoot)
        obs, reward, terminated, truncated = super().step(action)
        self._steps += 1
        if self._film is not None and (terminated or truncated):
            self._guard(self._end)
        return obs, reward, terminated, truncated

    def close(self) -> None:
        """Keeps the film of an unfinished episode, then frees the environment."""
        self._guard(self._end)
        free_rendering(self)
        super().close()

    def _begin(self) -> None:
        self._end()
        if self._steps < self._next:
            return
        if not self._ready:
            start_rendering(self)
            self._ready = True
        self._film = VideoWriter(self._folder / f"training-step-{self._steps}{self._suffix}")
        self._first = self._steps
        self._next = self._steps + self._interval

    def _shoot(self) -> None:
        if self._film is None or (self._steps - self._first) % self._frame_skip:
            return
        self._film.add(self.render())
        if self._film.frames >= self._most:
            self._end()

    def _end(self) -> None:
        film, self._film = self._film, None
        if film is not None:
            film.close()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - of any library that draws
            film, self._film = self._film, None
            if film is not None:
                film.abort()
            self._next = sys.maxsize
            warnings.warn(f"no more videos of training: {error}", stacklevel=2)


def start_rendering(environment: Environment, camera: str | None = None) -> None:
    """Readies an environment for `render()`; call it once, after the first reset.

    MuJoCo draws in software where there is no GPU. Shadows, reflections and multisampling, which
    are nearly all of that time, go (480 x 480 HalfCheetah: 64 ms a frame with them, 6 ms without).

    Args:
        environment: made with render_mode="rgb_array".
        camera: a camera of the MuJoCo model, by name; None takes "track", which follows the robot,
            if the model has it, and else the environment's own view.

    Raises:
        PolyakError: no OpenGL library, no pygame, or no such camera.
    """
    task: Any = environment.unwrapped
    renderer: Any = getattr(task, "mujoco_renderer", None)
    if renderer is not None:
        choose_gl_backend()
        task.model.vis.quality.offsamples = 0  # read once, when the first frame makes the buffers
        _widen_floor(task.model)
    elif not _has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame, of the classic-control tasks
    cameras = [task.model.camera(i).name for i in range(task.model.ncam)] if renderer else []
    if camera is None and "track" in cameras:
        camera = "track"  # Gymnasium 1.4 stopped using it, and its runners leave the picture
    if camera is not None:
        if camera not in cameras:
            raise PolyakError(f"no camera {camera!r}: choose from {', '.join(cameras) or 'none'}")
        renderer.camera_id = cameras.index(camera)
    try:
        environment.render()
    except Exception as error:  # of Gymnasium, MuJoCo, PyOpenGL or pygame, with no common base
        reason = " ".join(str(error).split())
        if "pygame" in reason:
            reason = 'pygame is missing: pip install "gymnasium[classic-control]"'
        raise PolyakError(f"cannot render: {reason}") from error
    if renderer is not None:
        flags = importlib.import_module("mujoco").mjtRndFlag
        renderer.viewer.scn.flags[flags.mjRND_SHADOW] = 0
        renderer.viewer.scn.flags[flags.mjRND_REFLECTION] = 0


def _widen_floor(model: Any) -> None:
    """Lets the floor go on where a fast runner would leave it behind; contact has no such edge."""
    types = importlib.import_module("mujoco").mjtGeom
    floors = (model.geom_type == types.mjGEOM_PLANE) & (model.geom_size[:, 0] >= FLOOR)
    for plane in np.flatnonzero(floors):
        model.geom_size[plane, :2] *= WIDER
        if (material := model.geom_matid[plane]) >= 0 and not model.mat_texuniform[material]:
            model.mat_texrepeat[material] *= WIDER


def stop_rendering(environment: Environment) -> None:
    """Frees what MuJoCo holds in OpenGL, then closes the environment.

    Gymnasium leaves the former to the garbage collector. By then another environment's context may
    be current, whose buffers have the same numbers: they would go instead, and its frames be black.
    """
    free_rendering(environment)
    environment.close()


def free_rendering(environment: Environment) -> None:
    """Frees what MuJoCo holds in OpenGL; see `stop_rendering`."""
    viewer = _viewer(environment)
    if viewer is not None:
        viewer.make_context_current()
        viewer.con.free()


def _viewer(environment: Environment) -> Any:
    """What draws a MuJoCo environment, once it has been drawn, or None."""
    return getattr(getattr(environment.unwrapped, "mujoco_renderer", None), "viewer", None)
