"""The Hub, over HTTP against a stand-in: what arrives there, what comes back, what is refused."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shlex
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard, ModelCardData, constants
from huggingface_hub.utils._validators import validate_repo_id
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event

import polyak
from polyak import hub, model_card, models, recording
from polyak.errors import PolyakError
from polyak.runs import Run
from tests.hub_standin import ROUTES, Hub, Repository
from tests.plumbing.running import (
    SMALL,
    TWIN,
    Answer,
    flags,
    polyak_cli,
    polyak_process,
    train,
)

WEIGHTS, INFO = "model.safetensors", "agent.json"
# Of the HTTP library to huggingface_hub, when that uploads a large file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NAME = "tester/tests.toys-toys-Twin-v0-td3_continuous_action-seed1"


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    level = logging.getLogger("huggingface_hub").level
    disable_progress_bars()  # as the command line does, before the library is imported
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with Hub() as server:
        yield server
    enable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(level)


@pytest.fixture
def standin(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An empty Hub, for this process and those it starts, an empty cache, and a user logged in."""
    server.repositories.clear()
    server.blobs.clear()
    server.log.clear()
    server.role = "write"
    home = tmp_path / "hf"
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_TOKEN", server.token)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    point_to(server.url, monkeypatch)
    return server


def point_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


@pytest.fixture
def agent_files(trained: dict[str, Run]) -> dict[str, bytes]:
    """A TD3 agent as a repository holds it."""
    folder = trained["td3"].path / "final"
    return {name: (folder / name).read_bytes() for name in (WEIGHTS, INFO)}


def evaluate(repository: str, *more: object) -> Answer:
    return polyak_cli("evaluate", "--hf-repository", repository, "--trust-env", *more)


def card_data(files: dict[str, bytes]) -> ModelCardData:
    data = ModelCard(files["README.md"].decode()).data
    assert isinstance(data, ModelCardData)
    return data


def fetched(server: Hub) -> list[str]:
    """Files whose content was asked for."""
    found = (re.match(r"GET /.*/resolve/[^/]+/(.+)", line) for line in server.log)
    return [match[1] for match in found if match]


# Publishing


def test_what_a_push_publishes(trained: dict[str, Run], standin: Hub) -> None:
    run = trained["td3"]
    url = polyak.push(run.path, trust_env=True)
    assert url == f"{standin.url}/{NAME}"
    files = standin.repositories[NAME].files
    assert set(files) == {
        ".gitattributes", WEIGHTS, INFO, "config.json", "results.json", "README.md", "replay.mp4",
        "events.out.tfevents.0.polyak",
    }  # fmt: skip
    assert len(standin.repositories[NAME].versions) == 2  # all of it came in one commit
    for name in (WEIGHTS, INFO):
        assert files[name] == (run.path / "final" / name).read_bytes()
    assert files["replay.mp4"][4:8] == b"ftyp"
    config = json.loads(files["config.json"])
    assert config["hidden_dim"] == SMALL["hidden_dim"]
    assert config["context"]["versions"] == run.config["context"]["versions"]


def test_the_card_tells_the_hub_the_result(trained: dict[str, Run], standin: Hub) -> None:
    polyak.push(trained["td3"].path, trust_env=True)
    files = standin.repositories[NAME].files
    data = card_data(files)
    assert data.eval_results is not None
    (result,) = data.eval_results
    final = json.loads(files[INFO])["results"]["final"]
    mean, std = np.mean(final["returns"]), np.std(final["returns"])
    assert result.metric_value == f"{mean:.2f} +/- {std:.2f}"
    assert (result.task_type, result.metric_type) == ("reinforcement-learning", "mean_reward")
    assert result.dataset_name == TWIN
    assert data.library_name == "polyak"
    assert {"reinforcement-learning", "td3", TWIN} <= set(data.tags or ())
    assert (
        f"| noise off, after training | {mean:.2f} | {std:.2f} | 10 |"
        in files["README.md"].decode()
    )
    published = json.loads(files["results.json"])
    assert list(published) == ["final", "evaluation", "exploring"]
    assert published["final"]["returns"] == final["returns"]
    assert published["final"]["mean_return"] == mean


