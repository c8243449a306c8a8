"""Does every algorithm still learn? Trains the cases below over some seeds and judges the means.

    python benchmarks/learning.py [--cases NAME ...] [--workers 2] [--runs-dir runs/learning]

Each run is a process of its own with one thread. A case is judged by the mean over its seeds of
the final deterministic evaluation. Finished runs are not repeated, so the command can be given
again after an interruption. Writes results/learning/: a row per run, the evaluation curves, a
figure, and where it all was measured. Ends with exit code 1 if a case falls short.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from polyak import settings
from polyak.report import curves
from polyak.runs import Run, context


class Case(NamedTuple):
    """A task that an algorithm must learn."""

    algorithm: str
    env_id: str
    options: dict[str, Any]
    seeds: tuple[int, ...]
    at_least: float
    """Mean final deterministic return over the seeds."""


def _cases() -> dict[str, Case]:
    cases = {
        "pendulum-ddpg-preset": Case(
            "ddpg", "InvertedPendulum-v5", {"preset": "inverted-pendulum"}, (1, 2, 3, 4, 5), 1000
        )
    }
    # Presets beside the defaults at the same length, and the restored Pusher beside the stock one.
    reacher = {"total_timesteps": 30_000, "eval_interval": 3_000, "eval_episodes": 20}
    pusher = {"total_timesteps": 40_000, "eval_interval": 5_000, "eval_episodes": 20}
    seeds, restored = (1, 2, 3), "polyak/Pusher-v5"
    cases |= {
        "reacher-ddpg-preset": Case("ddpg", "Reacher-v5", {"preset": "reacher"}, seeds, -6),
        "reacher-ddpg-defaults": Case("ddpg", "Reacher-v5", reacher, seeds, -math.inf),
        "pusher-ddpg-preset": Case("ddpg", restored, {"preset": "pusher"}, seeds, -40),
        "pusher-ddpg-defaults": Case("ddpg", restored, pusher, seeds, -math.inf),
        "stock-pusher-ddpg-preset": Case(
            "ddpg", "Pusher-v5", {"preset": "pusher"}, seeds, -math.inf
        ),
    }
    for algorithm, at_least in (("td3", 3500), ("sac", 4500)):
        cases |= {
            f"halfcheetah-{algorithm}": Case(
                algorithm, "HalfCheetah-v5", {"total_timesteps": 100_000}, (1, 2, 3), at_least
            ),
            f"pendulum-{algorithm}": Case(
                algorithm,
                "Pendulum-v1",
                {"total_timesteps": 10_000, "learning_starts": 1_000, "eval_interval": 1_000},
                (1, 2, 3),
                -200,
            ),
            f"inverted-pendulum-{algorithm}": Case(
                algorithm,
                "InvertedPendulum-v5",
                {"total_timesteps": 20_000, "learning_starts": 1_000, "eval_interval": 2_000},
                (1, 2, 3),
                950,
            ),
        }
    return cases


CASES = _cases()


def find(case: Case, seed: int, runs_dir: Path) -> Run | None:
    """The finished run of a case and seed, if there is one."""
    options = case.options | {"env_id": case.env_id, "seed": seed}
    wanted = settings.setup(case.algorithm, options).asdict()
    for name in ("runs_dir", "save_path", "threads"):  # where and how fast, not what
        del wanted[name]
    for path in sorted(runs_dir.glob("*/status.json")):
        run = Run(path.parent)
        config = run.config
        same = all(config.get(key, value) == value for key, value in wanted.items())
        if same and run.status["state"] == "finished":
            return run
    return None


def train(case: Case, seed: int, runs_dir: Path) -> str:
    """Trains one run unless it is there; returns what the command printed last."""
    if find(case, seed, runs_dir):
        return "done before"
    options = {"seed": seed, "env_id": case.env_id, "runs_dir": runs_dir, "save_path": ""}
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in (options | case.options).items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "polyak", "train", case.algorithm, *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]


def write(cases: dict[str, Case], runs_dir: Path, output: Path) -> bool:
    """Writes the tables and the figure; returns whether every case reached its mark."""
    output.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[Any, ...]] = []
    points: list[tuple[Any, ...]] = []
    reached = True
    for name, case in cases.items():
        found = {seed: find(case, seed, runs_dir) for seed in case.seeds}
        runs = {seed: run for seed, run in found.items() if run}
        returns = [run.final_eval_return or 0.0 for run in runs.values()]
        for (seed, run), value in zip(runs.items(), returns, strict=True):
            evaluations = run.metrics(curves.EVALUATION)
            speed = run.metrics("charts/SPS_learning")[-1]["charts/SPS_learning"]
            config = run.config
            run_is = (name, case.algorithm, config["backend"], case.env_id, seed)
            git = config["context"]["git"].get("commit", "")
            rows.append((*run_is, run.status["step"], f"{value:.2f}", f"{speed:.1f}", git))
            points += [
                (*run_is, row["step"], f"{row[curves.EVALUATION]:.2f}") for row in evaluations
            ]
        good = len(runs) == len(case.seeds) and mean(returns) >= case.at_least
        reached &= good
        spread = f"{stdev(returns):.1f}" if len(returns) > 1 else "-"
        summary = f"{mean(returns):.1f} +- {spread}" if returns else "no run"
        print(
            f"{'ok  ' if good else 'LOW '} {name}: {summary} over {len(returns)} of "
            f"{len(case.seeds)} seeds, at least {case.at_least} asked"
        )
    head = ("case", "algorithm", "backend", "env_id", "seed", "step")
    for file, columns, table in (
        ("returns.csv", (*head, "final_eval_return", "SPS_learning", "commit"), rows),
        ("curves.csv", (*head, "eval_return"), points),
    ):
        with (output / file).open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(table)
    where = context()
    where.pop("command")
    (output / "machine.json").write_text(json.dumps(where, indent=2) + "\n", "utf-8")
    return reached


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/learning"))
    parser.add_argument("--output", type=Path, default=Path("results/learning"))
    options = parser.parse_args()
    cases = {name: CASES[name] for name in options.cases}
    jobs = [(name, case, seed) for name, case in cases.items() for seed in case.seeds]
    with ThreadPoolExecutor(options.workers) as pool:
        tasks = [(n, s, pool.submit(train, c, s, options.runs_dir)) for n, c, s in jobs]
        for name, seed, task in tasks:
            print(f"{name}, seed {seed}: {task.result()}", flush=True)
    reached = write(cases, options.runs_dir, options.output)
    curves.draw([options.runs_dir], options.output / "curves.png")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
