"""Runs that are stopped in any way go on as if they had not been; damage is one line."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyak
from polyak import algorithms, arrays, checkpoint, runs, stopping, tracking
from polyak.algorithms import ALGORITHMS
from polyak.algorithms.configs import CONFIGS
from polyak.algorithms.interface import Batch
from polyak.checkpoint import Folder
from polyak.environments import Environments
from polyak.errors import PolyakError
from polyak.model_card import published
from polyak.replay import Replay
from polyak.runs import Run
from polyak.stopping import Stopped
from tests import toys
from tests.plumbing.running import SMALL, TWIN, flags, polyak_cli, train, weights

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = SMALL | {
    "eval_interval": 13,
    "eval_episodes": 2,
    "checkpoint_interval": 7,
    "buffer_size": 24,  # the ring wraps
}


@pytest.fixture(scope="module")
def torture() -> Iterator[ModuleType]:
    """The script that kills runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))  # its processes look for it as well
        yield importlib.import_module("torture")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few rows, so that full, shared and expired ones all occur."""
    monkeypatch.setattr(checkpoint, "PART", 200)


def the_run(folder: Path) -> Run:
    (path,) = folder.iterdir()
    return Run(path)


class CrashError(Exception):
    """Stands for what ends a run without a word."""


def fuse(count: int, blow: Callable[[], object]) -> Callable[[np.ndarray], None]:
    """Calls `blow` once, at the given action that environments get."""
    left = count

    def burn(action: np.ndarray) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            blow()

    return burn


def crash() -> None:
    raise CrashError


def crashed(folder: Path, count: int, algorithm: str = "ddpg", /, **options: Any) -> Run:
    """A run that ended at an action, evaluation's among them, and then went on to its end."""
    env_id = toys.register("Twin", log=fuse(count, crash))
    with pytest.raises(CrashError):
        train(folder, algorithm, **(OPTIONS | {"env_id": env_id} | options))
    path = the_run(folder).path
    return polyak.train(resume=path)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, torture: ModuleType
) -> Callable[..., dict[str, str]]:
    """What the torture script compares, of a run that nothing disturbed."""
    known: dict[str, dict[str, str]] = {}

    def digest(algorithm: str = "ddpg", **options: Any) -> dict[str, str]:
        name = f"{algorithm} {options}"
        if name not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[name] = torture.digest(train(folder, algorithm, **(OPTIONS | options)))
        return known[name]

    return digest


# Going on


@pytest.mark.parametrize("count", [1, 40, 75, 100, 120])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_a_run_that_crashed_ends_as_if_it_had_not(
    tmp_path: Path,
    torture: ModuleType,
    undisturbed: Callable[..., dict[str, str]],
    algorithm: str,
    num_envs: int,
    count: int,
) -> None:
    run = crashed(tmp_path, count, algorithm, num_envs=num_envs)
    assert torture.digest(run) == undisturbed(algorithm, num_envs=num_envs)


def test_killed_processes_go_on(tmp_path: Path, torture: ModuleType) -> None:
    # `make torture` in short.
    short = {"total_timesteps": 900, "learning_starts": 700, "buffer_size": 300}
    short |= {"eval_interval": 150, "checkpoint_interval": 60}
    row = torture.torture(torture.Launcher(), "sac", "torch", 3, 2, tmp_path, **short)
    assert row["problems"] == []
    assert row["kills"] >= 2