def test_the_events_are_the_metrics(trained: dict[str, Run], standin: Hub) -> None:
    polyak.push(trained["td3"].path, trust_env=True)
    data = standin.repositories[NAME].files["events.out.tfevents.0.polyak"]
    events = []
    while data:  # length (8 bytes), its checksum (4), the event, its checksum (4)
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    first, *rest = events
    assert first.file_version == "brain.Event:2"
    rows = trained["td3"].metrics()
    assert [event.step for event in rest] == [row["step"] for row in rows]
    for event, row in zip(rest, rows, strict=True):
        values = {value.tag: value.simple_value for value in event.summary.value}
        expected = {k: v for k, v in row.items() if k not in ("step", "time")}
        assert values == pytest.approx(expected, rel=1e-6)


def test_nothing_private_is_published(
    standin: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/alice/bin/polyak", "train", "--hf-entity", "secret"])
    monkeypatch.setattr(socket, "gethostname", lambda: "alices-laptop")
    folder = tmp_path / "home" / "alice"
    run = train(folder / "runs", "td3", save_path=str(folder / "kept"))
    assert str(folder) in (run.path / "config.json").read_text()
    assert any("alices-laptop" in path.name for path in run.path.iterdir())
    polyak.push(run.path, trust_env=True)
    for name, data in standin.repositories[NAME].files.items():
        for secret in (str(tmp_path), "alice", "secret", standin.token):
            assert secret.encode() not in data, name
            assert secret not in name


def test_only_what_is_known_to_be_public_is() -> None:
    config = {
        "env_id": "Hopper-v5", "gamma": 0.9, "autotune": True, "alpha": None, "runs_dir": "/home/a",
        "wandb_entity": "a", "layers": [1], "context": {
            "versions": {"python": "3"}, "command": ["/home/a"], "machine": "a", "cores": 2,
            "git": {"commit": "abc", "tags": ["secret"]}, "wandb": "a",
        },
    }  # fmt: skip
    assert model_card.published(config) == {
        "env_id": "Hopper-v5", "gamma": 0.9, "autotune": True, "alpha": None,
        "context": {"versions": {"python": "3"}, "cores": 2, "commit": "abc"},
    }  # fmt: skip


def test_pushing_again_replaces_replay_and_events_and_leaves_the_rest(
    trained: dict[str, Run], standin: Hub
) -> None:
    old = {
        "replay.gif": b"old",
        "events.out.tfevents.1700000000.host": b"old",
        "README.md": b"old",
        "notes/replay.mp4": b"mine",
        "LICENSE": b"mine",
    }
    standin.repositories[NAME] = Repository(old)
    polyak.push(trained["td3"].path, trust_env=True)
    repository = standin.repositories[NAME]
    assert len(repository.versions) == 2
    assert {"replay.mp4", "events.out.tfevents.0.polyak"} <= set(repository.files)
    assert not {"replay.gif", "events.out.tfevents.1700000000.host"} & set(repository.files)
    assert repository.files["notes/replay.mp4"] == repository.files["LICENSE"] == b"mine"
    assert b"old" not in repository.files["README.md"]
    polyak.push(trained["td3"].path, trust_env=True)
    assert repository.versions[-1] == repository.versions[1]


def test_a_replay_of_the_runs_own_is_taken_if_it_shows_this_agent(
    trained: dict[str, Run], standin: Hub, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained["td3"].path, tmp_path / "run"))
    own = run / "replay.gif"
    own.write_bytes(b"GIF89a of this agent")
    polyak.push(run)  # without trust: nothing needs to be run for it
    files = standin.repositories[NAME].files
    assert files["replay.gif"] == own.read_bytes()
    assert f"![one episode, noise off]({standin.url}/{NAME}/resolve/main/replay.gif)" in (
        files["README.md"].decode()
    )
    long_ago = time.time() - 10**7
    os.utime(own, (long_ago, long_ago))
    polyak.push(run, trust_env=True)
    assert set(standin.repositories[NAME].files) & {"replay.gif", "replay.mp4"} == {"replay.mp4"}


def no_pictures(*args: object, **options: object) -> None:
    raise RuntimeError("no driver")


