"""ONNX files: they do what the agent does, in the task's units, or are not written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from gymnasium.spaces import Box

import polyak
from polyak import export, models
from polyak.environments import Environment
from polyak.errors import PolyakError
from polyak.evaluation import evaluate
from polyak.runs import Run
from tests import toys
from tests.plumbing.running import ALGORITHMS, polyak_cli, train
from tests.plumbing.test_models import shaped_agent

onnx: Any = pytest.importorskip("onnx")
onnxruntime: Any = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[2] / "examples" / "play_onnx.py"


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def answer(path: Path, obs: np.ndarray) -> np.ndarray:
    (action,) = session(path).run(["action"], {"observation": obs.astype(np.float32)})
    return np.asarray(action)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_file_holds_the_saved_weights_and_the_rescaling(tmp_path: Path, algorithm: str) -> None:
    """The weights in the agent's file, put through the network by hand."""
    low, high = np.array([-1, 0, -3], np.float32), np.array([1, 5, -2], np.float32)
    agent = shaped_agent(tmp_path, Box(-9, 9, (4,)), Box(low, high), algorithm)
    (run,) = tmp_path.iterdir()
    target, difference = export.to_onnx(run, tmp_path / "a b" / "é.onnx")
    assert difference < 1e-5
    arrays = safetensors.numpy.load_file(run / "final" / "model.safetensors")
    obs = np.random.default_rng(1).standard_normal((1000, 4)).astype(np.float32)
    x = obs.astype(np.float64)
    for layer in range(3):
        x = x @ arrays[f"actor.{layer}.weight"].T + arrays[f"actor.{layer}.bias"]
        x = np.maximum(x, 0.0) if layer < 2 else x
    expected = (low + high) / 2 + (high - low) / 2 * np.tanh(x[:, :3])
    np.testing.assert_allclose(answer(target, obs), expected, atol=1e-5)
    np.testing.assert_allclose(answer(target, obs), agent.act(obs), atol=1e-5)


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_the_batch_is_free(trained: dict[str, Run], tmp_path: Path, batch: int) -> None:
    target, _ = export.to_onnx(trained["td3"].path, tmp_path / "a.onnx")
    (given,), (taken,) = session(target).get_inputs(), session(target).get_outputs()
    assert (given.name, given.type, given.shape) == ("observation", "tensor(float)", ["batch", 4])
    assert (taken.name, taken.type, taken.shape) == ("action", "tensor(float)", ["batch", 2])
    assert answer(target, np.ones((batch, 4))).shape == (batch, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("obs_shape", "shape"), [((3, 2), (2, 3)), ((), ()), ((5,), (1,))])