def test_a_run_that_is_longer_from_a_checkpoint_on(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", **(OPTIONS | {"total_timesteps": 90}))
    run = train(tmp_path / "parts", **OPTIONS)
    longer = polyak.train(resume=run.path, trust_env=True, total_timesteps=90)
    assert longer.path == run.path
    assert weights(longer) == weights(whole)
    assert longer.status["step"] == 90
    assert longer.config["total_timesteps"] == 90
    (resumed,) = longer.config["context"]["resumed"]
    assert resumed["step"] == 60
    steps = [row["step"] for row in longer.metrics()]
    assert steps == sorted(steps)


def test_a_finished_run_is_finished(tmp_path: Path) -> None:
    run = train(tmp_path, **OPTIONS)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    answer = polyak_cli("train", "--resume", run.path, "--trust-env")
    assert answer.code == 0
    assert "is finished: raise --total-timesteps" in answer.err
    assert answer.out.splitlines()[0] == f"run={run.path}"
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_run_without_a_checkpoint_begins_again_in_its_folder(tmp_path: Path) -> None:
    reference = train(tmp_path / "reference", **(OPTIONS | {"checkpoint_interval": 0}))
    run = crashed(tmp_path / "crashed", 100, checkpoint_interval=0)
    assert weights(run) == weights(reference)
    assert len(run.metrics()) == len(reference.metrics())


def test_a_finished_run_may_drop_its_checkpoint(tmp_path: Path) -> None:
    run = train(tmp_path, **(OPTIONS | {"keep_checkpoint": False}))
    assert not (run.path / "checkpoint").exists()
    with pytest.raises(PolyakError, match="finished and kept no checkpoint"):
        polyak.train(resume=run.path, trust_env=True, total_timesteps=90)


def test_the_record_goes_on_without_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 1000.0}

    class Clock:
        perf_counter = staticmethod(lambda: clock["now"])
        time = staticmethod(lambda: -clock["now"])  # a clock on the wall may go backwards

    monkeypatch.setattr(tracking, "time", Clock)
    burn = fuse(55, crash)

    def pass_time(action: np.ndarray) -> None:
        clock["now"] += 1.0
        burn(action)

    env_id = toys.register("Twin", log=pass_time)
    with pytest.raises(CrashError):
        train(tmp_path, **(OPTIONS | {"env_id": env_id, "eval_interval": 0}))
    clock["now"] += 1e6
    run = polyak.train(resume=the_run(tmp_path).path)
    rows = run.metrics()
    assert all(a["time"] <= b["time"] for a, b in pairwise(rows))
    assert rows[-1]["time"] < 100
    for row in run.metrics("charts/SPS"):
        assert row["charts/SPS"] == pytest.approx(1.0, rel=0.7)


def test_the_best_agent_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    # Killed after an evaluation replaced it, and continued in a way that may not find it again.
    run = train(tmp_path, **OPTIONS)
    folder = Folder(run.path / "checkpoint")
    saved = folder.find()
    assert saved is not None
    before = (run.path / "best" / "model.safetensors").read_bytes()
    shutil.rmtree(run.path / "best")
    polyak.train(resume=run.path, trust_env=True, total_timesteps=61)
    if polyak.load(run.path / "best").info["step"] == saved.content["review"]["best"][0]:
        assert (run.path / "best" / "model.safetensors").read_bytes() == before
    assert (
        saved.content["review"]["best"][0]
        == max(run.metrics("eval/episodic_return"), key=lambda row: row["eval/episodic_return"])[
            "step"
        ]
    )


# Which run, and with what


def test_auto_takes_the_newest_unfinished_run_of_these_very_settings(tmp_path: Path) -> None:
    env_id = toys.register("Twin", log=fuse(21 + 50, crash))
    options = OPTIONS | {"env_id": env_id, "eval_interval": 0}
    other = train(tmp_path, resume="auto", **(options | {"seed": 2, "total_timesteps": 21}))
    with pytest.raises(CrashError):
        train(tmp_path, **options)
    (crashed_run,) = (r for r in runs.find([tmp_path]) if r.path != other.path)
    another = train(tmp_path, resume="auto", **(options | {"gamma": 0.5}))
    assert another.path != crashed_run.path
    same = train(tmp_path, resume="auto", **(options | {"checkpoint_interval": 5}))
    assert same.path == crashed_run.path
    new = train(tmp_path, resume="auto", **options)
    assert new.path not in (crashed_run.path, other.path, another.path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gamma": 0.5}, "--gamma 0.99, not 0.5: what can change"),
        ({"seed": 3}, "--seed 1, not 3"),
        ({"total_timesteps": 50}, "below the run's own 60: it can only be raised"),
    ],
)
def test_what_cannot_change_where_a_run_goes_on(
    trained: dict[str, Run], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PolyakError, match=reason):
        polyak.train(resume=trained["td3"].path, trust_env=True, **options)


def test_the_same_command_with_a_run_is_no_change(trained: dict[str, Run]) -> None:
    run = trained["sac"]
    options = SMALL | {"seed": 1, "threads": 2, "eval_interval": 20, "resume": run.path}
    answer = polyak_cli("train", "sac_continuous_action", *flags(**options))
    assert answer.code == 0
    assert "is finished" in answer.err