def test_trouble_with_pictures_never_stops_a_push(
    trained: dict[str, Run], standin: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="without a replay: .*--trust-env"):
        polyak.push(trained["td3"].path)
    monkeypatch.setattr(recording, "record", no_pictures)
    with pytest.warns(UserWarning, match="without a replay: no driver"):
        polyak.push(trained["td3"].path, trust_env=True)
    files = standin.repositories[NAME].files
    assert WEIGHTS in files
    assert "replay.mp4" not in files
    assert b"<video" not in files["README.md"]


def test_an_interrupted_run_publishes_its_best_agent_and_says_so(
    trained: dict[str, Run], standin: Hub, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained["td3"].path, tmp_path / "run"))
    shutil.rmtree(run / "final")
    polyak.push(run, trust_env=True)
    files = standin.repositories[NAME].files
    assert files[WEIGHTS] == (run / "best" / WEIGHTS).read_bytes()
    assert b"best evaluation during training" in files["README.md"]
    assert b"flatters" in files["README.md"]


def test_an_agent_without_evaluation_is_published_without_a_result(
    standin: Hub, tmp_path: Path
) -> None:
    polyak.push(train(tmp_path, "td3").path, trust_env=True)
    files = standin.repositories[NAME].files
    assert card_data(files).eval_results is None
    assert b"was not evaluated" in files["README.md"]
    assert json.loads(files["results.json"]) == {}


def test_an_organisation_and_a_private_repository(trained: dict[str, Run], standin: Hub) -> None:
    answer = polyak_cli("push", trained["td3"].path, "--entity", "lab", "--private", "--trust-env")
    name = NAME.replace("tester", "lab")
    assert answer.code == 0, answer.err
    assert answer.out == f"url={standin.url}/{name}\n"
    assert answer.err == ""
    assert standin.repositories[name].private
    assert evaluate(name).code == 0


def test_a_public_repository_is_not_taken_for_a_private_one(
    trained: dict[str, Run], standin: Hub
) -> None:
    standin.repositories[NAME] = Repository()
    answer = polyak_cli("push", trained["td3"].path, "--private", "--trust-env")
    assert "exists and is public" in answer.line
    assert WEIGHTS not in standin.repositories[NAME].files


def test_an_upload_that_breaks_off_publishes_nothing(
    trained: dict[str, Run], standin: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.hub_standin.ROUTES",
        [(pattern, answer) for pattern, answer in ROUTES if not pattern.startswith("PUT")],
    )
    answer = polyak_cli("push", trained["td3"].path, "--trust-env")
    assert "the upload broke off" in answer.line
    assert WEIGHTS not in standin.repositories[NAME].files


def test_what_is_no_run_is_not_pushed(trained: dict[str, Run], standin: Hub, here: Path) -> None:
    assert "config.json" in polyak_cli("push", "nowhere").line
    assert "config.json" in polyak_cli("push", trained["td3"].path / "final").line
    (here / "config.json").write_text("{}")
    assert "no run folder" in polyak_cli("push", here).line
    shutil.copytree(trained["td3"].path, here / "renamed")
    config = trained["td3"].config | {"algorithm": "reinforce"}
    (here / "renamed" / "config.json").write_text(json.dumps(config))
    assert "another algorithm" in polyak_cli("push", here / "renamed").line
    assert not standin.log


# The card's commands


def blocks(card: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", card, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_the_commands_of_the_card_work(
    trained: dict[str, Run], standin: Hub, here: Path, algorithm: str
) -> None:
    polyak.push(trained[algorithm].path, trust_env=True)
    name = NAME.replace("td3", algorithm)
    card = standin.repositories[name].files["README.md"].decode()
    use, again = blocks(card, "sh")
    for line in use.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "polyak"
        answer = polyak_cli(*arguments)
        assert answer.code == 0, answer.err
    assert polyak_cli(*shlex.split(use.splitlines()[0])[1:]).out == (
        polyak_cli("evaluate", trained[algorithm].path, "--trust-env").out
    )
    assert (here / "replay.gif").read_bytes()[:6] == b"GIF89a"
    (code,) = blocks(card, "python")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own card
    assert names["agent"].act(np.zeros(4, np.float32)).shape == (2,)
    answer = polyak_cli(*shlex.split(again)[1:])
    assert answer.code == 0, answer.err
    trained_again = Run(Path(answer.out.splitlines()[0].removeprefix("run=")))
    assert (trained_again.path / "final" / WEIGHTS).read_bytes() == (
        trained[algorithm].path / "final" / WEIGHTS
    ).read_bytes()