def test_shapes_and_types_are_the_tasks_own(
    tmp_path: Path, obs_shape: tuple[int, ...], shape: tuple[int, ...], dtype: str
) -> None:
    kind = np.dtype(dtype).type
    # Bounds that float32 does not hold, and a range that is narrow beside its place.
    low, high = np.full(shape, 99.7, kind), np.full(shape, 100.3, kind)
    box = Box(low, high, shape, kind)
    agent = shaped_agent(tmp_path, Box(-9, 9, obs_shape), box)
    target, _ = export.to_onnx(next(tmp_path.iterdir()), tmp_path / "a.onnx")
    obs = 10.0 ** np.arange(-2, 4).reshape(6, *[1] * len(obs_shape)) * np.ones((6, *obs_shape))
    actions, expected = answer(target, obs), agent.act(obs)
    assert (actions.dtype, actions.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(actions, expected, atol=2e-3 * 100 if dtype == "float16" else 5e-5)
    assert all(np.asarray(action) in box for action in actions)  # also where the policy saturates


def test_a_file_says_what_it_is_for(trained: dict[str, Run], tmp_path: Path) -> None:
    target, _ = export.to_onnx(trained["sac"].path / "best", tmp_path / "a.onnx")
    about = session(target).get_modelmeta().custom_metadata_map
    info = models.load(trained["sac"].path / "best").info
    found = {name: json.loads(value) for name, value in about.items()}
    mean = found.pop("eval_return")
    assert mean == np.mean(info["results"]["evaluation"]["returns"])
    assert found == {name: info[name] for name in found}
    assert {"env_id", "algorithm", "step", "action_low", "action_high"} <= found.keys()


def test_by_default_the_file_lies_beside_the_weights(
    trained: dict[str, Run], tmp_path: Path
) -> None:
    run = shutil.copytree(trained["ddpg"].path, tmp_path / "run")
    said = polyak_cli("export", run, "--format", "onnx")
    assert said.code == 0
    assert said.out.startswith(f"exported={run / 'final' / 'policy.onnx'} largest_difference=")
    assert onnx.load(run / "final" / "policy.onnx").producer_name == "polyak"
    assert not list(run.rglob("*.part"))


def test_a_file_that_does_not_do_what_the_agent_does_is_not_written(
    trained: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained["td3"].path
    target = tmp_path / "a.onnx"
    target.write_text("old")
    layer = export._Graph.layer

    def faulty(self: Any, x: str, weights: Any, index: int, outputs: int | None = None) -> str:
        changed = weights | {"2.bias": weights["2.bias"] + np.float32(1e-3)}
        return layer(self, x, changed, index, outputs)

    monkeypatch.setattr(export._Graph, "layer", faulty)
    with pytest.raises(PolyakError, match="was not written: its actions differ"):
        export.to_onnx(run, target)
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]
    assert target.read_text() == "old"


def test_a_file_without_rescaling_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path, env_id=toys.register("Twin", scale=2.0, shift=3.0))

    def unscaled(self: Any, x: str, spec: Any) -> None:
        self.node("Identity", x, output="action")

    monkeypatch.setattr(export._Graph, "scale", unscaled)
    with pytest.raises(PolyakError, match="was not written"):
        export.to_onnx(run.path)
    assert not list(run.path.rglob("*.onnx"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere", "--format", "onnx"], "no saved agent in nowhere"),
        (["."], "--format"),
        ([".", "--format", "pickle"], "'pickle'"),
        ([".", "--fromat", "onnx"], "--format"),
    ],
)
def test_slips_are_one_line(here: Path, arguments: list[str], reason: str) -> None:
    assert reason in polyak_cli("export", *arguments).line
    assert not list(here.iterdir())


def test_a_place_that_cannot_be_written(trained: dict[str, Run], here: Path) -> None:
    (here / "file").touch()
    said = polyak_cli("export", trained["td3"].path, "--format", "onnx", "--output", "file/a.onnx")
    assert said.line.startswith("cannot write file/a.onnx: ")
    said = polyak_cli("export", trained["td3"].path, "--format", "onnx", "--output", ".")
    assert said.line.startswith("cannot write .: that is a folder")


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_without_the_libraries_the_extra_is_named(
    trained: dict[str, Run], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    said = polyak_cli("export", trained["td3"].path, "--format", "onnx")
    assert said.line == f"{library} is not installed: pip install 'polyak[onnx]'"


def test_the_example_plays_it_without_polyak(tmp_path: Path) -> None:
    run = train(tmp_path, env_id="InvertedPendulum-v5", eval_interval=60, eval_episodes=1)
    target, _ = export.to_onnx(run.path, tmp_path / "policy.onnx")
    # In a process in which importing Polyak, or what trained the agent, fails.
    code = (
        "import runpy, sys\n"
        "sys.modules |= dict.fromkeys(('polyak', 'torch', 'jax'))\n"
        f"sys.argv = ['play', {str(target)!r}, '--episodes', '2', '--seed', '5']\n"
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    played = [float(line.split("=")[-1]) for line in done.stdout.splitlines()[:2]]
    with_polyak = polyak.load(run.path)
    env = Environment("InvertedPendulum-v5")
    expected = evaluate(with_polyak.policy(), env, [5, 6]).returns
    assert played == pytest.approx(expected, abs=0.01)
