"""Several seeds in one process: each run is what it would be alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import polyak
from polyak import PolyakError, algorithms, stopping
from polyak.algorithms import ALGORITHMS
from polyak.lockstep import Lane, Lockstep
from polyak.runs import Run
from tests import toys
from tests.plumbing import running
from tests.plumbing.running import SMALL, polyak_cli

pairs = pytest.mark.parametrize(("algorithm", "backend"), ALGORITHMS, ids=map("-".join, ALGORITHMS))


def train(folder: Path, algorithm: str = "td3", num_seeds: int = 3, **options: Any) -> list[Run]:
    """Small runs that all end well."""
    settings = SMALL | {"runs_dir": str(folder)} | options
    found = polyak.train_seeds(algorithm, num_seeds, **settings)
    for outcome in found.values():
        if isinstance(outcome, BaseException):
            raise outcome
    return [run for run in found.values() if isinstance(run, Run)]


def rows(run: Run) -> list[dict[str, Any]]:
    """What a run recorded, without what differs between two runs of one seed."""
    return [
        {name: value for name, value in row.items() if name != "time" and "SPS" not in name}
        for row in run.metrics()
    ]


def learned(run: Run) -> dict[str, np.ndarray]:
    weights: dict[str, np.ndarray] = load_file(run.path / "final" / "model.safetensors")
    return weights


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes all runs as one, as on a GPU."""
    init = Lockstep.__init__

    def always(self: Lockstep, algorithm: Any, backend: Any, *, stacked: bool) -> None:
        init(self, algorithm, backend, stacked=True)

    monkeypatch.setattr(Lockstep, "__init__", always)


@pairs
@pytest.mark.parametrize("num_envs", [1, 3])
def test_each_is_bit_by_bit_what_it_is_alone(
    algorithm: str, backend: str, num_envs: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"backend": backend, "num_envs": num_envs}
    options |= {"eval_interval": 30, "eval_episodes": 2}
    together = train(tmp_path, algorithm, seed=5, save_model=True, **options)
    assert len({run.path for run in together}) == 3
    for seed, run in zip((5, 6, 7), together, strict=True):
        alone = running.train(tmp_path, algorithm, seed=seed, save_model=True, **options)
        assert running.weights(run) == running.weights(alone)
        assert rows(run) == rows(alone)
        assert run.status["state"] == "finished"
        assert run.config["seed"] == seed
        for config in (different := [run.config, alone.config]):
            del config["context"]
        assert different[0] == different[1]
    assert learned(together[0])["actor.0.weight"].tolist() != (
        learned(together[1])["actor.0.weight"].tolist()
    )


@pytest.mark.usefixtures("stacked")
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_computed_as_one_they_differ_from_runs_alone_by_rounding(
    algorithm: str, backend: str, tmp_path: Path
) -> None:
    # A product of stacked matrices adds in another order. 2,000 updates; no environment's answer
    # depends on the action here, so that rounding is not fed back through different data.
    options = {
        "env_id": toys.PREFIX + "toys/Const-v0",
        "backend": backend,
        "total_timesteps": 2_020,
        "log_interval": 500,
    }
    for seed, run in enumerate(train(tmp_path, algorithm, 3, seed=1, **options), start=1):
        alone = learned(running.train(tmp_path, algorithm, seed=seed, **options))
        for name, weights in learned(run).items():
            difference = np.linalg.norm(weights - alone[name])
            assert difference < 1e-2 * np.linalg.norm(alone[name]), f"{name} of seed {seed}"