def test_the_training_command_keeps_every_setting() -> None:
    config = {"algorithm": "sac", "backend": "torch", "exp_name": "my name", "alpha": 0.5,
              "autotune": False, "torch_deterministic": True, "seed": 3, "unknown": 1}  # fmt: skip
    command = model_card.training_command(config)
    expected = "polyak train sac --exp-name 'my name' --seed 3 --no-autotune --alpha 0.5"
    assert shlex.join(command) == expected


# Fetching


def test_from_one_process_to_another_with_an_empty_cache(
    trained: dict[str, Run], standin: Hub, tmp_path: Path
) -> None:
    # With trust, since the toys are in a module.
    pushed = polyak_process("push", trained["td3"].path, "--trust-env", cwd=tmp_path)
    assert pushed.out == f"url={standin.url}/{NAME}\n"
    assert pushed.err == ""
    shutil.rmtree(tmp_path / "hf", ignore_errors=True)
    standin.log.clear()
    command = ("evaluate", "--hf-repository", NAME, "--trust-env")
    played = polyak_process(*command, cwd=tmp_path)
    assert played.err == ""
    assert played.out == polyak_cli("evaluate", trained["td3"].path, "--trust-env").out
    assert sorted(fetched(standin)) == [INFO, WEIGHTS]


def test_an_agent_is_found_by_task_experiment_and_seed(
    trained: dict[str, Run], standin: Hub, here: Path
) -> None:
    polyak.push(trained["td3"].path, trust_env=True)
    named = ("--exp-name", "td3_continuous_action", "--env-id", TWIN, "--trust-env")
    answer = polyak_cli("enjoy", *named, "--record-path", "a.gif")  # seed 1, and one's own
    assert answer.code == 0, answer.err
    assert (here / "a.gif").exists()
    local = polyak_cli("evaluate", trained["td3"].path, "--trust-env").out
    assert polyak_cli("evaluate", *named, "--hf-entity", "tester", "--seed", 1).out == local
    assert "seed2" in polyak_cli("evaluate", *named, "--seed", 2).line
    assert "lab/" in polyak_cli("evaluate", *named, "--hf-entity", "lab").line


def test_a_name_that_holds_another_agent_is_refused(
    standin: Hub, agent_files: dict[str, bytes]
) -> None:
    standin.repositories[NAME.replace("Twin", "One")] = Repository(agent_files)
    answer = polyak_cli(
        "evaluate", "--exp-name", "td3_continuous_action", "--env-id", TWIN.replace("Twin", "One")
    )
    assert f"holds another agent: ('{TWIN}', 'td3_continuous_action', 1)" in answer.line


def test_a_revision_is_what_was_there_then(trained: dict[str, Run], standin: Hub) -> None:
    for algorithm in ("td3", "sac"):
        folder = trained[algorithm].path / "final"
        files = {name: (folder / name).read_bytes() for name in (WEIGHTS, INFO)}
        standin.repositories.setdefault("a/b", Repository()).commit(files)
    before = standin.repositories["a/b"]._hash(1)
    assert polyak.load(polyak.fetch("a/b")).info["algorithm"] == "sac"
    assert polyak.load(polyak.fetch("a/b", revision=before)).info["algorithm"] == "td3"
    assert evaluate("a/b", "--revision", before).out == (
        polyak_cli("evaluate", trained["td3"].path, "--trust-env").out
    )
    for revision in ("v9", "../../x", "0" * 40):
        assert repr(revision) in evaluate("a/b", "--revision", revision).line


def test_only_two_files_are_fetched(standin: Hub, agent_files: dict[str, bytes]) -> None:
    more = {"modeling.py": b"raise SystemExit", "agent.pkl": b"x", "sub/agent.json": b"{}"}
    standin.repositories["a/b"] = Repository(agent_files | more)
    folder = polyak.fetch("a/b")
    assert {path.name for path in folder.iterdir()} == {WEIGHTS, INFO}
    assert sorted(fetched(standin)) == [INFO, WEIGHTS]
    standin.log.clear()
    polyak.fetch("a/b")
    assert not fetched(standin)  # the cache has them


