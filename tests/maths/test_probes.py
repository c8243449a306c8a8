"""Environments whose values and best actions are known, learned through the public function.

From "Debugging RL, without the agonizing pain" (Jones 2021): each fault in the mathematics shows as
a wrong number within seconds. SAC gets so small a fixed entropy coefficient that the values are
those of plain returns, except where the entropy is what is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyak
from polyak.runs import Run
from tests import toys
from tests.maths import reference
from tests.maths.cases import Case, only, train, trained, trained_critics


def probe(case: Case, env_id: str, folder: Path, **settings: Any) -> Run:
    """Fast settings: targets follow at once, so that values travel in few updates."""
    chosen: dict[str, Any] = {
        "total_timesteps": 300,
        "learning_starts": 100,
        "critic_lr": 1e-2,
        "actor_lr": 1e-3,
        "tau": 0.5,
        "gamma": 0.9,
        "policy_frequency": 1,
        "hidden_dim": 32,
        "batch_size": 128,
    }
    if case.algorithm == "sac":
        chosen |= {"autotune": False, "alpha": 1e-6}
    else:
        chosen |= {"exploration_noise": 0.3}
    return train(case, env_id, folder, **chosen | settings)


def values(run: Run, obs: list[float], actions: list[float]) -> np.ndarray:
    """Each critic's Q of these one-dimensional actions, (E, len(actions))."""
    return np.array(
        [
            [reference.q(critic, np.array(obs), np.array([action])) for action in actions]
            for critic in trained_critics(run)
        ]
    )


ACTIONS = [-0.9, -0.3, 0.0, 0.4, 0.8]


def test_a_time_limit_does_not_end_the_value(case: Case, tmp_path: Path) -> None:
    run = probe(case, toys.register("Const", length=5), tmp_path)
    np.testing.assert_allclose(values(run, [1.0], ACTIONS), 10.0, atol=0.5)


def test_a_termination_ends_the_value(case: Case, tmp_path: Path) -> None:
    # The observation does not tell which step is the fifth: Q = 1 + 0.9 * 0.8 Q.
    # How many of a batch's rows end differs from batch to batch: smaller steps average over them.
    env_id = toys.register("ConstTerm", length=5)
    run = probe(case, env_id, tmp_path, critic_lr=5e-3, tau=0.2)
    assert values(run, [1.0], ACTIONS).mean() == pytest.approx(1.0 / 0.28, abs=0.7)


def test_a_termination_on_the_time_limit_s_step_ends_the_value(case: Case, tmp_path: Path) -> None:
    run = probe(case, toys.register("Both", length=1), tmp_path, total_timesteps=220)
    np.testing.assert_allclose(values(run, [1.0], ACTIONS), 1.0, atol=0.1)


def test_the_best_action_of_an_asymmetric_box_is_found(case: Case, tmp_path: Path) -> None:
    low, high, target = [0.0, -3.0], [4.0, 0.0], [3.0, -2.2]
    env_id = toys.register("One", low=low, high=high, target=target)
    run = probe(case, env_id, tmp_path, total_timesteps=450)
    action = polyak.load(run.path).act(np.ones(1, np.float32))
    # It begins in the middle, (2, -1.5).
    np.testing.assert_allclose(action, target, atol=0.45)


def test_a_reward_that_comes_one_step_late_is_credited_to_its_action(
    case: Case, tmp_path: Path
) -> None:
    run = probe(case, toys.register("Delayed", target=-0.5), tmp_path, total_timesteps=450)
    actions = np.array([-0.9, -0.5, 0.0, 0.5])
    expected = 0.9 * (1.0 - (actions + 0.5) ** 2)
    found = values(run, [0.0, 0.0], list(actions))
    np.testing.assert_allclose(found, np.tile(expected, (len(found), 1)), atol=0.2)
    action = polyak.load(run.path).act(np.zeros(2, np.float32))
    np.testing.assert_allclose(action, [-0.5], atol=0.25)


@only("sac")
def test_the_value_counts_the_entropy_of_later_actions(case: Case, tmp_path: Path) -> None:
    """Q = r + gamma (Q + alpha H): of every step but the first, whose action is given."""
    env_id = toys.register("Const", length=5)
    run = probe(case, env_id, tmp_path, alpha=2.0, total_timesteps=500)
    weights = trained(run)
    actor = {k.removeprefix("actor."): w for k, w in weights.items() if k.startswith("actor.")}
    noise = np.random.default_rng(0).normal(size=(2000, 1))
    log_probs = [reference.sample(reference.double(actor), np.ones(1), n)[1] for n in noise]
    entropy = -np.mean(log_probs)
    # With nothing else to win the policy goes to the uniform one, which has entropy log 2.
    assert entropy == pytest.approx(np.log(2.0), abs=0.05)
    expected = (1.0 + 0.9 * 2.0 * entropy) / (1.0 - 0.9)
    np.testing.assert_allclose(values(run, [1.0], ACTIONS), expected, rtol=0.1)


def test_learning_does_not_depend_on_the_unit_of_the_action(case: Case, tmp_path: Path) -> None:
    """Bit by bit: the agent's side has no unit, and this task rounds away that of its box."""
    boxes: list[tuple[Any, Any, str]] = [
        (1.0, 0.0, "float32"),
        (0.4, 0.0, "float32"),
        (2.0, 3.0, "float64"),
        ([0.1, 7.0], [-1.0, 3.0], "float32"),
    ]
    results = []
    for scale, shift, dtype in boxes:
        env_id = toys.register("Twin", scale=scale, shift=shift, dtype=dtype)
        settings = {"total_timesteps": 130, "learning_starts": 60, "learning_rate": 1e-2}
        run = train(case, env_id, tmp_path, **settings)
        returns = [row["charts/episodic_return"] for row in run.metrics("charts/episodic_return")]
        results.append((returns, trained(run)))
    first, *others = results
    assert len(set(first[0])) > 3  # several episodes, and the agent does not stand still
    for returns, weights in others:
        assert returns == first[0]
        for name, array in weights.items():
            np.testing.assert_array_equal(array, first[1][name], err_msg=name)
