"""How often each network is updated, in whole runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyak.algorithms import load_backend
from tests import toys
from tests.maths.cases import Case, train


class Watch:
    """Sees what is played and learned in a run, and learns it again one update at a time."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.updates = self.acts = 0
        self.moves: Counter[str] = Counter()
        """How often each target network moved."""
        self.state: Any = None
        library: Any = load_backend(case.backend)
        init, act, learn = case.module.init, case.module.act, library.learn

        def watched_init(*arguments: Any) -> Any:
            *self._first, _, self._device = arguments  # all but the run's generator
            self.state = init(*arguments)
            return self.state

        def watched_act(config: Any, actor: Any, obs: Any, noise: Any) -> Any:
            self.acts += 1
            assert actor is self.state.actor  # the newest actor plays, not its target
            return act(config, actor, obs, noise)

        def watched_learn(update: Any, config: Any, state: Any, draws: Any) -> Any:
            self.updates += len(draws)
            before = library.snapshot(state)
            self.state, metrics = learn(update, config, state, draws)
            other = init(*self._first, np.random.default_rng(0), self._device)
            single = library.restore(other, before)
            alone: dict[str, Any] = {}
            for draw in draws:
                single, new = learn(update, config, single, [draw])
                after = library.snapshot(single)
                moved = {k.split(".")[0] for k in after if (after[k] != before[k]).any()}
                self.moves.update(name for name in moved if name.startswith("target_"))
                before, alone = after, alone | new
            for name, array in library.snapshot(self.state).items():
                np.testing.assert_allclose(before[name], array, rtol=0, atol=1e-4, err_msg=name)
            assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
                {k: float(v) for k, v in alone.items()}, rel=1e-3, abs=1e-4
            )
            return self.state, metrics

        monkeypatch.setattr(case.module, "init", watched_init)
        monkeypatch.setattr(case.module, "act", watched_act)
        monkeypatch.setattr(library, "learn", watched_learn)
        self._library = library

    def steps(self, network: str) -> int:
        """Gradient steps that a network has taken."""
        return int(self._library.snapshot(self.state)[f"{network}_optimizer.steps"])


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
    watch = Watch(case, monkeypatch)
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
    assert watch.updates == watch.steps("critic") == updates
    # SAC makes up for its delay by as many updates at once.
    assert watch.steps("actor") == updates // frequency * (frequency if sac else 1)
    if sac:
        assert watch.steps("alpha") == watch.steps("actor")
        assert watch.moves == {"target_critic": updates // 2}
    else:
        due = updates // frequency
        assert watch.moves == {"target_critic": due, "target_actor": due}
    # Actions are random in the rounds that begin before `learning_starts`.
    assert watch.acts == rounds - -(-learning_starts // num_envs)


def test_learning_can_start_at_once(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(case, monkeypatch)
    train(case, "toys/Counter-v0", tmp_path, total_timesteps=5, learning_starts=0)
    assert watch.steps("critic") == 5