def test_a_repository_that_changes_in_between_is_not_mixed(
    standin: Hub, agent_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.repositories["a/b"] = Repository(agent_files)
    check = hub._check_contents

    def change(*args: Any) -> None:
        check(*args)
        standin.repositories["a/b"].commit(agent_files | {"more": b""})

    monkeypatch.setattr(hub, "_check_contents", change)
    with pytest.raises(PolyakError, match="changed while it was fetched"):
        polyak.fetch("a/b")


@pytest.mark.parametrize("name", ["a", "a/b/c", "../b", "a/..", "a b/c", "", "https://x/y"])
def test_names_that_no_repository_has(standin: Hub, name: str) -> None:
    assert name in evaluate(name).line
    assert not any("resolve" in line for line in standin.log)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["x", "--hf-repository", "a/b"], "name one agent"),
        (["--hf-repository", "a/b", "--exp-name", "c"], "name one agent"),
        (["--env-id", "Hopper-v5"], "name one agent"),
        (["--exp-name", "c"], "--exp-name needs --env-id"),
        (["x", "--env-id", "Hopper-v5"], "--env-id"),
        (["x", "--revision", "main"], "--revision"),
        (["--hf-repository", "a/b", "--hf-entity", "c"], "--hf-entity"),
    ],
)
def test_agents_that_are_named_twice_or_by_half(
    standin: Hub, arguments: list[str], reason: str
) -> None:
    for command in ("evaluate", "enjoy"):
        assert reason in polyak_cli(command, *arguments).line
    assert not standin.log


