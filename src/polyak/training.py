"""Training: setting a run up, and the loop, which is the same for every algorithm and backend."""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from polyak import algorithms, environments, models, runs, stopping, tracking_wandb
from polyak.algorithms.interface import Algorithm, Backend, Draw, Metrics, Place
from polyak.checkpoint import Checkpoints, Folder
from polyak.environments import TRAINING, Environment, Environments, seeds_for
from polyak.errors import PolyakError
from polyak.replay import Replay, check_memory
from polyak.resume import AUTO, choose
from polyak.review import Review
from polyak.runs import Run
from polyak.settings import MOST_SEEDS, Settings, Setup, setup
from polyak.tracking import Sink, Tracker, check_rows, say

FILMS = 10
"""Training episodes that `capture_video` films, about."""


def train(
    algorithm: str | None = None,
    *,
    resume: str | Path = "",
    trust_env: bool = False,
    progress: bool = False,
    **options: Any,
) -> Run:
    """Trains an agent; returns its run folder.

    The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 saves the run and raises KeyboardInterrupt; a
    second one does not wait for that.

    Args:
        algorithm: `ddpg`, `td3`, `sac`, or an experiment's name such as `ddpg_continuous_action`.
            May be left out where `resume` is a run folder.
        resume: a run folder, to go on with that run as if it had never stopped; or `auto`: the
            newest unfinished run of this very configuration, else a new one. A finished run is
            returned as it is, unless `total_timesteps` is raised.
        trust_env: allow a run folder to name a module of yours that registers its environment.
        progress: say on standard error what was chosen, and show a progress bar.
        options: any setting by its name, for example `env_id="InvertedPendulum-v5"`,
            `learning_starts=1_000`, or `preset="inverted-pendulum"`.

    Raises:
        PolyakError: something that the caller can put right; the message says what. Nothing is left
            on disk if training did not begin.
    """
    chosen, run = choose(algorithm, str(resume or ""), options, trust_env=trust_env)
    goal = chosen.settings.total_timesteps
    if run and run.status["state"] == "finished" and run.status["step"] >= goal:
        say(f"{run.path} is finished: raise --total-timesteps to train it longer")
        return run
    module = algorithms.load(chosen.settings.algorithm, chosen.settings.backend)
    backend = algorithms.load_backend(chosen.settings.backend)
    place = _prepare(chosen, backend)
    with stopping.on_signals():
        return _train(chosen, run, module, backend, place, talk=progress, bar=progress)


def train_seeds(
    algorithm: str,
    num_seeds: int,
    *,
    resume: str = "",
    progress: bool = False,
    **options: Any,
) -> dict[int, Run | BaseException]:
    """Trains the seeds `seed`, `seed` + 1, ... side by side in this process.

    Each run is what `train` makes of its seed, with a folder of its own; see `lockstep`.

    Args:
        algorithm: see `train`.
        num_seeds: how many runs.
        resume: empty, or `auto`: each goes on where it has an unfinished run.
        progress: see `train`; the bar is the first run's.
        options: see `train`.

    Returns:
        By seed its run, or what it failed with: the others are trained to their end.

    Raises:
        PolyakError: nothing could begin.
    """
    from polyak.lockstep import Lane, Lockstep

    if type(num_seeds) is not int or not 1 <= num_seeds <= MOST_SEEDS:
        raise PolyakError(f"--num-seeds must be 1 to {MOST_SEEDS}, not {num_seeds!r}")
    if resume not in ("", AUTO):
        raise PolyakError("--num-seeds goes on with --resume auto, not with one run")
    if options.get("save_path"):
        raise PolyakError("--save-path is one agent's: leave it out with --num-seeds")
    options = options | {"save_path": ""}  # which a preset may have
    first = setup(algorithm, options)
    module = algorithms.load(first.settings.algorithm, first.settings.backend)
    backend = algorithms.load_backend(first.settings.backend)
    place = _prepare(first, backend)
    seeds = range(first.settings.seed, first.settings.seed + num_seeds)
    chosen = {
        seed: choose(algorithm, resume, options | {"seed": seed}, trust_env=False) for seed in seeds
    }

    def one(seed: int, lane: Lane) -> Run:
        bar = progress and seed == seeds[0]
        return _train(*chosen[seed], lane, lane, place, talk=progress, bar=bar, beside=num_seeds)

    lockstep = Lockstep(module, backend, stacked=place.wide)
    with stopping.on_signals():
        outcomes = lockstep.run([functools.partial(one, seed) for seed in seeds])
    return dict(zip(seeds, outcomes, strict=True))


def _prepare(chosen: Setup, backend: Backend) -> Place:
    settings = chosen.settings
    return backend.prepare(settings.device, settings.torch_deterministic, settings.threads)


