"""What evaluations make of a run: numbers in its record, its best agent and its final one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polyak import models
from polyak.algorithms.initial import Weights, under
from polyak.algorithms.interface import Algorithm, Backend
from polyak.environments import EVALUATION, FINAL, Environment, seeds_for
from polyak.evaluation import Evaluation, Policy, evaluate
from polyak.runs import Run
from polyak.settings import Setup
from polyak.tracking import Tracker

FINAL_EPISODES = 10
"""Episodes of the evaluation that `save_model` adds."""


class Review:
    """Evaluates in an environment of its own and keeps the best and the final agent.

    Takes nothing from the run's generator: with or without evaluation, training is the same.

    Args:
        setup: what the run was asked for.
        algorithm: whose `Actor` plays.
        backend: takes the weights out of the run's state.
        device: where the actor plays.
        env: the environment of the evaluations, which nothing else uses.
        run: its folder gets the agents `best` and `final`.
        tracker: the run's record; its clock stands still meanwhile.
    """

    def __init__(
        self,
        setup: Setup,
        algorithm: Algorithm,
        backend: Backend,
        device: Any,
        env: Environment,
        run: Run,
        tracker: Tracker,
    ) -> None:
        self._setup, self._algorithm = setup, algorithm
        self._backend, self._device = backend, device
        self._env, self._run, self._tracker = env, run, tracker
        settings = setup.settings
        episodes = settings.eval_episodes if settings.eval_interval else 0
        # The same first states at every evaluation, so that a curve shows the agent, not the draw.
        self._seeds = seeds_for(settings.seed, EVALUATION, episodes)
        self._best: tuple[int, Evaluation, Weights] | None = None
        self._latest: tuple[int, Evaluation | None] = (-1, None)

    def __call__(self, step: int, state: Any) -> None:
        """Evaluates now, if evaluations are asked for, and keeps the agent if it is the best.

        Args:
            step: environment steps taken.
            state: what was learned in them.

        Raises:
            PolyakError: a number is not finite, or the agent cannot be written.
        """
        if not self._seeds:
            return
        self._tracker.pause()
        weights = self._backend.export(state)
        result = evaluate(self._policy(weights), self._env, self._seeds)
        self._tracker.evaluation(step, result)
        self._run.write_status("running", step)
        if self._best is None or result.mean > self._best[1].mean:
            self._best = (step, result, weights)
            self._save_best()
        self._latest = (step, result)
        self._tracker.resume()

    def snapshot(self) -> tuple[dict[str, Any], Weights]:
        """What was found so far, plain enough for JSON, and the best agent's weights."""
        step, best, weights = self._best or (-1, None, {})
        return {"best": (step, best), "latest": self._latest}, weights

    def restore(self, results: dict[str, Any], weights: Weights) -> None:
        """Goes on where `snapshot` was taken; the best agent of then is put back into its place.

        Raises:
            KeyError, TypeError, ValueError: they are of something else.
            PolyakError: the agent cannot be written.
        """
        (step, best), (latest, result) = results["best"], results["latest"]
        self._latest = (int(latest), Evaluation(*result) if result else None)
        if best:
            self._best = (int(step), Evaluation(*best), weights)
            self._save_best()

    def final(self, step: int, state: Any) -> None:
        """Keeps the final agent with its evaluation, after one if the last is not of this step.

        Raises:
            PolyakError: as for an evaluation.
        """
        if self._latest[0] != step:
            self(step, state)
        results = {"evaluation": self._latest[1]} if self._latest[1] else {}
        weights = self._backend.export(state)
        settings = self._setup.settings
        if settings.save_model:
            seeds = seeds_for(settings.seed, FINAL, FINAL_EPISODES)
            noise = np.random.default_rng([settings.seed, FINAL])
            results["final"] = evaluate(self._policy(weights), self._env, seeds)
            results["exploring"] = evaluate(self._policy(weights, noise), self._env, seeds)
            values = {
                "eval/final_return": results["final"].mean,
                "eval/final_return_exploring": results["exploring"].mean,
            }
            self._tracker.write(step, values)
        self._save(self._run.path / "final", step, weights, results)
        if settings.save_path:
            self._save(Path(settings.save_path), step, weights, results)

    def _policy(self, weights: Weights, generator: np.random.Generator | None = None) -> Policy:
        """What is judged is made of the weights that are saved."""
        actor = self._algorithm.Actor(under("actor", weights), self._device)
        return models.policy(
            self._algorithm, self._setup.config, actor, self._env.spec.action_dim, generator
        )

    def _save_best(self) -> None:
        if self._best is not None:
            step, result, weights = self._best
            self._save(self._run.path / "best", step, weights, {"evaluation": result})

    def _save(
        self, path: Path, step: int, weights: Weights, results: dict[str, Evaluation]
    ) -> None:
        models.save(path, weights, self._setup, self._env.spec, step, results)
