"""Environment steps per second of Stable-Baselines3 or SBX, in an environment of its own.

    PYTHON benchmarks/peers.py {sb3,sbx} {ddpg,td3,sac} --env-id ID --steps N --warmup N

Prints one number: steps per second after learning began and the first updates were made. Settings
are Polyak's defaults where the library has them: batch 256, two hidden layers of 256, one update
per step, TD3's actor updated every second time.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps per second of another library.")
    parser.add_argument("library", choices=["sb3", "sbx"])
    parser.add_argument("algorithm", choices=["ddpg", "td3", "sac"])
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--steps", type=int, required=True, help="steps that are timed")
    parser.add_argument("--warmup", type=int, required=True, help="learning steps before")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import gymnasium
    import numpy as np
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import NormalActionNoise

    if options.library == "sb3":
        import torch

        torch.set_num_threads(options.threads)
    module = importlib.import_module("stable_baselines3" if options.library == "sb3" else "sbx")
    env = gymnasium.make(options.env_id)
    shape = env.action_space.shape
    assert shape is not None
    starts = 500
    settings: dict[str, Any] = {
        "batch_size": 256,
        "learning_starts": starts,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [256, 256]},
    }
    if options.algorithm != "sac":
        settings["action_noise"] = NormalActionNoise(np.zeros(shape), 0.1 * np.ones(shape))
    if options.algorithm == "td3":
        settings["policy_delay"] = 2
    model = getattr(module, options.algorithm.upper())("MlpPolicy", env, **settings)

    class Clock(BaseCallback):  # type: ignore[misc]  # the library is not installed here
        began = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps == starts + options.warmup:
                self.began = time.perf_counter()
            return True

    clock = Clock()
    model.learn(starts + options.warmup + options.steps, callback=clock)
    print(options.steps / (time.perf_counter() - clock.began))


if __name__ == "__main__":
    main()
