"""What is compared, as programs that take turns (`pacing.py`): Polyak, and training by its peers.

Every system has the same settings (batch 256, two hidden layers of 256, one update per step, actor
and targets of DDPG and TD3 updated every second time), the same task with the same clock, the
processor and the same number of threads. Only Polyak writes metrics meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import roofline
from pacing import TASK, Worker

HERE = Path(__file__).parent
PEERS = ("sb3", "sbx")
PACKAGES = ("stable-baselines3", "sbx-rl", "gymnasium", "mujoco", "numpy", "torch", "jax")


def polyak_loop(
    algorithm: str,
    backend: str,
    env_id: str,
    *,
    threads: int,
    learning_starts: int,
    runs_dir: str,
    variables: dict[str, str] | None = None,
    **flags: Any,
) -> Worker:
    """`polyak train` without evaluation and checkpoints.

    Args:
        algorithm: one of Polyak's.
        backend: torch or jax.
        env_id: the task.
        threads: of the processor.
        learning_starts: random steps before learning.
        runs_dir: gets the run's folder.
        variables: more environment variables.
        flags: more settings by name.
    """
    flags |= {
        "env_id": f"paced_env:paced/{env_id}",
        "backend": backend,
        "learning_starts": learning_starts,
        "eval_interval": 0,
        "checkpoint_interval": 0,
        "device": "cpu",
        "threads": threads,
        "runs_dir": runs_dir,
    }
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    command = [sys.executable, "-m", "polyak", "train", algorithm, *arguments]
    path = ":".join([str(HERE), *sys.path[1:]])  # what finds this script's Polyak finds that one's
    paced = {TASK: env_id, "PYTHONPATH": path}
    return Worker(command, held_to(threads) | paced | (variables or {}))


def peer_loop(
    library: str,
    algorithm: str,
    env_id: str,
    *,
    python: str,
    threads: int,
    learning_starts: int,
) -> Worker:
    """Training by `sb3` or `sbx` with a Python that has them; otherwise like `polyak_loop`."""
    command = [python, str(HERE / "peers.py"), library, algorithm]
    command += ["--learning-starts", str(learning_starts), "--threads", str(threads)]
    paced = {TASK: env_id, "PYTHONPATH": ""}
    return Worker(command, held_to(threads) | paced)


def update_alone(algorithm: str, backend: str, env_id: str, *, threads: int) -> Worker:
    """Polyak's update without environment and loop."""
    command = [sys.executable, str(HERE / "updates.py"), algorithm, backend, "--env-id", env_id]
    return Worker([*command, "--threads", str(threads)], held_to(threads))


def matrix_products(algorithm: str, sizes: roofline.Sizes, *, threads: int) -> Worker:
    """The products of matrices that an update consists of; see `roofline.py`."""
    command = [sys.executable, str(HERE / "roofline.py"), algorithm, "--obs", str(sizes.obs)]
    return Worker([*command, "--act", str(sizes.act), "--threads", str(threads)], held_to(threads))


def held_to(threads: int) -> dict[str, str]:
    """Environment variables that hold any library to the processor and to so many threads."""
    variables = {"JAX_PLATFORMS": "cpu", "NPROC": str(threads), "OMP_NUM_THREADS": str(threads)}
    if threads == 1:
        variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return variables


def peer_versions(python: str) -> dict[str, str]:
    """Versions of what the peers' Python has; empty for what it lacks.

    Raises:
        OSError: there is no such program.
        subprocess.CalledProcessError: it is no Python.
    """
    program = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['name'].lower().replace('_', '-'): d.version"
        " for d in m.distributions()}\n"
        "print(json.dumps({name: have.get(name, '') for name in sys.argv[1:]}))"
    )
    command = [python, "-I", "-c", program, *PACKAGES]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
