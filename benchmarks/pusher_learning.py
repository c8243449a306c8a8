"""Is the object really pushed to the goal? Agents trained on the restored and on the stock Pusher.

    python benchmarks/pusher_learning.py [--runs-dir runs/learning] [--output results/pusher]

Plays 20 deterministic episodes with each finished run of the cases below of `learning.py` and
measures, in the plane of the table, how far the object is from the goal at the beginning and at the
end, and how far it was moved.
"""

from __future__ import annotations

import argparse
import csv
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from learning import CASES, find

from polyak import models
from polyak.environments import Environment, seeds_for

EPISODES = 20
NAMES = (
    "pusher-ddpg-preset",
    "stock-pusher-ddpg-preset",
    "pusher-sac-jax",
    "stock-pusher-sac-jax",
)
COLUMNS = (
    "case",
    "env_id",
    "seed",
    "eval_return",
    "distance_at_start_m",
    "distance_at_end_m",
    "moved_m",
)


def measure(case: str, path: Path, seed: int) -> dict[str, Any]:
    """Means over the episodes of one agent; distances in metres."""
    agent = models.load(path)
    policy = agent.policy()
    rows = []
    with closing(Environment(agent.spec.env_id)) as env:
        task: Any = env.unwrapped

        def place(body: str) -> np.ndarray:
            return np.array(task.get_body_com(body)[:2])

        for start in seeds_for(seed, 9, EPISODES):
            obs, total, ended = env.reset(start), 0.0, False
            before, goal = place("object"), place("goal")
            while not ended:
                obs, reward, terminated, truncated = env.step(policy(obs))
                total += reward
                ended = terminated or truncated
            after = place("object")
            gaps = (before - goal, after - goal, after - before)
            rows.append((total, *(float(np.linalg.norm(gap)) for gap in gaps)))
    means = [round(mean(column), 4) for column in zip(*rows, strict=True)]
    return dict(zip(COLUMNS, (case, agent.spec.env_id, seed, *means), strict=True))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/learning"))
    parser.add_argument("--output", type=Path, default=Path("results/pusher"))
    options = parser.parse_args()
    rows = []
    for name in NAMES:
        for seed in CASES[name].seeds:
            run = find(CASES[name], seed, options.runs_dir)
            if run is None:
                print(f"{name}, seed {seed}: no finished run")
                continue
            rows.append(measure(name, run.path, seed))
            print(rows[-1])
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "learning.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