def test_another_algorithm_is_refused(trained: dict[str, Run]) -> None:
    answer = polyak_cli("train", "ddpg", "--resume", trained["sac"].path, "--trust-env")
    assert "--algorithm sac, not ddpg" in answer.line


def test_a_configuration_imports_no_module_without_trust(trained: dict[str, Run]) -> None:
    answer = polyak_cli("train", "--resume", trained["sac"].path)
    assert "would run the module 'tests.toys': add --trust-env" in answer.line


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("status.json", {"step": None}),
        ("status.json", {"state": 5}),
        ("config.json", {"context": 5}),
        ("config.json", {"context": {"resumed": 5}}),
        ("final/agent.json", {"results": []}),
        ("final/agent.json", {"results": {"evaluation": {"returns": ["x"]}}}),
    ],
)
def test_a_damaged_description_is_named(
    trained: dict[str, Run], tmp_path: Path, file: str, damage: dict[str, Any]
) -> None:
    path = Path(shutil.copytree(trained["ddpg"].path, tmp_path / "run"))
    content = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(content | damage))
    longer = [] if "final" in file else ["--total-timesteps", 80]
    answer = polyak_cli("train", "--resume", path, "--trust-env", *longer)
    assert answer.code == 2
    assert str(path / file) in answer.err.splitlines()[-1]
    assert polyak_cli("runs", path).code == 0
    shown = published(Run(path).config)["context"]  # what a push tells
    assert shown == {} if file == "config.json" else shown["cores"]


@pytest.mark.parametrize("arguments", [["--resume", "auto"], ["--resume", "nowhere"], ["--seed=1"]])
def test_a_run_that_is_not_there(here: Path, arguments: list[str]) -> None:
    assert polyak_cli("train", *arguments).line
    assert not list(here.iterdir())


def test_one_folder_has_one_writer(tmp_path: Path) -> None:
    path = train(tmp_path, **OPTIONS).path
    code = f"import sys; from polyak.cli import main; sys.exit(main({['train', '--resume', str(path), '--trust-env', '--total-timesteps', '90']!r}))"  # noqa: E501
    with runs.writing(Run(path)):
        with pytest.raises(PolyakError, match="written by another process"):
            polyak.train(resume=path, trust_env=True, total_timesteps=90)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "written by another process" in done.stderr
        assert "Traceback" not in done.stderr
    assert (
        polyak.train(resume=path, trust_env=True, total_timesteps=90).status["state"] == "finished"
    )


# Signals


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_saves_and_the_run_goes_on(
    tmp_path: Path, torture: ModuleType, undisturbed: Callable[..., dict[str, str]], name: str
) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    env_id = toys.register("Twin", log=fuse(90, lambda: os.kill(os.getpid(), number)))
    with pytest.raises(Stopped, match="polyak train --resume"):
        train(tmp_path, **(OPTIONS | {"env_id": env_id}))
    assert signal.getsignal(number) is before
    run = the_run(tmp_path)
    saved = Folder(run.path / "checkpoint").find()
    assert saved is not None
    assert run.status["state"] == "interrupted"
    assert saved.step == run.status["step"]
    assert torture.digest(polyak.train(resume=run.path)) == undisturbed()


def test_who_asks_twice_is_not_kept_waiting(
    tmp_path: Path, torture: ModuleType, undisturbed: Callable[..., dict[str, str]]
) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    env_id = toys.register("Twin", log=fuse(90, twice))
    with pytest.raises(KeyboardInterrupt) as error:
        train(tmp_path, **(OPTIONS | {"env_id": env_id}))
    assert not isinstance(error.value, Stopped)
    run = the_run(tmp_path)
    assert run.status["state"] == "interrupted"
    assert torture.digest(polyak.train(resume=run.path)) == undisturbed()


def test_a_signal_while_a_checkpoint_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torture: ModuleType,
    undisturbed: Callable[..., dict[str, str]],
) -> None:
    write = arrays.write

    def interrupted(path: Path, data: bytes) -> str:
        if path.name == "state-28.safetensors":
            os.kill(os.getpid(), signal.SIGTERM)
        return write(path, data)

    monkeypatch.setattr(arrays, "write", interrupted)
    with pytest.raises(Stopped, match="at step 28"):
        train(tmp_path, **OPTIONS)
    monkeypatch.setattr(arrays, "write", write)
    run = the_run(tmp_path)
    assert torture.digest(polyak.train(resume=run.path, trust_env=True)) == undisturbed()


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping.on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopping.asked()
            with stopping.on_signals():
                os.kill(os.getpid(), signal.SIGUSR1)
            assert stopping.asked()
        assert not stopping.asked()
    finally:
        signal.signal(signal.SIGHUP, before)


