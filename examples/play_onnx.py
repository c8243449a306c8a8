"""Plays a policy that `polyak export --format onnx` wrote. Needs no Polyak.

    pip install "gymnasium[mujoco]" onnxruntime
    python play_onnx.py policy.onnx --episodes 3

Everything that is needed is in the file: it takes observations as the task gives them, and answers
with actions in the task's own units. Its metadata say for which task it was trained.
"""

from __future__ import annotations

import argparse
import json

import gymnasium
import numpy as np
import onnxruntime


def main() -> None:
    """Prints the return of each episode, then their mean."""
    parser = argparse.ArgumentParser(description="Plays a policy in an ONNX file.")
    parser.add_argument("file", help="written by `polyak export --format onnx`")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; others follow")
    parser.add_argument("--env-id", help="another id of the task than the file's own")
    parser.add_argument("--window", action="store_true", help="show it")
    options = parser.parse_args()

    session = onnxruntime.InferenceSession(options.file, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    env_id = options.env_id or json.loads(about["env_id"])
    env = gymnasium.make(env_id, render_mode="human" if options.window else None)

    returns = []
    for episode in range(options.episodes):
        obs, _ = env.reset(seed=options.seed + episode)
        total, over = 0.0, False
        while not over:
            batch = np.asarray(obs, dtype=np.float32)[None]
            (action,) = session.run(["action"], {"observation": batch})
            obs, reward, terminated, truncated, _ = env.step(action[0])
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
        print(f"episode={episode + 1} return={total:.2f}")
    print(f"mean_return={np.mean(returns):.2f}")
    env.close()


if __name__ == "__main__":
    main()
