"""How long does a report of a thousand long runs take, and how much memory?

    python benchmarks/report_scale.py [--runs 1000] [--rows 10000] [--output results/report]

Writes run folders (2 GB for the defaults, in a temporary folder) in which every other row is a
training episode, every hundredth an evaluation and the rest losses, and reports on them in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from polyak import runs

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Humanoid-v5", "InvertedPendulum-v5",
         "polyak/Pusher-v5", "Ant-v5", "Reacher-v5", "Swimmer-v5", "Pendulum-v1")  # fmt: skip
EXPERIMENTS = [(algorithm, backend) for algorithm in ("ddpg", "td3", "sac")
               for backend in ("torch", "jax")]  # fmt: skip
STEPS = 1_000_000


def write(folder: Path, index: int, rows: int) -> None:
    """One run; every fiftieth is unfinished."""
    task = TASKS[index % 10]
    algorithm, backend = EXPERIMENTS[index // 10 % 6]
    name = f"{algorithm}_continuous_action{'_jax' if backend == 'jax' else ''}"
    path = folder / f"{task.replace('/', '-')}__{name}__{index // 60}__{index}"
    path.mkdir()
    config = {"algorithm": algorithm, "backend": backend, "exp_name": name, "env_id": task,
              "seed": index // 60, "total_timesteps": STEPS, "learning_starts": 25_000}  # fmt: skip
    runs.write_json(path / "config.json", config)
    runs.Run(path).write_status("finished" if index % 50 else "running", STEPS)
    generator = np.random.default_rng(index)
    noise = generator.normal(0.0, 50.0, rows)
    losses = {f"losses/{name}": 123.456789012345 for name in "abcdef"}
    lines = []
    for row in range(rows):
        step = (row + 1) * STEPS // rows
        value = 1000 * float(np.tanh(step / 3e5)) + noise[row]
        values: dict[str, Any] = {"step": step, "time": step / 100}
        if row % 100 == 0:
            values |= {"step": step - STEPS // rows, "eval/episodic_return": value}
        elif row % 2 == 0:
            values |= {"charts/episodic_return": value, "charts/episodic_length": 1000.0}
        else:
            values |= losses | {"charts/SPS": 101.2345678901, "charts/SPS_learning": 100.123456789}
        lines.append(json.dumps(values))
    (path / "metrics.jsonl").write_text("\n".join([*lines, ""]))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=Path("results/report"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        folder.mkdir()
        for index in range(options.runs):
            write(folder, index, options.rows)
        command = [
            sys.executable,
            "-m",
            "polyak",
            "report",
            str(folder),
            "--output",
            f"{place}/out",
        ]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        page = (Path(place) / "out" / "report.html").stat().st_size
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    context = runs.context()
    result = {
        "runs": options.runs,
        "rows": options.rows,
        "seconds": round(seconds, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_memory_mb": round(used.ru_maxrss / 1000),  # kilobytes on Linux
        "page_mb": round(page / 1e6, 1),
        "load_at_the_end": round(os.getloadavg()[0], 1),
        "processor": context["processor"],
        "cores": context["cores"],
        "commit": context["git"].get("commit", ""),
    }
    print(json.dumps(result, indent=2))
    options.output.mkdir(parents=True, exist_ok=True)
    runs.write_json(options.output / "scale.json", result)


if __name__ == "__main__":
    main()