# Disks

FULL = """
import resource, sys
from polyak.cli import main
# Like a disk that is full, but of this process alone: no file grows beyond 20 kB.
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_is_full_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    options = OPTIONS | {"total_timesteps": 1000, "buffer_size": 900, "checkpoint_interval": 200}
    options |= {"learning_starts": 980, "eval_interval": 0, "log_interval": 1000}
    reference = train(tmp_path / "reference", **options)
    command = flags(**options, runs_dir=tmp_path / "runs")
    done = subprocess.run(
        [sys.executable, "-c", FULL, "train", "ddpg", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot save a checkpoint in" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    run = the_run(tmp_path / "runs")
    assert run.status["state"] == "failed"
    assert not list(run.path.rglob("*.tmp"))
    assert 0 < (Folder(run.path / "checkpoint").find() or pytest.fail("none")).step < 1000
    assert weights(polyak.train(resume=run.path, trust_env=True)) == weights(reference)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run = train(tmp_path, **OPTIONS)
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").mkdir()  # root may write anywhere, but not here
    with pytest.raises(PolyakError, match=r"cannot write .*metrics\.jsonl"):
        polyak.train(resume=run.path, trust_env=True, total_timesteps=90)


def test_a_checkpoint_folder_that_cannot_be_made(tmp_path: Path) -> None:
    def block() -> None:
        (the_run(tmp_path).path / "checkpoint").touch()

    with pytest.raises(PolyakError, match="cannot save a checkpoint"):
        train(tmp_path, **(OPTIONS | {"env_id": toys.register("Twin", log=fuse(3, block))}))
    assert the_run(tmp_path).status["state"] == "failed"


def test_what_others_put_beside_checkpoints_is_let_be(tmp_path: Path) -> None:
    """Jupyter makes such a folder wherever a file is opened."""

    def visit() -> None:
        (the_run(tmp_path).path / "checkpoint" / ".ipynb_checkpoints").mkdir(parents=True)
        (the_run(tmp_path).path / "checkpoint" / "notes.txt").touch()

    env_id = toys.register("Twin", log=fuse(3, visit))
    run = train(tmp_path, **(OPTIONS | {"env_id": env_id, "keep_checkpoint": False}))
    left = {path.name for path in (run.path / "checkpoint").iterdir()}
    assert left == {".ipynb_checkpoints", "notes.txt"}


# Loss of power


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run, at steps 58 and 60, with several parts each. Never change them."""
    options = {"checkpoint_interval": 29, "eval_interval": 0, "hidden_dim": 16}
    run = train(tmp_path_factory.mktemp("two"), "td3", **(SMALL | options))
    return run.path / "checkpoint"


def damages(data: bytes) -> Iterator[bytes]:
    """A file cut at every 4 KiB and before its end, zeroed in part, and with flipped bits."""
    yield from (data[:cut] for cut in (*range(0, len(data), 4096), len(data) - 1))
    yield data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    for at in np.linspace(0, len(data) - 1, 9).astype(int):
        yield data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def test_damage_ends_in_the_last_good_checkpoint_or_in_one_line(
    tmp_path: Path, two_checkpoints: Path
) -> None:
    intact = Folder(shutil.copytree(two_checkpoints, tmp_path / "intact")).find()
    assert intact is not None
    assert intact.step == 60
    older = Folder(tmp_path / "intact")
    (tmp_path / "intact" / "checkpoint-60.json").unlink()
    before = older.find()
    assert before is not None
    shared = {entry.name for entry in before.files}
    for name in ("checkpoint-60.json", *(entry.name for entry in intact.files)):
        for data in damages((two_checkpoints / name).read_bytes()):
            folder = Path(shutil.copytree(two_checkpoints, tmp_path / "damaged"))
            (folder / name).write_bytes(data)
            if name in shared:
                with pytest.raises(PolyakError, match=r"no checkpoint in .* is whole"):
                    Folder(folder).find()
            else:
                found = Folder(folder).find()
                assert found is not None
                assert found.step == 58
                assert not (folder / "checkpoint-60.json").exists()
            shutil.rmtree(folder)