# Hostile repositories


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", [WEIGHTS, INFO])
def test_a_pickle_in_a_repository_is_refused(
    standin: Hub, agent_files: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    trap = tmp_path / "sprung"
    standin.repositories["a/b"] = Repository(agent_files | {name: pickle.dumps(Trap(trap))})
    assert name in evaluate("a/b").line
    assert name in polyak_cli("enjoy", "--hf-repository", "a/b", "--record-path", "a.gif").line
    assert not trap.exists()


@pytest.mark.parametrize("length", [2**24, 2**40, 2**64 - 1])
def test_an_oversized_header_is_refused(
    standin: Hub, agent_files: dict[str, bytes], length: int
) -> None:
    weights = length.to_bytes(8, "little") + agent_files[WEIGHTS][8:]
    standin.repositories["a/b"] = Repository(agent_files | {WEIGHTS: weights})
    assert WEIGHTS in evaluate("a/b").line


def test_a_module_that_a_repository_names_is_not_imported(
    standin: Hub,
    agent_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trap = tmp_path / "sprung"
    (tmp_path / "hub_trap.py").write_text(f"import pathlib; pathlib.Path({str(trap)!r}).touch()")
    monkeypatch.syspath_prepend(str(tmp_path))
    info = json.loads(agent_files[INFO]) | {"env_id": "hub_trap:Hopper-v5"}
    config = json.dumps({"env_id": "hub_trap:Hopper-v5"}).encode()
    files = agent_files | {INFO: json.dumps(info).encode(), "config.json": config}
    standin.repositories["a/b"] = Repository(files)
    for command in (["evaluate"], ["enjoy", "--record-path", tmp_path / "a.gif"]):
        answer = polyak_cli(*command, "--hf-repository", "a/b")
        assert "'hub_trap'" in answer.line
        assert "--trust-env" in answer.line
    assert not trap.exists()
    evaluate("a/b")
    assert trap.exists()  # it would have sprung


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "..", "../model.safetensors"]
)
def test_names_that_lead_out_of_a_repository_are_refused_before_anything_is_fetched(
    standin: Hub, agent_files: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    standin.repositories["a/b"] = Repository(agent_files | {name: b"evil"})
    assert repr(name) in evaluate("a/b").line
    assert not fetched(standin)
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("name", [WEIGHTS, INFO])
def test_sizes_are_looked_at_before_anything_is_fetched(
    standin: Hub, agent_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(hub.LARGEST, name, len(agent_files[name]) - 1)
    standin.repositories["a/b"] = Repository(agent_files)
    assert f"{name} of a/b has {len(agent_files[name])} bytes" in evaluate("a/b").line
    assert not fetched(standin)
    monkeypatch.setitem(hub.LARGEST, name, len(agent_files[name]))
    assert evaluate("a/b").code == 0


@pytest.mark.parametrize("name", [WEIGHTS, INFO])
def test_a_repository_of_something_else(
    standin: Hub, agent_files: dict[str, bytes], name: str
) -> None:
    standin.repositories["a/b"] = Repository({k: v for k, v in agent_files.items() if k != name})
    assert f"it has no {name}" in evaluate("a/b").line
    assert not fetched(standin)


# No network, no permission


def test_without_a_network_nothing_is_pushed_or_fetched(
    trained: dict[str, Run],
    standin: Hub,
    closed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point_to(closed, monkeypatch)
    assert "cannot reach the Hub" in polyak_cli("push", trained["td3"].path).line
    assert "cannot reach the Hub" in evaluate(NAME).line
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.utils._http.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in polyak_cli("push", trained["td3"].path).line
    assert "never fetched" in evaluate(NAME).line


def test_what_was_fetched_before_plays_without_a_network(
    standin: Hub,
    agent_files: dict[str, bytes],
    closed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standin.repositories["a/b"] = Repository(agent_files)
    online = evaluate("a/b")
    point_to(closed, monkeypatch)
    with pytest.warns(UserWarning, match="as it was fetched before"):
        folder = polyak.fetch("a/b")
    assert polyak.load(folder).info["algorithm"] == "td3"
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        offline = evaluate("a/b")
    assert offline.out == online.out
    assert offline.err.startswith("polyak: warning: cannot reach the Hub: taking a/b as it was")


def test_a_hub_that_does_not_answer_is_given_up_on(
    trained: dict[str, Run], standin: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        began = time.perf_counter()
        assert "cannot reach the Hub" in polyak_cli("push", trained["td3"].path).line
        assert "cannot reach the Hub" in evaluate(NAME).line
        assert time.perf_counter() - began < 30


def test_a_network_that_answers_in_the_hubs_place(
    trained: dict[str, Run], standin: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sign-in page of a hotel."""
    page = b"<html>Welcome</html>"
    monkeypatch.setattr(
        "tests.hub_standin.ROUTES", [(r".*", lambda handler, body: handler._bytes(page))]
    )
    assert "not as expected" in polyak_cli("push", trained["td3"].path).line
    assert "not as expected" in evaluate(NAME).line


TOKENS = {
    "wrong": ("hf_wrong_secret", "does not accept your token"),
    "none": ("", "not logged in"),
    "control": ("hf_secret\x01", "damaged"),
    "letters": ("hf_sécret", "damaged"),
}


@pytest.mark.parametrize("case", TOKENS)
def test_tokens_that_open_nothing(
    trained: dict[str, Run], standin: Hub, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    token, reason = TOKENS[case]
    monkeypatch.setenv("HF_TOKEN", token)
    by_name = ("--exp-name", "x", "--env-id", "Hopper-v5")
    for command in (["push", trained["td3"].path], ["evaluate", *by_name]):
        answer = polyak_cli(*command)
        assert reason in answer.line
        assert "hf auth login" in answer.line
        assert not re.search("hf_|secret", answer.err)
    assert not standin.repositories


def test_a_token_that_only_reads_and_an_organisation_of_others(
    trained: dict[str, Run], standin: Hub
) -> None:
    answer = polyak_cli("push", trained["td3"].path, "--entity", "google")
    assert "no member of google" in answer.line
    assert "use tester, lab" in answer.line
    standin.role = "read"
    assert "may only read" in polyak_cli("push", trained["td3"].path).line
    assert not standin.repositories


def test_a_wrong_token_is_named_also_where_none_is_needed(
    standin: Hub, agent_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.repositories["a/b"] = Repository(agent_files)
    monkeypatch.setenv("HF_TOKEN", "")
    assert evaluate("a/b").code == 0  # public agents need no account
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not accept your token" in evaluate("a/b").line
    monkeypatch.setenv("HF_TOKEN", "hf_secret\x01")
    assert "damaged" in evaluate("a/b").line


def test_a_missing_repository_is_named(standin: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    standin.repositories["a/private"] = Repository(private=True)
    assert "no repository a/nothing" in evaluate("a/nothing").line
    monkeypatch.setenv("HF_TOKEN", "")
    assert "no repository a/private on the Hub, or it is private" in evaluate("a/private").line


def test_without_the_library(trained: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for command in (["push", trained["td3"].path], ["evaluate", "--hf-repository", "a/b"]):
        assert "pip install 'polyak[hub]'" in polyak_cli(*command).line


# While training


def test_training_publishes_at_its_end(standin: Hub, here: Path) -> None:
    answer = polyak_cli("train", "td3", *flags(**SMALL), "--upload-model", "--hf-entity", "lab")
    assert answer.code == 0, answer.err
    name = NAME.replace("tester", "lab")
    assert answer.out.splitlines()[-1] == f"url={standin.url}/{name}"
    files = standin.repositories[name].files
    assert "replay.mp4" in files
    assert "final" in json.loads(files["results.json"])  # --save-model is implied


@pytest.mark.parametrize("trouble", ["offline", "token", "entity", "alone", "skip"])
def test_what_would_stop_the_upload_stops_before_training(
    standin: Hub, here: Path, closed: str, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    more: list[object] = ["--upload-model"]
    if trouble == "offline":
        point_to(closed, monkeypatch)
    elif trouble == "token":
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    elif trouble == "entity":
        more += ["--hf-entity", "google"]
    elif trouble == "alone":
        more = ["--hf-entity", "lab"]
    elif trouble == "skip":
        more += ["--skip-train", "--load-path", "x"]
    assert polyak_cli("train", "td3", *flags(**SMALL), *more).line
    assert not list(here.iterdir())


def test_an_upload_that_fails_leaves_the_run_and_says_how_to_try_again(
    standin: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: Any, **options: Any) -> None:
        raise PolyakError("cannot reach the Hub (ConnectError): check the network")

    with monkeypatch.context() as patch:
        patch.setattr(hub, "_commit", lost)
        answer = polyak_cli("train", "td3", *flags(**SMALL), "--upload-model")
    assert answer.code == 2
    (run,) = (here / "runs").iterdir()
    last = answer.err.splitlines()[-1]
    assert last.endswith(f"polyak push {run.relative_to(here)}")
    assert Run(run).status["state"] == "finished"
    assert polyak_cli("push", run, "--trust-env").code == 0


# Names


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("Hopper-v5", "td3_continuous_action", 1), "Hopper-v5-td3_continuous_action-seed1"),
        (("polyak/Pusher-v5", "x", 2), "polyak-Pusher-v5-x-seed2"),
        (("my.module:Env-v0", "x", 2), "my.module-Env-v0-x-seed2"),
    ],
)
def test_names_of_repositories(parts: tuple[str, str, int], name: str) -> None:
    assert hub.repository_name(*parts) == name


@settings(max_examples=300)
@given(env_id=st.text(min_size=1, max_size=60), exp_name=st.text(max_size=80), seed=st.integers(0))
def test_any_name_becomes_one_that_the_hub_takes(env_id: str, exp_name: str, seed: int) -> None:
    name = hub.repository_name(env_id, exp_name, seed)
    validate_repo_id(f"tester/{name}")
    assert name.isascii()
    assert len(name) <= hub.LONGEST_NAME


def test_names_that_differ_stay_different() -> None:
    long = "x" * 100
    experiments = ("a b", "a-b", "a--b", "a.b", "a..b", "ä", "ö", long, long + "x", "-", "")
    names = {hub.repository_name("Hopper-v5", experiment, 1) for experiment in experiments}
    assert len(names) == len(experiments)


def test_the_agent_of_these_tests_is_sound(agent_files: dict[str, bytes], tmp_path: Path) -> None:
    """Or every refusal above would mean nothing."""
    for name, data in agent_files.items():
        (tmp_path / name).write_bytes(data)
        assert len(data) <= hub.LARGEST[name]
    assert models.load(tmp_path).info["env_id"] == TWIN
