"""What checkpoints and guards cost: stall, bytes on disk, time to go on, share of the loop.

    python benchmarks/checkpoints.py [--output results/checkpoints]

TD3 with its default networks. The buffer is filled with random rows, of which one in a hundred ends
an episode; then checkpoints are made as the loop makes them, `--interval` new rows apart. Shares of
the loop are times of what is measured, divided by the time of a whole step that learns (Hopper-v5,
logging on), so that a slow machine makes both slow.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import polyak
from polyak import algorithms, runs, settings, tracking
from polyak.checkpoint import Checkpoints, Folder
from polyak.environments import Environment, Environments, flaw
from polyak.replay import Replay
from polyak.review import Review
from polyak.runs import context
from polyak.tracking import Tracker

ROWS, INTERVAL, SAVES = 1_000_000, 10_000, 9
HEAD = ("env_id", "what", "value", "unit")


def random_rows(
    generator: np.random.Generator, begin: int, end: int, obs_dim: int, action_dim: int
) -> dict[str, np.ndarray]:
    """Rows as `Replay.read` gives them."""
    count = end - begin
    ended = np.flatnonzero(generator.random(count) < 0.01)
    return {
        "obs": generator.standard_normal((count, obs_dim), dtype=np.float32),
        "action": generator.standard_normal((count, action_dim), dtype=np.float32),
        "reward": generator.standard_normal(count, dtype=np.float32),
        "terminated": np.zeros(count, bool),
        "ended": ended,
        "last": generator.standard_normal((len(ended), obs_dim), dtype=np.float32),
    }


def checkpoints(env_id: str, folder: Path) -> Iterator[tuple[str, float, str]]:
    """Saves at a full buffer, and one restore: what, value, unit."""
    chosen = settings.setup("td3", {"env_id": env_id, "runs_dir": str(folder)})
    module, library = algorithms.load("td3", "torch"), algorithms.load_backend("torch")
    place = library.prepare("cpu", True, 1)
    run = runs.create(chosen, place.words)
    generator = np.random.default_rng(0)
    envs, judged = Environments(env_id, [1]), Environment(env_id)
    obs_dim, action_dim = envs.spec.obs_dim, envs.spec.action_dim

    def replay_of(rows: int) -> Replay:
        replay, size = Replay(ROWS, 1, obs_dim, action_dim), 10_000
        parts = (
            (begin, random_rows(generator, begin, begin + size, obs_dim, action_dim))
            for begin in range(0, rows, size)
        )
        replay.restore(rows, np.zeros((1, obs_dim), np.float32), parts if rows else ())
        return replay

    def fresh() -> Any:
        draws = np.random.default_rng(1)
        return module.init(chosen.config, obs_dim, action_dim, draws, place.device)

    obs, state, replay = envs.reset(), fresh(), replay_of(ROWS)
    saves, files = [], Folder(run.path / "checkpoint")
    with Tracker(run, ROWS, progress=False) as tracker:
        review = Review(chosen, module, library, place.device, judged, run, tracker)
        parts = {
            "run": run, "backend": library, "envs": envs, "tracker": tracker, "review": review,
        }  # fmt: skip
        keeper = Checkpoints(
            files,
            INTERVAL,
            10**9,
            replay=replay,
            **parts,  # type: ignore[arg-type]
        )
        for save in range(SAVES + 1):
            for _ in range(INTERVAL if save else 0):
                zero, no = np.zeros(1, np.float32), np.zeros(1, bool)
                last = generator.random(1) < 0.01
                replay.add(obs, obs[:, :action_dim], zero, obs, no, last, obs)
            began = time.perf_counter()
            keeper.save(ROWS + save * INTERVAL, state, generator, {})
            saves.append(time.perf_counter() - began)
        disk = sum(file.stat().st_size for file in files.path.iterdir())
        data = replay.nbytes + sum(array.nbytes for array in library.snapshot(state).values())
        yield "first checkpoint of a full buffer", 1e3 * saves[0], "ms"
        yield "checkpoint, median", 1e3 * statistics.median(saves[1:]), "ms"
        yield "checkpoint, longest", 1e3 * max(saves[1:]), "ms"
        yield "bytes of the run in memory", data, "bytes"
        yield "bytes on disk", disk, "bytes"
        yield "on disk / in memory", disk / data, ""
        began = time.perf_counter()
        files = Folder(run.path / "checkpoint")
        saved = files.find()
        assert saved is not None
        yield "finding and checking it again", 1e3 * (time.perf_counter() - began), "ms"
        other = Checkpoints(
            files,
            INTERVAL,
            10**9,
            replay=replay_of(0),
            **parts,  # type: ignore[arg-type]
        )
        began = time.perf_counter()
        other.restore(saved, fresh(), generator)
        yield "restoring it", 1e3 * (time.perf_counter() - began), "ms"
    envs.close()
    judged.close()


def replayed(env_id: str, steps: int) -> float:
    """Milliseconds that playing an episode of `steps` steps again takes, from the time of one."""
    envs = Environments(env_id, [1])
    envs.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (300, 1, envs.spec.action_dim))
    began = time.perf_counter()
    for action in actions.astype(np.float32):
        envs.step(action)
    envs.close()
    return 1e3 * (time.perf_counter() - began) / len(actions) * steps


def learning_step(folder: Path) -> float:
    """Seconds of a step of TD3 on Hopper-v5 that learns."""
    run = polyak.train(
        "td3",
        total_timesteps=2_500,
        learning_starts=500,
        eval_interval=0,
        checkpoint_interval=0,
        keep_checkpoint=False,
        runs_dir=str(folder),
    )
    speeds = [r["charts/SPS"] for r in run.metrics("charts/SPS") if "losses/qf_loss" in r]
    return 1.0 / max(speeds)  # the least disturbed hundred steps


def seconds(work: Callable[[], object]) -> float:
    """Time of one call: the least of some averages, for what else ran meanwhile."""
    averages = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1000):
            work()
        averages.append((time.perf_counter() - began) / 1000)
    return min(averages)


def guards() -> float:
    """Seconds that the guards take in each step of Hopper-v5 with the default log interval."""
    env = Environment("Hopper-v5")
    obs, action = env.reset(1), np.zeros((1, env.spec.action_dim), np.float32)
    env.close()
    losses = {f"losses/{name}": 1.0 for name in ("qf1", "qf2", "qf", "actor", "v1", "v2")}
    each = seconds(lambda: flaw(obs, 1.0)) + seconds(lambda: np.isfinite(action).all())
    return each + seconds(lambda: tracking.check_finite(1, losses)) / 100


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results/checkpoints"))
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, str, str, str]] = []

    def add(env_id: str, what: str, value: float, unit: str) -> None:
        rows.append((env_id, what, f"{value:.6g}", unit))
        print(*rows[-1], flush=True)

    with tempfile.TemporaryDirectory(dir=".") as folder:  # on the disk that runs are on
        step = learning_step(Path(folder))
        add("Hopper-v5", "step that learns", 1e3 * step, "ms")
        add("Hopper-v5", "guards, share of a step", 100.0 * guards() / step, "%")
        for env_id in ("Hopper-v5", "Humanoid-v5"):
            for what, value, unit in checkpoints(env_id, Path(folder)):
                add(env_id, what, value, unit)
                if what == "checkpoint, median" and env_id == "Hopper-v5":
                    share = value / 1e3 / (INTERVAL * step)
                    add(env_id, "default checkpoints, share of the loop", 100.0 * share, "%")
            add(env_id, "playing an episode of 1,000 steps again", replayed(env_id, 1000), "ms")
    with (output / "checkpoints.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(rows)
    machine = {key: context()[key] for key in ("versions", "git", "processor", "cores")}
    (output / "machine.json").write_text(json.dumps(machine, indent=2) + "\n")


if __name__ == "__main__":
    main()
