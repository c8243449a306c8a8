"""A saved agent as an ONNX file: observation in the task's units to action in the task's units.

The graph is written down node by node from the saved weights, so that it is the same whichever
library trained them, and holds the rescaling of actions, so that whoever runs it needs no Polyak.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from polyak import models
from polyak.environments import Spec
from polyak.errors import PolyakError
from polyak.models import Agent
from polyak.version import __version__

OPSET, IR_VERSION = 17, 8
"""Of 2022: older runtimes read it, and no node of ours needs a newer one."""

SAMPLES = 1_000
"""Observations, standard normal, on which the file is compared with the agent before it is kept."""

TOLERANCE = 1e-5
"""Largest difference of an action, as a share of its range, that is put down to the order of sums.

Two steps of the action's own float type come on top: a float16, or a narrow range far from zero, is
coarser than this.
"""


def to_onnx(path: Path, target: Path | None = None) -> tuple[Path, float]:
    """Writes a saved agent's deterministic policy as ONNX.

    Input `observation` is float32 (batch, *observation shape), output `action` is of the task's
    float type, (batch, *action shape), within its bounds. The batch is of any size.

    Args:
        path: see `models.load`.
        target: the file to write; by default `policy.onnx` beside the agent's weights.

    Returns the file and the largest difference from the agent that was found, as a share of the
    action's range.

    Raises:
        PolyakError: no such agent, the libraries are not installed, the file cannot be written, or
            what it computes is not what the agent does, in which case it is not kept.
    """
    onnx, onnxruntime = _library("onnx"), _library("onnxruntime")
    agent = models.load(path)
    target = target or models.find(path) / "policy.onnx"
    if target.is_dir():
        raise PolyakError(f"cannot write {target}: that is a folder; name a file in it")
    model = _model(onnx, agent)
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    difference = _difference(onnxruntime, agent, data)
    if not (difference <= _allowed(agent.spec)).all():
        raise PolyakError(
            f"{target} was not written: its actions differ from the agent's by up to "
            f"{difference.max():.2g} of their range, which rounding does not explain"
        )
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):  # such as a file where its folder should be
            part.unlink(missing_ok=True)
        raise PolyakError(f"cannot write {target}: {error.strerror}") from error
    return target, float(difference.max())


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PolyakError(f"{name} is not installed: pip install 'polyak[onnx]'") from error


def _model(onnx: Any, agent: Agent) -> Any:
    """The policy as an ONNX model."""
    spec, helper = agent.spec, onnx.helper
    graph = _Graph(onnx)
    x = graph.node(
        "Reshape", "observation", graph.array(np.array([0, spec.obs_dim], np.int64))
    )  # (B, O)
    *hidden, output = range(len(agent.weights) // 2)
    for layer in hidden:
        x = graph.node("Relu", graph.layer(x, agent.weights, layer))
    # What an actor puts out besides actions follows them, as the spread of SAC's policy does.
    x = graph.node("Tanh", graph.layer(x, agent.weights, output, spec.action_dim))
    graph.scale(x, spec)  # (B, A)
    float_type = helper.np_dtype_to_tensor_dtype(np.dtype(spec.action_dtype))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [_tensor(onnx, "observation", onnx.TensorProto.FLOAT, spec.obs_shape)],
            [_tensor(onnx, "action", float_type, spec.action_shape)],
            graph.arrays,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="polyak",
        producer_version=__version__,
    )
    helper.set_model_props(model, _metadata(agent))
    return model


class _Graph:
    """Nodes and constants in the order in which they were added."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []

    def array(self, value: np.ndarray) -> str:
        """Adds a constant; returns its name."""
        name = f"constant_{len(self.arrays)}"
        self.arrays.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds an operation; returns the name of its output."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def layer(
        self, x: str, weights: dict[str, np.ndarray], index: int, outputs: int | None = None
    ) -> str:
        """A fully connected layer (B, in) -> (B, out), or its first outputs only."""
        weight = self.array(weights[f"{index}.weight"][:outputs])
        bias = self.array(weights[f"{index}.bias"][:outputs])
        return self.node("Gemm", x, weight, bias, transB=1)

    def scale(self, x: str, spec: Spec) -> None:
        """`scale_action`, from (B, A) in [-1, 1] to the output `action`.

        Computed in float32, which more runtimes have than float64, unless the bounds are float64.
        """
        wide = np.dtype(np.float64 if spec.action_dtype == "float64" else np.float32)
        low, high = (self.array(b.astype(wide)) for b in (spec.action_low, spec.action_high))
        half, one = self.array(np.array(0.5, wide)), self.array(np.array(1.0, wide))
        to_type = self._onnx.helper.np_dtype_to_tensor_dtype
        x = self.node("Cast", x, to=to_type(wide))
        t = self.node("Add", self.node("Mul", x, half), half)
        below = self.node("Mul", low, self.node("Sub", one, t))
        x = self.node("Add", below, self.node("Mul", high, t))
        x = self.node("Min", self.node("Max", x, low), high)
        x = self.node("Cast", x, to=to_type(np.dtype(spec.action_dtype)))
        shape = self.array(np.array([0, *spec.action_shape], np.int64))
        if spec.action_shape:
            self.node("Reshape", x, shape, output="action")
        else:  # of a task whose action is a number, a batch has one axis
            self.node("Squeeze", x, self.array(np.array([1], np.int64)), output="action")


def _tensor(onnx: Any, name: str, kind: int, shape: tuple[int, ...]) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, ["batch", *shape])


def _metadata(agent: Agent) -> dict[str, str]:
    """What the file says of itself, each value as JSON."""
    info = agent.info
    names = (
        "env_id", "algorithm", "backend", "exp_name", "seed", "step", "obs_shape", "action_shape",
        "action_dtype", "action_low", "action_high",
    )  # fmt: skip
    found = {name: info[name] for name in names}
    if evaluation := info["results"].get("evaluation"):
        found["eval_return"] = float(np.mean(evaluation["returns"]))
    return {name: json.dumps(value) for name, value in found.items()}


def _difference(onnxruntime: Any, agent: Agent, data: bytes) -> np.ndarray:
    """The largest difference of each action (A,) of file and agent, as a share of its range."""
    spec = agent.spec
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    obs = generator.standard_normal((SAMPLES, *spec.obs_shape), dtype=np.float32)
    (action,) = session.run(["action"], {"observation": obs})
    expected = agent.act(obs)
    if action.shape != expected.shape or action.dtype != expected.dtype:
        return np.full(spec.action_dim, np.inf)
    gap = np.abs(action.astype(np.float64) - expected).reshape(SAMPLES, -1).max(axis=0)
    return gap / (spec.action_high - spec.action_low)


def _allowed(spec: Spec) -> np.ndarray:
    """The differences (A,) that rounding explains, as shares of the range."""
    largest = np.maximum(np.abs(spec.action_low), np.abs(spec.action_high))
    step = np.spacing(largest.astype(spec.action_dtype)).astype(np.float64)
    return TOLERANCE + 2.0 * step / (spec.action_high - spec.action_low)
