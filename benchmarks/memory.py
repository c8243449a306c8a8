"""Memory of the replay buffer, full of Humanoid-v5, against storing obs and next_obs in every row.

    python benchmarks/memory.py [--rows 1000000] [--output results/memory]

Random actions give the shortest episodes, so the most observations kept aside: the worst case
for our layout. Some thousand real steps are played and then repeated until the buffers are full
and have wrapped. The operating system tells the resident memory, of a process per layout.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from polyak.environments import Environments, seeds_for
from polyak.replay import Replay
from polyak.runs import context

ENV_ID, PLAYED = "Humanoid-v5", 20_000


def play() -> list[tuple[Any, ...]]:
    """Real steps under random actions, as `Replay.add` takes them."""
    envs = Environments(ENV_ID, seeds_for(1, 0, 1))
    generator, obs, steps = np.random.default_rng(1), envs.reset(), []
    for _ in range(PLAYED):
        action = generator.uniform(-1, 1, (1, envs.spec.action_dim)).astype(np.float32)
        t = envs.step(action)
        steps.append((obs, action, t.reward, t.next_obs, t.terminated, t.truncated, t.obs))
        obs = t.obs
    envs.close()
    return steps


def once(rows: int) -> dict[str, Any]:
    """Our buffer, filled past its wrap."""
    steps = play()
    before = psutil.Process().memory_info().rss
    replay = Replay(rows, 1, steps[0][0].shape[1], steps[0][1].shape[1])
    for index in range(rows + rows // 10):
        replay.add(*steps[index % PLAYED])
    resident = psutil.Process().memory_info().rss - before
    generator = np.random.default_rng(0)
    began = time.perf_counter()
    for _ in range(1000):
        replay.sample(generator, 256)
    microseconds = 1e3 * (time.perf_counter() - began)
    episodes = sum(bool(step[4][0] or step[5][0]) for step in steps)
    return {
        "layout": "each observation once",
        "array_bytes": replay.nbytes,
        "resident_bytes": resident,
        "sample_256_us": round(microseconds, 1),
        "mean_episode_length": round(PLAYED / episodes, 1),
    }


def twice(rows: int) -> dict[str, Any]:
    """The usual layout: obs, next_obs, action, reward and terminated in every row."""
    steps = play()
    before = psutil.Process().memory_info().rss
    obs_dim, action_dim = steps[0][0].shape[1], steps[0][1].shape[1]
    shapes = ((rows, obs_dim), (rows, action_dim), (rows,), (rows, obs_dim))
    arrays = [np.zeros(shape, np.float32) for shape in shapes] + [np.zeros(rows, bool)]
    for index in range(rows):
        for array, value in zip(arrays, steps[index % PLAYED], strict=False):
            array[index] = value[0]
    return {
        "layout": "obs and next_obs",
        "array_bytes": sum(array.nbytes for array in arrays),
        "resident_bytes": psutil.Process().memory_info().rss - before,
    }


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=Path("results/memory"))
    options = parser.parse_args()
    results = []
    for measure in (once, twice):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(measure, (options.rows,)))
    ours, usual = (result["resident_bytes"] for result in results)
    for result in results:
        result |= {
            "env_id": ENV_ID,
            "rows": options.rows,
            "share": result["resident_bytes"] / usual,
        }
        print(
            f"{result['layout']}: {result['resident_bytes'] / 1e9:.3f} GB resident, "
            f"{result['resident_bytes'] / options.rows:.0f} bytes a transition"
        )
    print(f"share: {100 * ours / usual:.1f} %")
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "humanoid.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(results[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(results)
    where = context()
    where.pop("command")
    (options.output / "machine.json").write_text(json.dumps(where, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
