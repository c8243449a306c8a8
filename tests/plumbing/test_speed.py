"""The benchmark of speed: the work that it counts, its verdicts, and that it runs."""

import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _found() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


@pytest.fixture
def roofline() -> ModuleType:
    return importlib.import_module("roofline")


def network(*sizes: int) -> list[Tensor]:
    return [torch.randn(m, n) for m, n in itertools.pairwise(sizes)]


def actor_of(weights: list[Tensor], obs: Tensor) -> Tensor:
    return ((obs @ weights[0]).relu() @ weights[1]).relu() @ weights[2]


def value_of(weights: list[Tensor], obs: Tensor, action: Tensor) -> Tensor:
    """The first layer is cut in two, so that no gradient by observations is computed."""
    hidden = (obs @ weights[0] + action @ weights[1]).relu()
    return (hidden @ weights[2]).relu() @ weights[3]


def learning(weights: list[Tensor], *, on: bool) -> None:
    for weight in weights:
        weight.requires_grad_(on)


@pytest.mark.parametrize(
    ("algorithm", "critics", "through", "outputs", "often"),
    [("ddpg", 1, 1, 3, 0.5), ("td3", 2, 1, 3, 0.5), ("sac", 2, 2, 6, 1.0)],
)
def test_work_is_what_pytorch_counts(
    roofline: ModuleType, algorithm: str, critics: int, through: int, outputs: int, often: float
) -> None:
    """An update with nothing but its products, counted while PyTorch computes it."""
    obs, action = torch.randn(256, 11), torch.randn(256, 3)
    actor = network(11, 256, 256, outputs)
    both = [[torch.randn(11, 256), *network(3, 256, 256, 1)] for _ in range(critics)]
    weights = [weight for one in both for weight in one]
    with FlopCounterMode(display=False) as critic_step:
        next_action = actor_of(actor, obs)[:, :3]
        targets = torch.stack([value_of(one, obs, next_action) for one in both])
        learning(weights, on=True)
        values = torch.stack([value_of(one, obs, action) for one in both])
        torch.autograd.grad((values - targets).square().mean(), weights)
    learning(weights, on=False)
    learning(actor, on=True)
    with FlopCounterMode(display=False) as actor_step:
        chosen = actor_of(actor, obs)[:, :3]
        values = torch.stack([value_of(one, obs, chosen) for one in both[:through]])
        torch.autograd.grad(values.mean(), actor)
    counted = critic_step.get_total_flops() + often * actor_step.get_total_flops()
    assert roofline.flop(algorithm, roofline.Sizes(11, 3)) == counted


def test_work_of_td3_by_hand(roofline: ModuleType) -> None:
    """In units of 2 x 256 operations, of networks with 11 observations and 3 actions."""
    square, actor, value = 256 * 256, 256 * (11 + 3), 256 * (14 + 1)
    critic_step = (square + actor) + 2 * 2 * (square + value)
    critic_step += 2 * (256 + square + 256 + square + 256 * 14)  # by two layers' inputs, by weights
    actor_step = (square + actor) + (square + value)
    actor_step += 256 + square + 256 * 3  # through the critic to the action
    actor_step += 256 * 3 + square + 256 * 3 + square + 256 * 11
    assert roofline.flop("td3", roofline.Sizes(11, 3)) == 512 * (critic_step + actor_step / 2)


def test_verdicts_on_both_kinds_of_target() -> None:
    targets = importlib.import_module("targets")
    results = importlib.import_module("speed_results")
    rows = results.Rows(
        [
            results.Row("loop", "1/s", [90.0, 100.0, 500.0], "Hopper-v5", "td3", "sb3"),
            results.Row("loop", "1/s", [180.0, 200.0, 210.0], "Hopper-v5", "td3", "torch"),
            results.Row("help", "s", [0.1, 0.6, 0.7]),
        ]
    )
    reached = {target.what: found for target, *found in targets.reached(rows)}
    assert reached == {
        "PyTorch TD3 against SB3": [2.0, "ok"],  # of medians; 1.7 is asked for and 2.2 the aim
        "polyak --help": [0.6, "LOW"],
    }
    assert "2 measured: 1 LOW, 0 at the aim" in targets.summary(rows)


def test_shares_of_the_loop_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    costs = importlib.import_module("costs")
    shares = costs.shares("torch", 200, 1, env_id="InvertedPendulum-v5", warm_up=100)
    assert set(shares) == set(importlib.import_module("targets").PARTS)
    assert all(share > 0.0 for share in shares.values())
    assert sum(shares.values()) < 1.0
    assert not list(tmp_path.iterdir())


def test_programs_take_turns_and_say_why_they_end(tmp_path: Path) -> None:
    pacing = importlib.import_module("pacing")
    program = tmp_path / "program.py"
    program.write_text(
        "import pacing\n"
        "print('something else')\n"
        "pacing.report(0.0)\n"
        "while (steps := pacing.asked()) != 4:\n"
        "    pacing.report(10.0 * steps)\n"
        "raise ValueError('four')\n"
    )
    variables = {"PYTHONPATH": str(BENCHMARKS)}
    with (
        pacing.Worker([sys.executable, str(program)], variables) as one,
        pacing.Worker([sys.executable, str(program)], variables) as two,
    ):
        turns = {"one": pacing.Turns(one, 3, 1), "two": pacing.Turns(two, 3, 2)}
        reports = pacing.take_turns(turns, rounds=2)
        seconds = {name: [each["seconds"] for each in found] for name, found in reports.items()}
        assert seconds == {"one": [10.0, 10.0], "two": [20.0, 20.0]}
        with pytest.raises(RuntimeError, match="ValueError: four"):
            one.work(4)


def test_the_command_writes_page_record_and_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "speed.py"), "--quick", "--threads", "1"]
    command += ["--only", "loop", "update", "--tasks", "InvertedPendulum-v5"]
    command += ["--algorithms", "ddpg", "--backends", "torch"]
    command += ["--output", str(tmp_path), "--name", "smoke"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".json", ".png"}
    record = json.loads((tmp_path / "smoke.json").read_text("utf-8"))
    measured = {(row["what"], row["system"], row["num_envs"]): row for row in record["rows"]}
    for key in (("loop", "torch", 1), ("loop", "torch", 4), ("update", "torch", 1)):
        (rate,) = measured[key]["values"]
        assert 0.0 < rate < measured["update limit", "", 1]["values"][0] * 100
    assert record["options"]["threads"] == 1
    assert "| InvertedPendulum-v5 | DDPG |" in (tmp_path / "smoke.md").read_text("utf-8")
