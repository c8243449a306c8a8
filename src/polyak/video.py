"""Frames to a GIF or an MP4."""

from __future__ import annotations

import importlib
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

from polyak.errors import PolyakError


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


def as_gif(path: Path) -> bytes:
    """A video as a small GIF: one that is GIF already as it is, an MP4 at 10 frames a second.

    Raises:
        PolyakError: the file cannot be read, or ffmpeg is missing.
    """
    try:
        if path.suffix.lower() == ".gif":
            return path.read_bytes()
        # One palette, made of all frames.
        palette = "fps=10,scale=200:-1,split[a][b];[a]palettegen[p];[b][p]paletteuse=dither=none"
        command = [
            _ffmpeg(),
            "-loglevel",
            "error",
            "-i",
            str(path),
            "-vf",
            palette,
            "-f",
            "gif",
            "-",
        ]
        done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PolyakError(f"cannot read {path}: {error}") from error
    return done.stdout


def _ffmpeg() -> str:
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise PolyakError('MP4 needs ffmpeg: pip install "polyak[video]"') from error


class _GIF:
    """A looped GIF by Pillow. Frames wait as palette indices, a byte per pixel, until the end.

    One palette serves all frames, without dithering: what does not move keeps its exact colour, and
    Pillow stores only what changed.
    """

    def __init__(self, path: Path, fps: float) -> None:
        path.touch()  # fails now rather than after the first episode
        self._path = path
        self._fps = fps
        self._images: list[Image.Image] = []

    def add(self, frame: np.ndarray) -> None:
        image = Image.fromarray(frame)
        if not self._images:
            self._palette = _palette(image)
        self._images.append(image.quantize(palette=self._palette, dither=Image.Dither.NONE))

    def close(self) -> None:
        first, *rest = self._images
        # GIF counts hundredths of a second; differences of rounded times keep the sum right.
        ends = [round(100 * (n + 1) / self._fps) for n in range(len(self._images))]
        durations = [10 * (end - begin) for begin, end in pairwise([0, *ends])]  # milliseconds
        first.save(self._path, "GIF", save_all=True, append_images=rest, duration=durations, loop=0)

    def abort(self) -> None:
        self._images.clear()


def _palette(first: Image.Image) -> Image.Image:
    """191 colours of the first frame, and a coarse cube for what enters later."""
    colours = (first.quantize(191, dither=Image.Dither.NONE).getpalette() or [])[: 3 * 191]
    levels = (0, 85, 170, 255)
    colours += [c for r in levels for g in levels for b in levels for c in (r, g, b)]
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours)
    return palette


class _MP4:
    """H.264 through the ffmpeg that comes with imageio-ffmpeg."""

    def __init__(self, path: Path, fps: float) -> None:
        self._exe = _ffmpeg()
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