@pytest.mark.usefixtures("stacked")
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_computed_as_one_there_is_one_call_for_all(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = algorithms.load("sac", backend)
    shapes, update = set(), module.update

    def watched(config: Any, state: Any, batch: Any, noise: np.ndarray) -> Any:
        shapes.add((batch.obs.shape[:2], noise.shape[:3]))
        return update(config, state, batch, noise)

    monkeypatch.setattr(module, "update", watched)
    train(tmp_path, "sac", 3, backend=backend)
    assert shapes == {((3, 8), (3, 3, 8))}  # (L, B) and (K, L, B)


class Fragile(toys.Counter):
    """Breaks in its 30th step if it is the one."""

    broken: int | None = None

    def move(self, action: Any) -> tuple[Any, float, bool, bool]:
        if self.steps == 30 and self.seed == Fragile.broken:
            raise RuntimeError("a screw is loose")
        return super().move(action)


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A task whose training environment breaks for seed 2."""
    import gymnasium

    from polyak.environments import TRAINING, seeds_for

    monkeypatch.setattr(Fragile, "broken", seeds_for(2, TRAINING, 1)[0])
    gymnasium.register("toys/Fragile-v0", entry_point=Fragile, kwargs={"length": 100})
    yield "toys/Fragile-v0"
    gymnasium.registry.pop("toys/Fragile-v0")


@pytest.mark.parametrize("as_one", [False, True])
def test_one_that_fails_leaves_the_others_alone(
    as_one: bool, fragile: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if as_one:
        request.getfixturevalue("stacked")
    options = SMALL | {"env_id": fragile, "runs_dir": str(tmp_path)}
    outcomes = polyak.train_seeds("td3", 3, seed=1, **options)
    assert isinstance(outcomes[2], RuntimeError)
    states = {}
    for file in tmp_path.glob("*/status.json"):
        run = Run(file.parent)
        states[run.config["seed"]] = run.status["state"]
        if run.config["seed"] == 2:
            assert "a screw is loose" in run.status["error"]
            assert run.status["step"] == 29
    assert states == {1: "finished", 2: "failed", 3: "finished"}
    if not as_one:
        finished = outcomes[3]
        assert isinstance(finished, Run)
        alone = running.train(tmp_path, "td3", env_id=fragile, seed=3)
        assert running.weights(finished) == running.weights(alone)


def test_all_stop_together_and_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole", seed=1)
    asked = iter([False] * 3 * 31 + [True] * 100)
    with monkeypatch.context() as patch:
        patch.setattr(stopping, "asked", lambda: next(asked))
        options = SMALL | {"runs_dir": str(tmp_path / "cut")}
        outcomes = polyak.train_seeds("td3", 3, seed=1, **options)
    assert all(isinstance(outcome, stopping.Stopped) for outcome in outcomes.values())
    cut = [Run(file.parent) for file in sorted((tmp_path / "cut").glob("*/status.json"))]
    assert {run.status["state"] for run in cut} == {"interrupted"}
    resumed = train(tmp_path / "cut", seed=1, resume="auto")
    assert {run.path for run in resumed} == {run.path for run in cut}
    for one, other in zip(whole, resumed, strict=True):
        assert running.weights(one) == running.weights(other)
        assert rows(one) == rows(other)


def test_an_interruption_that_does_not_wait_ends_all() -> None:
    ended = []

    def wait(lane: Lane) -> None:
        try:
            for _ in range(10):
                lane.learn(lane.update, None, lane, [])
        except KeyboardInterrupt:
            ended.append(lane)
            raise

    def interrupted(lane: Lane) -> None:
        lane.learn(lane.update, None, lane, [])
        raise KeyboardInterrupt

    class Nothing:
        Actor = prepare = update = None

        def learn(self, update: Any, config: Any, state: Any, draws: Any) -> tuple[Any, Any]:
            return state, {}

    nothing: Any = Nothing()
    steps = Lockstep(nothing, nothing, stacked=False)
    steps.states = dict.fromkeys(range(3))
    with pytest.raises(KeyboardInterrupt):
        steps.run([wait, interrupted, wait])
    assert len(ended) == 2


def test_an_error_of_the_library_is_written_into_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "the device is full")  # needs its arguments

    monkeypatch.setattr(algorithms.load("td3", "torch"), "update", fail)
    with pytest.raises(UnicodeDecodeError):
        train(tmp_path)
    errors = [Run(file.parent).status["error"] for file in tmp_path.glob("*/status.json")]
    assert len(errors) == 3
    assert all("the device is full" in error for error in errors)


def test_the_command_prints_every_run(tmp_path: Path) -> None:
    given = running.flags(**SMALL, runs_dir=tmp_path, seed=4)
    answer = polyak_cli("train", "td3", "--num-seeds", "2", *given)
    assert answer.code == 0
    paths = [line.removeprefix("run=") for line in answer.out.splitlines()]
    assert [Run(Path(path)).config["seed"] for path in paths] == [4, 5]
    for path in paths:
        assert path in answer.err  # said at the start, too


def test_the_command_says_which_seeds_failed(tmp_path: Path) -> None:
    poison = toys.register("Poison", k=30, field="reward", value=float("nan"))
    given = running.flags(**SMALL | {"env_id": poison}, runs_dir=tmp_path)
    answer = polyak_cli("train", "td3", "--num-seeds", "2", *given)
    assert answer.code == 2
    last = answer.err.splitlines()[-1]
    assert "2 of 2 seeds failed: seed 1: reward is nan at step 30" in last
    assert "seed 2: reward is nan" in last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_seeds": 0}, "--num-seeds must be 1 to 10000, not 0"),
        ({"num_seeds": 2.0}, "--num-seeds must be 1 to 10000, not 2.0"),
        ({"save_path": "somewhere"}, "--save-path is one agent's"),
        ({"resume": "runs/some"}, "--resume auto"),
        ({"env_id": "Hoper-v5"}, "did you mean Hopper-v5"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PolyakError, match=message):
        train(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_memory_is_counted_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyak.memory.available", lambda: 4_000)
    running.train(tmp_path)  # one fits
    with pytest.raises(PolyakError, match="replay of 3 times 60 transitions"):
        train(tmp_path)


def test_a_preset_s_save_path_is_left_out(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text('save_path = "artifacts/agent"\n')
    (run,) = train(tmp_path / "runs", num_seeds=1, preset=str(preset))
    assert run.config["save_path"] == ""


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--resume", ""], "--resume is empty: give a run folder, or auto"),
        (["--resume", "nowhere"], "no run in 'nowhere': give a run folder"),
        (["--trust-env", "--resume", "auto"], "--trust-env is for --skip-train or --resume RUN"),
        (["--skip-train", "--load-path", "x", "--num-seeds", "2"], "--num-seeds is for training"),
        (["--skip-train", "--load-path", "x", "--resume", "auto"], "--resume is for training"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(given: list[str], line: str, here: Path) -> None:
    assert line in polyak_cli("train", "td3", *given).line
    assert not list(here.iterdir())