def _train(
    chosen: Setup,
    run: Run | None,
    module: Algorithm,
    backend: Backend,
    place: Place,
    *,
    talk: bool,
    bar: bool,
    beside: int = 1,
) -> Run:
    """Trains one run from the start or, where it has a folder, from its last checkpoint.

    `talk` and `bar`: whether it says what was chosen, and shows its progress. `beside`: how many
    runs this process trains.
    """
    settings = chosen.settings
    _seed_others(settings.seed)
    with ExitStack() as stack:
        judged = stack.enter_context(closing(Environment(settings.env_id)))
        _check(settings)
        total = (
            -(-settings.total_timesteps // settings.num_envs) * settings.num_envs
        )  # whole rounds
        dims = (judged.spec.obs_dim, judged.spec.action_dim)
        replay_size = min(chosen.config.buffer_size, total)
        memory = check_memory(replay_size, *dims, beside)
        run, folder = _open(chosen, run, place.words, stack)
        saved = folder.saved
        begun = saved.step if saved else 0
        if begun:
            _seed_others(settings.seed + begun)
        envs = None
        try:
            if talk:
                words = f"{place.words}; {memory}" if bar else ""  # once for runs side by side
                _say_what_begins(settings, run, total, begun, words)
            envs = stack.enter_context(closing(_environments(settings, run, begun)))
            record = saved.content["tracker"] if saved else None
            sinks = _sinks(settings, run, talk=talk)
            tracker = stack.enter_context(
                Tracker(run, total, progress=bar, saved=record, sinks=sinks)
            )
            mirror = functools.partial(backend.mirror, place.device)
            replay = Replay(replay_size, settings.num_envs, *dims, mirror)
            review = Review(chosen, module, backend, place.device, judged, run, tracker)
            checkpoints = Checkpoints(
                folder, settings.checkpoint_interval, total, run=run, backend=backend, envs=envs,
                replay=replay, tracker=tracker, review=review,
            )  # fmt: skip
            state = loop(
                chosen, module, backend, place.device, envs, replay, tracker, review, checkpoints
            )
            review.final(total, state)
            tracker.films()
        except BaseException as error:
            _write_end(run, envs.steps if envs else begun, error)
            raise
        run.write_status("finished", total)
        if not settings.keep_checkpoint:
            folder.clear()
    return run


def _check(settings: Settings) -> None:
    """Refuses what would fail only after hours, and warns of a task that has a known flaw."""
    if line := environments.caution(settings.env_id):
        warnings.warn(line, stacklevel=4)
    if settings.save_path:
        models.check_writable(Path(settings.save_path))
    if settings.track:
        tracking_wandb.check(settings)


def _open(chosen: Setup, run: Run | None, device: str, stack: ExitStack) -> tuple[Run, Folder]:
    """The run's folder, new or held by nobody else until `stack` closes, and its checkpoints'."""
    if run is None:
        run = runs.create(chosen, device)
        stack.enter_context(runs.writing(run))
        return run, Folder(run.path / "checkpoint")
    stack.enter_context(runs.writing(run))
    folder = Folder(run.path / "checkpoint")
    saved = folder.find()
    if saved is None and run.status["state"] == "finished":
        raise PolyakError(f"{run.path} is finished and kept no checkpoint: it cannot go on")
    if saved:  # before anything is changed
        check_rows(run.path / "metrics.jsonl", saved.content["tracker"].get("rows", 0))
    runs.reopen(run, chosen, device, saved.step if saved else 0)
    return run, folder


def _environments(settings: Settings, run: Run, begun: int) -> Environments:
    seeds = seeds_for(settings.seed, TRAINING, settings.num_envs)
    if not settings.capture_video:
        return Environments(settings.env_id, seeds)
    from polyak.recording import FilmedEnvironment  # loads image libraries that others do not need

    interval = max(settings.total_timesteps // settings.num_envs // FILMS, 1)
    own = begun // settings.num_envs
    filmed = FilmedEnvironment(settings.env_id, run.path / "videos", interval, begun=own)
    return Environments(settings.env_id, seeds, first=filmed)


def _say_what_begins(settings: Settings, run: Run, total: int, begun: int, words: str) -> None:
    whole = total == settings.total_timesteps
    rounded = "" if whole else f"; {total} steps, a multiple of {settings.num_envs} environments"
    goes_on = f", goes on at step {begun}" if begun else ""
    if words:
        say(words + rounded)
    say(f"run: {run.path}{goes_on}")


def _sinks(settings: Settings, run: Run, *, talk: bool) -> list[Sink]:
    """Where the numbers of the run go besides its folder."""
    board = tracking_wandb.start(run, settings) if settings.track else None
    if board is None:
        return []
    if talk:
        say(f"W&B: {board.where}")
    return [board]


def _write_end(run: Run, step: int, error: BaseException) -> None:
    """Writes into the run's folder how it ended."""
    with contextlib.suppress(OSError):  # the disk is full, which may be the very reason
        if isinstance(error, KeyboardInterrupt):
            run.write_status("interrupted", step)
        else:
            run.write_status("failed", step, " ".join(f"{type(error).__name__}: {error}".split()))


def _seed_others(seed: int) -> None:
    """Seeds the global generators: no part of Polyak draws from them, but an environment may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def loop(
    setup: Setup,
    algorithm: Algorithm,
    backend: Backend,
    device: Any,
    envs: Environments,
    replay: Replay,
    tracker: Tracker,
    review: Review,
    checkpoints: Checkpoints,
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
    if saved := checkpoints.saved:
        begun, state, obs, metrics = checkpoints.restore(saved, state, generator)
    else:
        begun, obs = 0, envs.reset()
        review(0, state)
    total = settings.total_timesteps
    for step in range(begun + n, total + n, n):  # steps taken when this round ends
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

        draws = [
            Draw(
                batch=replay.draw(generator, config.batch_size),
                noise=generator.standard_normal(noises, dtype=np.float32),
            )
            for _ in range(min(n, step - config.learning_starts))
        ]
        if draws:
            state, new = backend.learn(algorithm.update, config, state, draws)
            metrics |= new

        tracker.advance(n)
        if step % settings.log_interval < n or step >= total:
            tracker.training(step, metrics, learning=step > config.learning_starts)
            metrics = {}
        if settings.eval_interval and step % settings.eval_interval < n:
            review(step, state)
        checkpoints(step, state, generator, metrics)
    return state
