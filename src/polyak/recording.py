"""Videos of an agent: which OpenGL library draws the frames, and how frames become a GIF or an MP4.

Rendering depends on system libraries that may be absent. Whatever goes wrong there is a
`PolyakError` of one line, so that a caller with better things to do can note it and go on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import GifImagePlugin, Image

from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.evaluation import evaluate

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
    viewer = getattr(getattr(environment.unwrapped, "mujoco_renderer", None), "viewer", None)
    if viewer is not None:
        viewer.make_context_current()
        viewer.con.free()
    environment.close()


class VideoWriter:
    """Writes frames to a .gif or .mp4 one by one, holding none of them.

    A context manager: leaving it puts the finished file in its place in one move, leaving it by an
    exception removes what there was. Without a frame there is no file.

    Args:
        path: its folder is made if need be.
        fps: frames per second; a GIF is shown at 50 at most.

    Raises:
        PolyakError: another suffix, a frame rate that cannot be, no imageio-ffmpeg for MP4, or a
            file that cannot be written, which is tried at once.
    """

    def __init__(self, path: str | Path, fps: float = 20) -> None:
        self.path = Path(path)
        self.frames = 0
        suffix = self.path.suffix.lower()
        if suffix not in (".gif", ".mp4"):
            raise PolyakError(f"cannot record to {self.path}: name a .gif or an .mp4 file")
        if not 0 < fps <= (50 if suffix == ".gif" else 1000):
            raise PolyakError(f"cannot play {self.path} at {fps} frames per second: use 1 to 50")
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._encoder = (_GIF if suffix == ".gif" else _MP4)(self._part, fps)
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame (height, width, 3) uint8; all are of one size."""
        try:
            self._encoder.add(frame)
        except OSError as error:
            raise self._unwritable(error) from error
        self.frames += 1

    def close(self) -> None:
        """Finishes the file and moves it to `path`."""
        if not self.frames:
            return self.abort()
        try:
            self._encoder.close()
            self._part.replace(self.path)
        except OSError as error:
            self.abort()
            raise self._unwritable(error) from error

    def abort(self) -> None:
        """Gives up and removes the unfinished file."""
        self._encoder.abort()
        self._part.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> PolyakError:
        return PolyakError(f"cannot write {self.path}: {error.strerror or error}")

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class _GIF:
    """GIF89a, looped. Pillow's own `save` keeps all frames in memory; only its compressor is used.

    One palette serves all frames, without dithering: what does not move keeps its exact colour, so
    that only the rectangle around the changes is stored, and in it only the changed pixels.
    """

    UNCHANGED = 255  # the palette index that lets the frame before show through

    def __init__(self, path: Path, fps: float) -> None:
        self._fps = fps
        self._file = path.open("wb")
        self._shown: np.ndarray | None = None  # (H, W) palette indices
        self._count = 0

    def add(self, frame: np.ndarray) -> None:
        image = Image.fromarray(frame)
        if self._shown is None:
            self._write_header(image)
        indices = np.asarray(image.quantize(palette=self._palette, dither=Image.Dither.NONE))
        changed = np.ones_like(indices, bool) if self._shown is None else indices != self._shown
        self._shown = indices
        rows, columns = (np.flatnonzero(changed.any(axis=axis)) for axis in (1, 0))
        if not rows.size:  # one transparent pixel, so that the frame still takes its time
            rows = columns = np.zeros(1, int)
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        patch = Image.fromarray(np.where(changed, indices, np.uint8(self.UNCHANGED))[box])
        # GIF counts hundredths of a second; differences of rounded times keep the sum right.
        times = [round(100 * n / self._fps) for n in (self._count, self._count + 1)]
        self._count += 1
        for block in GifImagePlugin.getdata(
            patch,
            (int(columns[0]), int(rows[0])),
            duration=10 * (times[1] - times[0]),  # milliseconds
            transparency=self.UNCHANGED,
            disposal=1,  # keep this frame under the next
        ):
            self._file.write(block)

    def _write_header(self, first: Image.Image) -> None:
        """Palette: 191 colours of the first frame, and a coarse cube for what enters later."""
        colours = (first.quantize(191, dither=Image.Dither.NONE).getpalette() or [])[: 3 * 191]
        levels = (0, 85, 170, 255)
        colours += [c for r in levels for g in levels for b in levels for c in (r, g, b)]
        self._palette = Image.new("P", (1, 1))
        self._palette.putpalette(colours)
        size = first.width.to_bytes(2, "little") + first.height.to_bytes(2, "little")
        self._file.write(b"GIF89a" + size + b"\xf7\x00\x00")  # a table of 256 colours follows
        self._file.write(bytes(colours).ljust(3 * 256, b"\x00"))
        self._file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")  # repeat for ever

    def close(self) -> None:
        self._file.write(b";")
        self._file.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # a full disk, which `add` has reported
            self._file.close()


class _MP4:
    """H.264 through the ffmpeg that comes with imageio-ffmpeg."""

    def __init__(self, path: Path, fps: float) -> None:
        try:
            self._exe: str = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        except (ImportError, RuntimeError) as error:
            raise PolyakError('MP4 needs ffmpeg: pip install "polyak[video]"') from error
        path.touch()  # fails now rather than after the first episode
        self._path = path
        self._fps = fps
        self._ffmpeg: Any = None  # a process, once the first frame has told the size

    def add(self, frame: np.ndarray) -> None:
        # Colour is stored once for 2 x 2 pixels: an odd last row or column goes.
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
        if self._ffmpeg is None:
            self._ffmpeg = self._start(width, height)
        try:
            self._ffmpeg.stdin.write(frame[:height, :width].tobytes())
        except BrokenPipeError:
            self.close()  # raises ffmpeg's own words

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self._fps} -i -"
        # "faststart": the index comes first, so that a browser plays while it loads.
        target = "-c:v libx264 -pix_fmt yuv420p -crf 20 -movflags +faststart -f mp4"
        return subprocess.Popen(
            [self._exe, "-y", "-loglevel", "error", *source.split(), *target.split(), self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def close(self) -> None:
        _, complaint = self._ffmpeg.communicate()
        if self._ffmpeg.returncode != 0:
            lines = complaint.decode(errors="replace").splitlines() or ["no reason given"]
            raise OSError(f"ffmpeg stopped: {lines[-1]}")

    def abort(self) -> None:
        if self._ffmpeg is not None:
            self._ffmpeg.kill()
            self._ffmpeg.communicate()
