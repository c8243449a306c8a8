"""Where a run's numbers go besides its own folder: W&B and TensorBoard; nothing needs them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import api_pb2, event_pb2, plugin_hparams_pb2

from polyak import tracking_wandb
from polyak.errors import PolyakError
from polyak.runs import Run
from polyak.settings import Settings
from polyak.tracking import Tracker
from polyak.tracking_wandb import run_id
from tests import toys
from tests.plumbing.running import SMALL, TWIN, flags, polyak_cli, polyak_process, train, weights

NAME = "Hopper-v5__td3_continuous_action__1__1700000000"


def wandb() -> Any:
    return pytest.importorskip("wandb")


# W&B, for real


def environment(**changes: str) -> dict[str, str]:
    """For a process that shall neither use this process's W&B service nor this user's account."""
    own = ("WANDB_SERVICE", "WANDB_API_KEY")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"WANDB_ERROR_REPORTING": "false"} | changes


def records(path: Path) -> Iterator[Any]:
    """A W&B file: blocks of 32 KiB of pieces, each checksum, length, kind and part of a record."""
    record_type: Any = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # in one piece, or the last one
            yield record_type.FromString(whole)
            whole = b""


def history(path: Path) -> dict[int, dict[str, Any]]:
    """Values by step, without W&B's own."""
    found = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}
            found[row.pop("_step")] = {k: v for k, v in row.items() if k[0] != "_"}
    return found


def as_in_the_run(run: Run) -> dict[int, dict[str, Any]]:
    """The rows of a run by step, those of one step joined."""
    found: dict[int, dict[str, Any]] = {}
    for row in run.metrics():
        values = {name: value for name, value in row.items() if name not in ("step", "time")}
        found.setdefault(row["step"], {}).update(values)
    return found


def test_an_offline_run_holds_every_row_and_asks_no_server(tmp_path: Path) -> None:
    wandb()
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = SMALL | {"eval_interval": 20, "eval_episodes": 2}
        more = (
            "--track",
            "--wandb-project-name",
            "p",
            "--wandb-group",
            "g",
            "--tags",
            "a, b",
        )
        answer = polyak_process(
            "train", "td3", *flags(**options), *more, cwd=tmp_path,
            env=environment(WANDB_MODE="offline", WANDB_BASE_URL=address, WANDB_TAGS="b,c"),
        )  # fmt: skip
        with contextlib.suppress(TimeoutError):
            asked.append(server.accept())
    assert answer.code == 0, answer.err
    assert not asked
    (path,) = (tmp_path / "runs").iterdir()
    assert "W&B: offline; send it with: wandb sync runs/" in answer.err
    (file,) = path.glob("wandb/offline-run-*/*.wandb")
    assert history(file) == as_in_the_run(Run(path))
    kinds = {record.WhichOneof("record_type"): record for record in records(file)}
    described = kinds["run"].run
    assert (described.run_id, described.project, described.run_group) == (path.name, "p", "g")
    assert sorted(described.tags) == ["a", "b", "c"]
    config = {item.key: json.loads(item.value_json) for item in described.config.update}
    assert {name: config[name] for name in options} == options
    assert kinds["exit"].exit.exit_code == 0


def test_films_are_sent_at_the_end(tmp_path: Path) -> None:
    library = wandb()
    (tmp_path / NAME / "videos").mkdir(parents=True)
    film = tmp_path / NAME / "videos" / "training-step-30.gif"
    film.write_bytes(b"GIF89a" + bytes(20))
    (film.parent / "mine.mp4").touch()
    (film.parent / "training-step-9.mp4.part").touch()
    (tmp_path / NAME / "config.json").write_text('{"num_envs": 2}')
    run = Run(tmp_path / NAME)
    assert run.films == [(60, film)]
    sink = tracking_wandb.start(run, Settings())
    assert sink is not None
    sink.write(90, {"charts/SPS": 1.0})
    sink.films(run.films)
    sink.close(succeeded=True)
    library.teardown()  # which waits until all is written
    (file,) = run.path.glob("wandb/offline-run-*/*.wandb")
    (row,) = history(file).values()
    assert row["videos/training.captions"] == ["step 60"]
    assert [p.read_bytes() for p in file.parent.rglob("*.gif")] == [film.read_bytes()]


