"""The update alone, without environment and loop, in blocks; see `pacing.py`.

    python benchmarks/updates.py {ddpg,td3,sac} {torch,jax} --env-id ID --threads N

Batches and noise are drawn before a block as the loop draws them, from a replay buffer of random
rows of the task's sizes; a report says how long that took.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import Any

import numpy as np
import pacing
import targets

from polyak import algorithms, settings
from polyak.algorithms.interface import Batch
from polyak.environments import Environment
from polyak.replay import Replay

ROWS, DRAWN = 5_000, 16


def filled(
    obs_dim: int,
    action_dim: int,
    generator: np.random.Generator,
    capacity: int = ROWS,
    **mirror: Any,
) -> Replay:
    """A replay buffer with random rows, of which one in a hundred ends an episode."""
    replay, no = Replay(capacity, 1, obs_dim, action_dim, **mirror), np.zeros(1, bool)
    obs = generator.standard_normal((1, obs_dim), dtype=np.float32)
    for _ in range(ROWS):
        action = generator.uniform(-1.0, 1.0, (1, action_dim)).astype(np.float32)
        reward = generator.standard_normal(1, dtype=np.float32)
        following = generator.standard_normal((1, obs_dim), dtype=np.float32)
        replay.add(obs, action, reward, following, generator.random(1) < 0.01, no, following)
        obs = following
    return replay


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algorithm", choices=targets.ALGORITHMS)
    parser.add_argument("backend", choices=targets.BACKENDS)
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    module = algorithms.load(options.algorithm, options.backend)
    place = algorithms.load_backend(options.backend).prepare("cpu", True, options.threads)
    config = settings.setup(options.algorithm, {"env_id": options.env_id}).config
    with closing(Environment(options.env_id)) as env:
        obs_dim, action_dim = env.spec.obs_dim, env.spec.action_dim
    generator = np.random.default_rng(1)
    replay = filled(obs_dim, action_dim, generator)
    state = module.init(config, obs_dim, action_dim, generator, place.device)
    shape = (config.noises_per_update, config.batch_size, action_dim)
    obs, still = np.zeros((1, obs_dim), np.float32), np.zeros((1, action_dim), np.float32)

    def draw() -> tuple[Batch, np.ndarray]:
        batch = replay.sample(generator, config.batch_size)
        return batch, generator.standard_normal(shape, dtype=np.float32)

    pacing.report(0.0)
    while (block := pacing.asked()) is not None:
        began = time.perf_counter()
        inputs = [draw() for _ in range(DRAWN)]
        drawn = (time.perf_counter() - began) / DRAWN
        began = time.perf_counter()
        for index in range(block):
            state, _ = module.update(config, state, *inputs[index % DRAWN])
        module.act(config, state.actor, obs, still)  # JAX goes on meanwhile: the actor is the last
        pacing.report(time.perf_counter() - began, draw_seconds=drawn)


if __name__ == "__main__":
    main()
