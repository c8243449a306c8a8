"""How many environment steps a second? Both backends, beside Stable-Baselines3 and SBX.

    python benchmarks/speed.py [--peers PYTHON] [--tasks Hopper-v5] [--rounds 5] [--threads 1]

The whole training loop with logging is timed, after learning began and the first updates (and
compilations) were made; start-up is not in it. Systems take turns, so that a slow spell of the
machine meets all of them; what counts is the ratio of medians. `--peers` is the Python of an
environment that holds `stable-baselines3` and `sbx-rl`. Writes results/speed/{name}.csv and .json.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from polyak import runs
from polyak.runs import Run

ALGORITHMS = ("ddpg", "td3", "sac")


class System(NamedTuple):
    """What can train: a library, in the Python that has it."""

    name: str
    python: str


def ours(backend: str, algorithm: str, env_id: str, options: argparse.Namespace) -> float:
    """Steps per second of Polyak."""
    starts = 500
    flags: dict[str, Any] = {
        "env_id": env_id,
        "backend": backend,
        "learning_starts": starts,
        "log_interval": options.warmup,  # the clock begins one interval after learning
        "total_timesteps": starts + 2 * options.warmup + options.steps,
        "eval_interval": 0,
        "threads": options.threads,
    }
    if algorithm == "ddpg":
        flags["policy_frequency"] = 1  # as in the other libraries
    with tempfile.TemporaryDirectory() as folder:
        flags["runs_dir"] = folder
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "polyak", "train", algorithm, *arguments]
        subprocess.run(command, check=True, capture_output=True)
        (path,) = (status.parent for status in Path(folder).glob("*/status.json"))
        return float(Run(path).metrics("charts/SPS_learning")[-1]["charts/SPS_learning"])


def theirs(system: System, algorithm: str, env_id: str, options: argparse.Namespace) -> float:
    """Steps per second of another library."""
    script = Path(__file__).with_name("peers.py")
    command = [system.python, str(script), system.name, algorithm, "--env-id", env_id]
    command += ["--steps", str(options.steps), "--warmup", str(options.warmup)]
    command += ["--threads", str(options.threads)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment(options.threads)
    )
    return float(done.stdout.split()[-1])


def environment(threads: int) -> dict[str, str]:
    """Variables that hold another library to as many threads as ours."""
    variables = os.environ | {"OMP_NUM_THREADS": str(threads), "NPROC": str(threads)}
    variables.pop("PYTHONPATH", None)
    if threads == 1:
        variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return variables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers", help="a Python with stable-baselines3 and sbx-rl")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=["td3", "sac"])
    parser.add_argument("--tasks", nargs="+", default=["Hopper-v5"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500, help="steps that are timed")
    parser.add_argument("--warmup", type=int, default=300, help="learning steps before")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="hopper", help="of the files that are written")
    parser.add_argument("--output", type=Path, default=Path("results/speed"))
    options = parser.parse_args()
    systems = [System("torch", sys.executable), System("jax", sys.executable)]
    if options.peers:
        systems += [System("sb3", options.peers), System("sbx", options.peers)]

    found: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(options.rounds):
        for env_id in options.tasks:
            for algorithm in options.algorithms:
                for system in systems:
                    if system.python == sys.executable:
                        speed = ours(system.name, algorithm, env_id, options)
                    else:
                        speed = theirs(system, algorithm, env_id, options)
                    found.setdefault((env_id, algorithm, system.name), []).append(speed)
                    print(f"{env_id} {algorithm} {system.name}: {speed:.0f}", flush=True)
    write(found, options)


PEER = {"torch": "sb3", "jax": "sbx"}


def write(found: dict[tuple[str, str, str], list[float]], options: argparse.Namespace) -> None:
    """The table of medians and ratios, and every measurement with its circumstances."""
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / f"{options.name}.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["env_id", "algorithm", "system", "threads", "SPS", "rounds", "to_peer"])
        for (env_id, algorithm, system), speeds in found.items():
            peer = found.get((env_id, algorithm, PEER.get(system, "")))
            ratio = f"{median(speeds) / median(peer):.2f}" if peer else ""
            row = [env_id, algorithm, system, options.threads, f"{median(speeds):.1f}"]
            table.writerow([*row, len(speeds), ratio])
            print(*row, ratio)
    record = {
        "measurements": {" ".join(key): speeds for key, speeds in found.items()},
        "options": {k: str(v) for k, v in vars(options).items() if k not in ("peers", "output")},
        "context": {
            key: value
            for key, value in runs.context().items()
            if key in ("versions", "processor", "cores", "started")
        },
        "load": os.getloadavg(),
    }
    runs.write_json(options.output / f"{options.name}.json", record)


if __name__ == "__main__":
    main()
