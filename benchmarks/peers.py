"""Training by Stable-Baselines3 or SBX in blocks, in an environment of its own; see `pacing.py`.

    PYTHON benchmarks/peers.py {sb3,sbx} {ddpg,td3,sac} --learning-starts N --threads N

Settings are Polyak's defaults: batch 256, two hidden layers of 256, one update per step, actor and
targets of DDPG and TD3 updated every second time. The task is `paced_env`'s.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from typing import Any

import targets


def main() -> None:
    parser = argparse.ArgumentParser(description="Training by another library, in blocks.")
    parser.add_argument("library", choices=["sb3", "sbx"])
    parser.add_argument("algorithm", choices=targets.ALGORITHMS)
    parser.add_argument("--learning-starts", type=int, required=True, help="steps before learning")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import gymnasium
    import numpy as np
    import paced_env
    from stable_baselines3.common.noise import NormalActionNoise

    settings: dict[str, Any] = {
        "batch_size": 256,
        "learning_starts": options.learning_starts,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [256, 256]},
    }
    if options.library == "sb3":
        import torch

        torch.set_num_threads(options.threads)
        settings["device"] = "cpu"
    env = gymnasium.make(paced_env.ENV_ID)
    shape = env.action_space.shape
    assert shape is not None
    if options.algorithm != "sac":
        settings["action_noise"] = NormalActionNoise(np.zeros(shape), 0.1 * np.ones(shape))
    module = importlib.import_module("stable_baselines3" if options.library == "sb3" else "sbx")
    model = getattr(module, options.algorithm.upper())("MlpPolicy", env, **settings)
    if options.algorithm != "sac":
        model.policy_delay = 2  # which the constructor of DDPG does not take
    model.learn(10**9)  # until nobody asks for more


if __name__ == "__main__":
    main()
