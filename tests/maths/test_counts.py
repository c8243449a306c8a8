"""How often each network is updated, in whole runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import toys
from tests.maths.cases import Case, train


def targets_that_moved(case: Case, before: Any, after: Any) -> set[str]:
    return {
        name.split(".")[0]
        for name in before
        if name.startswith("target_") and (before[name] != after[name]).any()
    }


@pytest.mark.parametrize("num_envs", [1, 3, 4])
@pytest.mark.parametrize("frequency", [1, 2, 3])
@pytest.mark.parametrize("learning_starts", [6, 9])
def test_one_update_per_environment_step_and_delays_that_count_updates(
    case: Case,
    num_envs: int,
    frequency: int,
    learning_starts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = case.adapter.count_steps(monkeypatch, case.module)
    calls: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    init, update, act = case.module.init, case.module.update, case.module.act
    actors: list[Any] = []

    def watched_init(*arguments: Any) -> Any:
        state = init(*arguments)
        actors.append(state.actor)
        return state

    def watched_update(config: Any, state: Any, batch: Any, noise: Any) -> Any:
        calls["update"] += 1
        before = case.read(state)
        state, metrics = update(config, state, batch, noise)
        moves.update(targets_that_moved(case, before, case.read(state)))
        actors.append(state.actor)
        return state, metrics

    def watched_act(config: Any, actor: Any, obs: Any, noise: Any) -> Any:
        calls["act"] += 1
        assert actor is actors[-1]  # the newest actor plays, not its target
        return act(config, actor, obs, noise)

    monkeypatch.setattr(case.module, "init", watched_init)
    monkeypatch.setattr(case.module, "update", watched_update)
    monkeypatch.setattr(case.module, "act", watched_act)
    actions: list[Any] = []
    delays = {"policy_frequency": frequency}
    sac = case.algorithm == "sac"
    if sac:
        delays["target_network_frequency"] = 2
    run = train(
        case,
        toys.register("Counter", log=actions.append),
        tmp_path,
        total_timesteps=17,
        learning_starts=learning_starts,
        num_envs=num_envs,
        tau=0.5,
        learning_rate=1e-2,  # so that no target stands still by rounding
        **delays,
    )

    rounds = {1: 17, 3: 6, 4: 5}[num_envs]  # 17 steps, rounded up to whole rounds: 17, 18, 20
    steps = rounds * num_envs
    updates = steps - learning_starts
    assert run.status["step"] == len(actions) == steps
    assert calls["update"] == counts["critic"] == updates
    # SAC makes up for its delay by as many updates at once.
    assert counts["actor"] == updates // frequency * (frequency if sac else 1)
    assert counts["alpha"] == (counts["actor"] if sac else 0)
    if sac:
        assert moves == {"target_critic": updates // 2}
    else:
        due = updates // frequency
        assert moves == {"target_critic": due, "target_actor": due}
    # Actions are random in the rounds that begin before `learning_starts`.
    assert calls["act"] == rounds - -(-learning_starts // num_envs)


def test_learning_can_start_at_once(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = case.adapter.count_steps(monkeypatch, case.module)
    train(case, "toys/Counter-v0", tmp_path, total_timesteps=5, learning_starts=0)
    assert counts["critic"] == 5
