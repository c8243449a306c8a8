"""What a run tells TensorBoard: scalars, its settings for the HPARAMS tab, and films of training.

There is no `experiment` event, in which one run would list the settings of all: without it
TensorBoard collects settings and metrics from every run in the folder, and algorithms differ in
theirs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def _torch_left_alone() -> Iterator[None]:
    """Hides PyTorch unless it is loaded: tensorboardX would import it for one type annotation.

    That takes a second and 200 MB, which a run in another library does not need.
    """
    loaded = "torch" in sys.modules
    if not loaded:
        sys.modules["torch"] = None  # type: ignore[assignment]  # how Python marks what is absent
    try:
        yield
    finally:
        if not loaded:
            del sys.modules["torch"]


with _torch_left_alone():
    from tensorboardX.proto.api_pb2 import Status
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import (
        HParamsPluginData,
        SessionEndInfo,
        SessionStartInfo,
    )
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboardX.record_writer import masked_crc32c

__all__ = [
    "Event", "EventsWriter", "events_file", "film", "scalars", "session_end", "session_start",
]  # fmt: skip


class EventsWriter:
    """TensorBoard's file, opened for writing or, unlike tensorboardX's own, for going on.

    Each record is its length (8 bytes), a checksum of that, the event, a checksum of the event.
    """

    def __init__(self, path: Path, keep: int, began: float) -> None:
        """Goes on after the first `keep` bytes; a new file `began` at this time (Unix)."""
        self._file = path.open("ab")
        if self._size() < keep:
            raise OSError(errno.ENODATA, "the file has lost some")
        self._file.truncate(keep)
        if not keep:
            self.write_event(Event(wall_time=began, file_version="brain.Event:2"))

    def write_event(self, event: Event) -> None:
        """Adds an event."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        for part in (length, data):
            self._file.write(part + struct.pack("<I", masked_crc32c(part)))

    def flush(self) -> int:
        """Puts everything on disk; returns the length of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._size()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def events_file(folder: Path) -> Path:
    """The events of the run in a folder, or where they will be."""
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    return next(iter(sorted(folder.glob("events.out.tfevents.*"))), folder / name)


def scalars(step: int, values: Mapping[str, float], when: float | None = None) -> Event:
    """Numbers at a step, and a time (Unix) that is now by default."""
    return _event(step, [Summary.Value(tag=k, simple_value=v) for k, v in values.items()], when)


def film(step: int, gif: bytes) -> Event:
    """A film of training that begins at a step; TensorBoard plays it among the images."""
    width, height = (int.from_bytes(gif[at : at + 2], "little") for at in (6, 8))  # GIF's header
    image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif)
    return _event(step, [Summary.Value(tag="videos/training", image=image)])


def session_start(settings: Mapping[str, Any]) -> Event:
    """A run with these settings begins; those that are neither number nor text are left out."""
    info = SessionStartInfo(start_time_secs=time.time())
    for name, value in settings.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
    return _session("session_start_info", session_start_info=info)


def session_end(*, succeeded: bool) -> Event:
    """The run is over."""
    status = Status.Value("STATUS_SUCCESS" if succeeded else "STATUS_FAILURE")
    info = SessionEndInfo(status=status, end_time_secs=time.time())
    return _session("session_end_info", session_end_info=info)


def _session(kind: str, **info: Any) -> Event:
    content = HParamsPluginData(version=0, **info).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    value = Summary.Value(tag=f"_hparams_/{kind}", metadata=SummaryMetadata(plugin_data=plugin))
    return _event(0, [value])


def _event(step: int, values: list[Summary.Value], when: float | None = None) -> Event:
    when = time.time() if when is None else when
    return Event(wall_time=when, step=step, summary=Summary(value=values))
