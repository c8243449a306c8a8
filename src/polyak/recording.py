"""Pictures of an agent: which OpenGL library draws them, and what is filmed when.

Rendering depends on system libraries that may be absent. Whatever goes wrong there is a
`PolyakError` of one line, so that a caller with better things to do can note it and go on.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.evaluation import evaluate
from polyak.video import VideoWriter

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
    act: Callable[[np.ndarray], np.ndarray],
    env_id: str,
    path: str | Path,
    *,
    seeds: Iterable[int],
    fps: float = 20,
    frame_skip: int = 8,
    width: int = 480,
    height: int = 480,
    camera: str | None = None,
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

    Returns the undiscounted episode returns, in the order of the seeds.

    Raises:
        PolyakError: from `VideoWriter`, `start_rendering` or the environment.
    """
    if frame_skip < 1:
        raise PolyakError(f"frame skip is {frame_skip}: use 1 to keep every frame, or more")
    returns: list[float] = []
    with VideoWriter(path, fps) as video:
        environment = Environment(env_id, render_mode="rgb_array", width=width, height=height)
        try:
            for seed in seeds:
                obs = environment.reset(seed)
                if not returns:
                    start_rendering(environment, camera)
                step, episodic_return, over = 0, 0.0, False
                while not over:
                    if step % frame_skip == 0:
                        video.add(environment.render())
                    obs, reward, terminated, truncated = environment.step(act(obs))
                    episodic_return += reward
                    over = terminated or truncated
                    step += 1
                returns.append(episodic_return)
        finally:
            stop_rendering(environment)
    return returns


def watch(
    act: Callable[[np.ndarray], np.ndarray], env_id: str, *, seeds: Iterable[int]
) -> list[float]:
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


def stop_rendering(environment: Environment) -> None:
    """Frees what MuJoCo holds in OpenGL, then closes the environment.

    Gymnasium leaves the former to the garbage collector. By then another environment's context may
    be current, whose buffers have the same numbers: they would go instead, and its frames be black.
    """
    free_rendering(environment)
    environment.close()


def free_rendering(environment: Environment) -> None:
    """Frees what MuJoCo holds in OpenGL; see `stop_rendering`."""
    viewer = getattr(getattr(environment.unwrapped, "mujoco_renderer", None), "viewer", None)
    if viewer is not None:
        viewer.make_context_current()
        viewer.con.free()