def test_runs_side_by_side_are_two_wandb_runs(tmp_path: Path) -> None:
    library = wandb()
    runs = [Run(tmp_path / f"{NAME}{index}") for index in range(2)]
    sinks = []
    for run in runs:
        run.path.mkdir()
        (run.path / "config.json").write_text("{}")
        sinks.append(tracking_wandb.start(run, Settings()))
    for step in (1, 2):
        for index, sink in enumerate(sinks):
            assert sink is not None
            sink.write(step, {"charts/SPS": 10.0 * index + step})
    for sink in sinks:
        assert sink is not None
        sink.close(succeeded=True)
    library.teardown()  # which waits until all is written
    for index, run in enumerate(runs):
        (file,) = run.path.glob("wandb/offline-run-*/*.wandb")
        assert history(file) == {step: {"charts/SPS": 10.0 * index + step} for step in (1, 2)}


def test_without_an_answer_the_run_is_recorded_offline(tmp_path: Path) -> None:
    wandb()
    arguments = ["train", "ddpg", "--track", *flags(**SMALL)]
    code = (
        "import sys; from polyak import cli, tracking_wandb\n"
        "tracking_wandb.INIT_TIMEOUT = 2.0\n"
        f"sys.exit(cli.main({arguments!r}))"
    )
    # Nothing listens on port 9 of this machine.
    env = environment(
        WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="a" * 40
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "polyak: warning: W&B does not answer, recording offline: " in done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    (file,) = path.glob("wandb/offline-run-*/*.wandb")
    assert history(file) == as_in_the_run(Run(path))


def test_without_an_account_nothing_begins(tmp_path: Path) -> None:
    wandb()
    nowhere = str(tmp_path / "none")
    env = environment(WANDB_MODE="online", HOME=str(tmp_path), NETRC=nowhere)
    answer = polyak_process("train", "ddpg", "--track", *flags(**SMALL), cwd=tmp_path, env=env)
    assert "run `wandb login`, or set WANDB_MODE=offline" in answer.line
    assert not (tmp_path / "runs").exists()


def test_without_the_package_nothing_begins(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    answer = polyak_cli("train", "ddpg", "--track", *flags(**SMALL))
    assert answer.line == "--track needs W&B: pip install 'polyak[track]'"
    assert not list(here.iterdir())
    assert polyak_cli("train", "ddpg", *flags(**SMALL)).code == 0


def test_names_that_wandb_refuses_are_refused_before_training(here: Path) -> None:
    wandb()
    answer = polyak_cli("train", "ddpg", "--track", "--wandb-project-name", "a/b", *flags(**SMALL))
    assert answer.line.startswith("--track: ")
    assert "a/b" in answer.line
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "name", [NAME, "é" * 200, "a:b#c?d%e", "x" * 60 + "__" + "y" * 100, " a ", "a'b;c,d", "🤖-v0"]
)
def test_every_folder_has_an_id_that_wandb_takes(tmp_path: Path, name: str) -> None:
    library = wandb()
    made = run_id(tmp_path / name)
    assert made == run_id(tmp_path / name)
    assert library.Settings(run_id=made).run_id == made
    assert len(made) <= 128


def test_an_ordinary_folder_is_its_own_id() -> None:
    assert run_id(Path("runs") / NAME) == NAME
    assert run_id(Path("y" * 130)) != run_id(Path("y" * 131))


def test_a_resumed_run_goes_on_in_the_same_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B drops steps that it has, with a warning for each: they are not sent."""
    library = wandb()
    given: dict[str, Any] = {}
    sent = []

    class Resumed:
        step = 51

        def log(self, values: dict[str, float], step: int) -> None:
            sent.append(step)

    def init(**options: Any) -> Resumed:
        given.update(options)
        return Resumed()

    monkeypatch.setattr(library, "init", init)
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "config.json").write_text("{}")
    sink = tracking_wandb.start(Run(tmp_path / NAME), Settings())
    assert sink is not None
    for step in (40, 50, 51, 60):
        sink.write(step, {"charts/SPS": 1.0})
    assert sent == [51, 60]
    assert (given["id"], given["resume"]) == (NAME, "allow")


# A sink that fails


@pytest.mark.parametrize("when", ["write", "films", "close"])
def test_a_sink_that_fails_is_left_out_and_training_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    calls: list[str] = []

    class Failing:
        name, where = "the sink", "nowhere"

        def __init__(self, *_: Any) -> None:
            pass

        def __getattr__(self, method: str) -> Any:
            def call(*_: Any, **__: Any) -> None:
                calls.append(method)
                if method == when and calls.count("write") >= 3:
                    raise ConnectionError("gone\naway")

            return call

    monkeypatch.setattr(tracking_wandb, "check", lambda settings: None)
    monkeypatch.setattr(tracking_wandb, "start", Failing)
    monkeypatch.setattr(Run, "films", property(lambda run: []))
    if when == "films":
        film = tmp_path / "training-step-0.gif"
        film.write_bytes(b"GIF89a" + bytes(20))
        monkeypatch.setattr(Run, "films", property(lambda run: [(0, film)]))
    with pytest.warns(
        UserWarning, match="nothing more goes to the sink: ConnectionE.* gone away"
    ) as w:
        tracked = train(tmp_path / "a", "sac", track=True)
    assert len(w) == 1
    assert calls[-1] == when  # not asked again
    assert tracked.status["state"] == "finished"
    plain = train(tmp_path / "b", "sac")
    assert weights(tracked) == weights(plain)
    assert list(as_in_the_run(tracked)) == list(as_in_the_run(plain))


def test_a_failed_run_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    class Sink:
        name = where = "sink"

        def __init__(self, *_: Any) -> None:
            pass

        def write(self, *_: Any) -> None:
            pass

        def close(self, *, succeeded: bool) -> None:
            told.append(succeeded)

    monkeypatch.setattr(tracking_wandb, "check", lambda settings: None)
    monkeypatch.setattr(tracking_wandb, "start", Sink)
    train(tmp_path, track=True)
    poison = toys.register("Poison", k=30, field="reward")
    with pytest.raises(PolyakError):
        train(tmp_path, track=True, env_id=poison)
    assert told == [True, False]


# TensorBoard


def events(run: Run) -> list[Any]:
    """Length, CRC, event, CRC, ..."""
    (path,) = run.path.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def sessions(run: Run) -> dict[str, Any]:
    """What a run tells the HPARAMS tab, by tag."""
    found = {}
    for event in events(run):
        for value in event.summary.value:
            plugin = value.metadata.plugin_data
            if plugin.plugin_name == "hparams":
                found[value.tag] = plugin_hparams_pb2.HParamsPluginData.FromString(plugin.content)
    return found


def test_tensorboard_lists_the_settings(trained: dict[str, Run]) -> None:
    for algorithm, run in trained.items():
        told = sessions(run)
        start = told["_hparams_/session_start_info"].session_start_info
        kinds = {k: v.WhichOneof("kind") for k, v in start.hparams.items()}
        values = {k: getattr(v, kinds[k]) for k, v in start.hparams.items()}
        config = run.config
        del config["context"]
        assert values == config
        assert kinds["save_model"] == "bool_value"
        assert values["algorithm"] == algorithm
        end = told["_hparams_/session_end_info"].session_end_info
        assert end.status == api_pb2.STATUS_SUCCESS
        assert 0 <= end.end_time_secs - start.start_time_secs < 1000


def test_tensorboard_is_told_of_a_failure(tmp_path: Path) -> None:
    poison = toys.register("Poison", k=30, field="reward")
    with pytest.raises(PolyakError):
        train(tmp_path, env_id=poison)
    (path,) = tmp_path.iterdir()
    end = sessions(Run(path))["_hparams_/session_end_info"].session_end_info
    assert end.status == api_pb2.STATUS_FAILURE


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_tensorboard_shows_films_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    from polyak.recording import FilmedEnvironment
    from polyak.video import VideoWriter

    if suffix == "mp4":
        pytest.importorskip("imageio_ffmpeg")

    def film(self: Any) -> None:  # of a toy, which draws nothing
        if self._steps % 20 == 0:
            path = self._folder / f"training-step-{self._steps}.{suffix}"
            with VideoWriter(path) as video:
                for level in range(0, 250, 10):
                    video.add(np.full((64, 96, 3), level, np.uint8))

    monkeypatch.setattr(FilmedEnvironment, "_begin", film)
    run = train(tmp_path, capture_video=True, num_envs=2, env_id=TWIN)
    images = [
        (event.step, value.image)
        for event in events(run)
        for value in event.summary.value
        if value.tag == "videos/training"
    ]
    assert [step for step, _ in images] == [step for step, _ in run.films]
    assert len(images) >= 2
    assert images[0][0] == 0
    assert all(step % 40 == 0 for step, _ in images)  # both environments' steps
    for _, image in images:
        assert image.encoded_image_string.startswith(b"GIF8")
        assert image.width / image.height == pytest.approx(96 / 64, abs=0.01)


def test_films_that_cannot_be_read_are_one_warning(tmp_path: Path) -> None:
    run = train(tmp_path)
    board = Tracker(run, 1, progress=False)
    (run.path / "videos").mkdir()
    for step in (0, 5):
        (run.path / "videos" / f"training-step-{step}.mp4").write_bytes(b"nothing")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        board.films()
    assert ["no films in TensorBoard: " in str(w.message) for w in caught] == [True]
    board.__exit__(None, None, None)