def test_a_run_goes_on_from_the_checkpoint_before(
    tmp_path: Path, torture: ModuleType, undisturbed: Callable[..., dict[str, str]]
) -> None:
    run = train(tmp_path, **OPTIONS)
    run.write_status("running", 60)
    (run.path / "checkpoint" / "state-60.safetensors").write_bytes(b"")
    assert torture.digest(polyak.train(resume=run.path, trust_env=True)) == undisturbed()


@pytest.mark.parametrize("how", ["lost", "changed"])
def test_a_record_that_lost_rows_is_not_continued(tmp_path: Path, how: str) -> None:
    run = train(tmp_path, **OPTIONS)
    path = run.path / "metrics.jsonl"
    path.write_text("" if how == "lost" else '{"step": 0}\n' + path.read_text())
    before = run.config, run.status
    with pytest.raises(PolyakError, match="lost rows, or was changed"):
        polyak.train(resume=run.path, trust_env=True, total_timesteps=90)
    assert (run.config, run.status) == before  # it is as finished as it was


# Files from elsewhere


class Bomb:
    """What a pickle runs when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.abort, ())


def crafted(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the newest checkpoint and makes its checksum right."""
    (path,) = folder.glob("checkpoint-60.json")
    content = json.loads(path.read_text())["content"]
    change(content)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest, "content": content}))


def with_file(data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "state-60.safetensors").write_bytes(data)
        entry = ["state-60.safetensors", len(data), hashlib.sha256(data).hexdigest()]
        crafted(folder, lambda content: content["files"].__setitem__(0, entry))

    return change


HOSTILE: dict[str, Callable[[Path], None]] = {
    "pickle": with_file(pickle.dumps(Bomb())),
    "header": with_file((1 << 40).to_bytes(8, "little") + b"{}"),
    "long header": with_file((50 << 20).to_bytes(8, "little") + b" " * (50 << 20)),
    "other arrays": with_file(arrays.encode({"learned.actor.0.weight": np.zeros((9, 9))})),
    "seed": lambda f: crafted(f, lambda c: c["environments"].update(starts=[["x", None]])),
    "negative seed": lambda f: crafted(f, lambda c: c["environments"].update(starts=[[-1, None]])),
    "huge": lambda f: crafted(f, lambda c: c["environments"].update(lengths=[10**30])),
    "path": lambda f: crafted(f, lambda c: c["files"].__setitem__(0, ["../../x", 1, ""])),
    "generator": lambda f: crafted(f, lambda c: c.update(generator={"bit_generator": "os"})),
    "rows": lambda f: crafted(f, lambda c: c.update(rows=10**9)),
    "negative rows": lambda f: crafted(f, lambda c: c.update(rows=-5)),
    "no files": lambda f: crafted(f, lambda c: c.update(files=[])),
    "environments": lambda f: crafted(f, lambda c: c["environments"].update(lengths=["x"])),
    "long episode": lambda f: crafted(f, lambda c: c["environments"].update(lengths=[-3])),
    "review": lambda f: crafted(f, lambda c: c.update(review={"best": 3})),
    "tracker": lambda f: crafted(f, lambda c: c.update(tracker=[])),
    "speed": lambda f: crafted(f, lambda c: c["tracker"].update(speed="fast")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_crafted_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    run = train(tmp_path, **OPTIONS)
    for file in (run.path / "checkpoint").glob("checkpoint-5*.json"):
        file.unlink()
    HOSTILE[name](run.path / "checkpoint")
    answer = polyak_cli("train", "--resume", run.path, "--total-timesteps", 90, "--trust-env")
    assert answer.code == 2
    assert sum(line.startswith("polyak: error: ") for line in answer.err.splitlines()) == 1


@settings(max_examples=150)
@given(data=st.data())
def test_no_damage_gets_past_the_loaders(
    trained: dict[str, Run], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    source = trained["td3"].path
    files = sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
    name = data.draw(st.sampled_from(files))
    folder = Path(shutil.copytree(source, tmp_path_factory.mktemp("fuzz") / "run"))
    content = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "number"]))
        if kind == "flip" and content:
            content[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[at:]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(max_size=40))
        else:
            content[at : at + 1] = data.draw(
                st.sampled_from([b"1e999", b"-1", b"null", b"[]", b"NaN", b'"', b"9" * 5000])
            )
    (folder / name).write_bytes(bytes(content))
    loaders: list[Callable[[], object]] = [
        lambda: polyak.load(folder / "final"),
        lambda: polyak.load(folder / "best"),
        lambda: Folder(folder / "checkpoint").find(),
        lambda: Run(folder).metrics(),
        lambda: runs.find([folder]),
        lambda: polyak.train(resume=folder, trust_env=True),
    ]
    for loader in loaders:
        with contextlib.suppress(PolyakError):
            loader()
    shutil.rmtree(folder.parent)


