"""Training: setting a run up, and the loop, which is the same for every algorithm and backend."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from polyak import algorithms, environments, models, runs, tracking_wandb
from polyak.algorithms.interface import Algorithm, Backend, Metrics
from polyak.environments import (
    EVALUATION,
    FINAL,
    TRAINING,
    Environment,
    Environments,
    seeds_for,
)
from polyak.evaluation import Evaluation, Policy, evaluate
from polyak.replay import Replay, check_memory
from polyak.runs import Run
from polyak.settings import Settings, Setup, setup
from polyak.tracking import Tracker, say

FILMS = 10
"""Training episodes that `capture_video` films, about."""

FINAL_EPISODES = 10
"""Episodes of the evaluation that `save_model` adds."""

Review = Callable[[int, Any], None]
"""Called with the step and the state whenever an evaluation is due."""


def train(algorithm: str, *, progress: bool = False, **options: Any) -> Run:
    """Trains an agent; returns its run folder.

    Args:
        algorithm: `ddpg`, `td3`, `sac`, or an experiment's name such as `ddpg_continuous_action`.
        progress: say on standard error what was chosen, and show a progress bar.
        options: any setting by its name, for example `env_id="InvertedPendulum-v5"`,
            `learning_starts=1_000`, or `preset="inverted-pendulum"`.

    Raises:
        PolyakError: something that the caller can put right; the message says what. Nothing is left
            on disk if training did not begin.
    """
    chosen = setup(algorithm, options)
    settings, config = chosen.settings, chosen.config
    module = algorithms.load(settings.algorithm, settings.backend)
    backend = algorithms.load_backend(settings.backend)
    device, which_device = backend.prepare(
        settings.device, settings.torch_deterministic, settings.threads
    )
    random.seed(settings.seed)  # no part of Polyak draws from these two, but an environment may
    np.random.seed(settings.seed % 2**32)
    with ExitStack() as stack:
        judged = stack.enter_context(closing(Environment(settings.env_id)))
        if line := environments.caution(settings.env_id):
            warnings.warn(line, stacklevel=2)
        if settings.save_path:
            models.check_writable(Path(settings.save_path))
        if settings.track:
            tracking_wandb.check(settings)
        n = settings.num_envs
        total = -(-settings.total_timesteps // n) * n  # whole rounds, rounded up
        replay_size = min(config.buffer_size, total)
        memory = check_memory(replay_size, judged.spec.obs_dim, judged.spec.action_dim)
        run = runs.create(chosen, which_device)
        envs = None
        try:
            if progress:
                rounded = f"; {total} steps, a multiple of {n} environments"
                whole = total == settings.total_timesteps
                say(f"{which_device}; {memory}{'' if whole else rounded}\nrun: {run.path}")
            envs = stack.enter_context(closing(_environments(settings, run)))
            board = tracking_wandb.start(run, settings) if settings.track else None
            if progress and board:
                say(f"W&B: {board.where}")
            sinks = [board] if board else []
            tracker = stack.enter_context(Tracker(run, total, progress=progress, sinks=sinks))
            replay = Replay(replay_size, n, judged.spec.obs_dim, judged.spec.action_dim)
            review = _Review(chosen, module, backend, judged, run, tracker)
            state = loop(chosen, module, device, envs, replay, tracker, review)
            review.final(total, state)
            tracker.films()
        except BaseException as error:
            steps = envs.steps if envs else 0
            if isinstance(error, KeyboardInterrupt):
                run.write_status("interrupted", steps)
            else:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                run.write_status("failed", steps, reason)
            raise
        run.write_status("finished", total)
    return run


def loop(
    setup: Setup,
    algorithm: Algorithm,
    device: Any,
    envs: Environments,
    replay: Replay,
    tracker: Tracker,
    review: Review,
) -> Any:
    """Steps the environments, stores what they answer, and learns; returns what was learned.

    Every count is in environment steps, over all environments together: one update follows each
    environment step after `learning_starts`.
    """
    settings, config = setup.settings, setup.config
    n, a = len(envs), envs.spec.action_dim
    generator = np.random.default_rng(settings.seed)  # all randomness of the run but the tasks' own
    state = algorithm.init(config, envs.spec.obs_dim, a, generator, device)
    noises = (config.noises_per_update, config.batch_size, a)
    metrics: Metrics = {}
    obs = envs.reset()
    review(0, state)
    for step in range(n, settings.total_timesteps + n, n):  # steps taken when this round ends
        if step - n < config.learning_starts:
            action = generator.uniform(-1.0, 1.0, (n, a)).astype(np.float32)
        else:
            noise = generator.standard_normal((n, a), dtype=np.float32)
            action = algorithm.act(config, state.actor, obs, noise)
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
        tracker.episodes(taken.episodes)

        for _ in range(min(n, step - config.learning_starts)):
            batch = replay.sample(generator, config.batch_size)
            noise = generator.standard_normal(noises, dtype=np.float32)
            state, new = algorithm.update(config, state, batch, noise)
            metrics |= new

        tracker.advance(n)
        if step % settings.log_interval < n or step >= settings.total_timesteps:
            tracker.training(step, metrics, learning=step > config.learning_starts)
            metrics = {}
        if settings.eval_interval and step % settings.eval_interval < n:
            review(step, state)
    return state


def _environments(settings: Settings, run: Run) -> Environments:
    seeds = seeds_for(settings.seed, TRAINING, settings.num_envs)
    if not settings.capture_video:
        return Environments(settings.env_id, seeds)
    from polyak.recording import FilmedEnvironment  # loads image libraries that others do not need

    interval = max(settings.total_timesteps // settings.num_envs // FILMS, 1)
    filmed = FilmedEnvironment(settings.env_id, run.path / "videos", interval)
    return Environments(settings.env_id, seeds, first=filmed)


class _Review:
    """Evaluates in an environment of its own and keeps the best and the final agent.

    Takes nothing from the run's generator: with or without evaluation, training is the same.
    """

    def __init__(
        self,
        setup: Setup,
        algorithm: Algorithm,
        backend: Backend,
        env: Environment,
        run: Run,
        tracker: Tracker,
    ) -> None:
        self._setup, self._algorithm, self._backend = setup, algorithm, backend
        self._env, self._run, self._tracker = env, run, tracker
        settings = setup.settings
        episodes = settings.eval_episodes if settings.eval_interval else 0
        # The same first states at every evaluation, so that a curve shows the agent, not the draw.
        self._seeds = seeds_for(settings.seed, EVALUATION, episodes)
        self._best: Evaluation | None = None
        self._latest: tuple[int, Evaluation | None] = (-1, None)

    def __call__(self, step: int, state: Any) -> None:
        """Evaluates now, if evaluations are asked for, and keeps the agent if it is the best."""
        if not self._seeds:
            return
        self._tracker.pause()
        result = evaluate(self._policy(state), self._env, self._seeds)
        self._tracker.evaluation(step, result)
        self._run.write_status("running", step)
        if self._best is None or result.mean > self._best.mean:
            self._best = result
            self._save(self._run.path / "best", step, state, {"evaluation": result})
        self._latest = (step, result)
        self._tracker.resume()

    def final(self, step: int, state: Any) -> None:
        """Keeps the final agent with its evaluation, after one if the last is not of this step."""
        if self._latest[0] != step:
            self(step, state)
        results = {"evaluation": self._latest[1]} if self._latest[1] else {}
        settings = self._setup.settings
        if settings.save_model:
            seeds = seeds_for(settings.seed, FINAL, FINAL_EPISODES)
            noise = np.random.default_rng([settings.seed, FINAL])
            results["final"] = evaluate(self._policy(state), self._env, seeds)
            results["exploring"] = evaluate(self._policy(state, noise), self._env, seeds)
            values = {
                "eval/final_return": results["final"].mean,
                "eval/final_return_exploring": results["exploring"].mean,
            }
            self._tracker.write(step, values)
        self._save(self._run.path / "final", step, state, results)
        if settings.save_path:
            self._save(Path(settings.save_path), step, state, results)

    def _policy(self, state: Any, generator: np.random.Generator | None = None) -> Policy:
        return models.policy(
            self._algorithm, self._setup.config, state.actor, self._env.spec.action_dim, generator
        )

    def _save(self, path: Path, step: int, state: Any, results: dict[str, Evaluation]) -> None:
        weights = self._backend.export(state)
        models.save(path, weights, self._setup, self._env.spec, step, results)