# Environments in the middle of an episode


def stored(envs: Environments, replay: Replay, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Steps environments and stores what they answer, as the loop does."""
    for action in actions:
        taken = envs.step(action)
        replay.add(
            obs=obs,
            action=action,
            reward=taken.reward,
            next_obs=taken.next_obs,
            terminated=taken.terminated,
            truncated=taken.truncated,
            following=taken.obs,
        )
        obs = taken.obs
    return obs


@pytest.mark.parametrize(
    ("env_id", "count"),
    [("Humanoid-v5", 62), ("Ant-v5", 130), ("Pendulum-v1", 450), (TWIN, 37)],
)
def test_an_environment_goes_on_bit_for_bit(env_id: str, count: int) -> None:
    seeds = [11, 12]
    envs = Environments(env_id, seeds)
    obs_dim, action_dim = envs.spec.obs_dim, envs.spec.action_dim
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (count + 200, 2, action_dim)).astype(np.float32)
    replay = Replay(2000, 2, obs_dim, action_dim)
    obs = stored(envs, replay, envs.reset(), actions[:count])
    saved = json.loads(json.dumps(envs.snapshot()))
    lengths = saved["lengths"]
    assert min(lengths) > 0, "both in the middle of an episode"
    if env_id == "Humanoid-v5":
        task: Any = envs._envs[0].unwrapped
        assert task.data.ncon > 0, "in contact"
    other = Environments(env_id, seeds)
    again, renewed = other.restore(saved, replay)
    assert renewed == []
    np.testing.assert_array_equal(again, obs)
    for action in actions[count:]:
        one, two = envs.step(action), other.step(action)
        for a, b in zip(one[:5], two[:5], strict=True):
            np.testing.assert_array_equal(a, b)
        assert one.episodes == two.episodes
    assert envs.snapshot() == other.snapshot()
    envs.close()
    other.close()


def test_an_environment_that_does_not_repeat_itself_begins_a_new_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PART", 150)  # 7 rows: the file before the cut is full
    # Counter numbers its episodes, which a new process cannot know. What was cut where the run went
    # on must still be where it goes on for the second time.
    burn, again = fuse(31, crash), fuse(40, crash)
    env_id = toys.register("Counter", log=lambda action: (burn(action), again(action)))
    options = OPTIONS | {"env_id": env_id, "eval_interval": 0, "buffer_size": 60}
    with pytest.raises(CrashError):
        train(tmp_path, **options)
    with pytest.raises(CrashError):
        polyak.train(resume=the_run(tmp_path).path)
    run = polyak.train(resume=the_run(tmp_path).path)
    assert run.status["state"] == "finished"
    assert "environment 0 does not repeat its episode" in capsys.readouterr().err
    folder = Folder(run.path / "checkpoint")
    saved = folder.find()
    assert saved is not None
    replay = Replay(60, 1, 2, 1)
    parts = ((int(entry.name.split("-")[1]), folder.load(entry)) for entry in saved.files[1:])
    replay.restore(60, folder.load(saved.files[0])["obs"], parts)
    for part in [replay.read(0, 60)]:
        ends = {int(e): last for e, last in zip(part["ended"], part["last"], strict=True)}
        for i, (obs, reward) in enumerate(zip(part["obs"], part["reward"], strict=True)):
            assert reward == obs[1] < 5
            if i in ends:
                np.testing.assert_array_equal(ends[i], obs + np.array([0, 1]))
            elif i + 1 < len(part["obs"]):
                np.testing.assert_array_equal(part["obs"][i + 1], obs + np.array([0, 1]))
        assert not part["terminated"].any()


# Parts


@given(
    rows=st.integers(0, 40),
    capacity=st.integers(1, 16),
    larger=st.integers(0, 9),
    n=st.integers(1, 3),
    size=st.integers(1, 9),
    seed=st.integers(0, 999),
)
def test_a_restored_buffer_samples_the_same(
    rows: int, capacity: int, larger: int, n: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    replay = Replay(capacity * n, n, 2, 1)
    obs = rng.normal(size=(n, 2)).astype(np.float32)

    def step(*buffers: Replay) -> None:
        nonlocal obs
        ended = rng.random(n) < 0.3
        next_obs = rng.normal(size=(n, 2)).astype(np.float32)
        following = np.where(ended[:, None], rng.normal(size=(n, 2)), next_obs).astype(np.float32)
        action, reward = rng.normal(size=(n, 1)), rng.normal(size=n)
        for buffer in buffers:
            buffer.add(obs, action, reward, next_obs, ended, ~ended & False, following)
        obs = following

    for _ in range(rows):
        step(replay)
    # Parts as they come about: whole ones written long ago, of which some rows are overwritten.
    begins = range(replay.oldest, rows, size)
    parts = [(begin, replay.read(begin, min(begin + size, rows))) for begin in begins]
    grown = capacity if rows > capacity else capacity + larger
    other = Replay(grown * n, n, 2, 1)
    other.restore(rows, obs, parts)
    assert (other.rows, other.size) == (replay.rows, replay.size)
    for _ in range(5):
        if rows:
            one, two = (b.sample(np.random.default_rng(seed), 50) for b in (replay, other))
            for a, b in zip(one, two, strict=True):
                np.testing.assert_array_equal(a, b)
        if grown == capacity:
            step(replay, other)


@pytest.mark.parametrize(("algorithm", "backend"), ALGORITHMS)
def test_a_state_goes_on_where_its_snapshot_was_taken(algorithm: str, backend: str) -> None:
    module, library = algorithms.load(algorithm, backend), algorithms.load_backend(backend)
    device = library.prepare("cpu", True, 1).device
    config = CONFIGS[algorithm](hidden_dim=8, batch_size=4)

    def fresh(seed: int) -> Any:
        return module.init(config, 3, 2, np.random.default_rng(seed), device)

    def updated(state: Any, first: int, last: int) -> Any:
        for i in range(first, last):
            rng = np.random.default_rng(i)
            shapes = ((4, 3), (4, 2), (4,), (4, 3), (4,))
            batch = Batch(*(rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes))
            noise = rng.standard_normal((config.noises_per_update, 4, 2), dtype=np.float32)
            state, _ = module.update(config, state, batch, noise)
        return state

    for count in (0, 1, 6):
        state = updated(fresh(1), 0, count)
        arrays_of = library.snapshot(state)
        assert arrays_of["updates"].dtype == arrays_of["actor_optimizer.steps"].dtype == np.int64
        assert arrays_of["updates"] == arrays_of["critic_optimizer.steps"] == count
        assert {"actor.0.weight", "target_critic.2.bias"} <= arrays_of.keys()
        assert "critic_optimizer.second_moment.1.weight" in arrays_of
        other = library.restore(fresh(2), arrays_of)
        one, two = (library.snapshot(updated(s, count, count + 7)) for s in (state, other))
        assert one.keys() == two.keys() == arrays_of.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)
            assert name == "updates" or one[name].dtype in (np.float32, np.int64)


def test_a_checkpoint_costs_what_is_new(tmp_path: Path) -> None:
    options = {"total_timesteps": 50, "learning_starts": 40, "checkpoint_interval": 20}
    run = train(tmp_path, **(SMALL | options))
    names = {
        path.name.removesuffix(".safetensors") for path in run.path.glob("checkpoint/replay-*")
    }
    # Files of some rows; full ones are those that the first checkpoint wrote.
    rows = Replay(50, 1, 4, 2).rows_of(checkpoint.PART)
    assert {f"replay-0-{rows}-20", f"replay-{rows}-{2 * rows}-20"} <= names
    assert sum(name.endswith("-50") for name in names) <= 10 // rows + 2
    ends = {name.split("-")[2] for name in names}
    assert len(ends - {"40", "50"}) + 2 >= 50 // rows
