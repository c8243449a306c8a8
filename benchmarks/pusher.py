"""How far fixed random torques move the object of Pusher, beside the golden made on MuJoCo 2.3.7.

    python benchmarks/pusher.py [--csv results/pusher/contact.csv]

measures every Pusher that the installed MuJoCo builds and prints one table row for each. With --csv
the rows replace those of the same task and MuJoCo version in that file, so running it once in each
of several virtual environments fills one table. About 5 s a row on one core.

Protocol: torques are default_rng(1).uniform(-2, 2, (5, 7)) per episode, one episode after the
other, as float32; each of the 5 rows is held for 20 steps; episode k is reset with seed k. The
displacement of an episode is the distance in metres of the object from where it was at reset, after
100 steps.
"""

from __future__ import annotations

import argparse
import csv
import platform
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from polyak import pusher

GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "pusher_v4_mujoco_2.3.7.csv"
EPISODES = 300
MOVED = 0.01  # m; on 2.3.7 every displacement is either 0 or more than this
SAME_COLLISIONS = "polyak/Pusher-v4, collisions of 2.3.7"

COLUMNS = {
    "task": "task",
    "mujoco": "MuJoCo",
    "gymnasium": "Gymnasium",
    "numpy": "NumPy",
    "python": "Python",
    "machine": "machine",
    "episodes": "episodes",
    "moved_over_1cm": "moved > 1 cm",
    "moved_in_both": "of them in the golden",
    "max_difference_m": "max difference (m)",
    "mean_difference_m": "mean difference (m)",
}
PRINTED = [c for c in COLUMNS if c not in ("gymnasium", "numpy", "python", "machine", "episodes")]


def golden() -> np.ndarray:
    """Displacement of each episode on MuJoCo 2.3.7 (Pusher-v4), (300,) in metres, 6 decimals."""
    with GOLDEN.open(newline="") as file:
        return np.array([float(row["object_displacement_m"]) for row in csv.DictReader(file)])


def displacements(env: MujocoEnv, episodes: Iterable[int]) -> np.ndarray:
    """Displacement of each given episode in `env`, in metres. The environment comes unwrapped."""
    torques = np.random.default_rng(1).uniform(-2.0, 2.0, (EPISODES, 5, 7)).astype(np.float32)
    moved = []
    for episode in episodes:
        env.reset(seed=episode)
        start = env.data.body("object").xpos.copy()
        for torque in torques[episode].repeat(20, axis=0):
            env.step(torque)
        moved.append(np.linalg.norm(env.data.body("object").xpos - start))
    return np.array(moved)


def collide_as_before(model: mujoco.MjModel) -> None:
    """Undoes two later changes of MuJoCo's that have nothing to do with the object's inertia.

    Since 3.3 the contact of the cylinder with the arm's capsules is found by a new algorithm. Since
    3.5 the margins of two geoms are added up where the larger one counted before, so that the arm
    feels the table 4 mm away instead of 2.
    """
    version = mujoco_version()
    if version >= (3, 3):
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_NATIVECCD
    if version >= (3, 5):
        model.geom_margin[:] /= 2.0  # all geoms have the same margin: its sum is the old maximum


def mujoco_version() -> tuple[int, ...]:
    """(major, minor, patch) of the installed MuJoCo."""
    return tuple(int(part) for part in mujoco.__version__.split("."))


def tasks() -> Iterator[tuple[str, MujocoEnv]]:
    """Label and unwrapped environment of all that can be measured here."""
    pusher.register()
    stock = ["Pusher-v5"] if pusher.stock_v4_is_refused() else ["Pusher-v4", "Pusher-v5"]
    restored = ["polyak/Pusher-v4", "polyak/Pusher-v5"] if mujoco_version() >= (3,) else []
    for env_id in stock + restored:
        yield env_id, _make(env_id)
    if mujoco_version() >= (3, 3):
        env = _make("polyak/Pusher-v4")
        collide_as_before(env.model)
        yield SAME_COLLISIONS, env


def _make(env_id: str) -> MujocoEnv:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "v4 is out of date": on purpose here
        env = gymnasium.make(env_id).unwrapped
    assert isinstance(env, MujocoEnv)
    return env


def measure(task: str, env: MujocoEnv) -> dict[str, Any]:
    """One row of the table."""
    before, now = golden(), displacements(env, range(EPISODES))
    difference = np.abs(now - before)
    return {
        "task": task,
        "mujoco": mujoco.__version__,
        "gymnasium": gymnasium.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "episodes": EPISODES,
        "moved_over_1cm": int((now > MOVED).sum()),
        "moved_in_both": int(((now > MOVED) & (before > MOVED)).sum()),
        "max_difference_m": f"{difference.max():.2g}",
        "mean_difference_m": f"{difference.mean():.2g}",
    }


def merge(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows into a CSV file, in place of those with the same task and MuJoCo version."""
    kept: list[dict[str, Any]] = []
    if path.exists():
        new = {(row["task"], row["mujoco"]) for row in rows}
        with path.open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if (row["task"], row["mujoco"]) not in new]
    ordered = sorted(kept + rows, key=_order)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)


def _order(row: dict[str, Any]) -> tuple[list[int], bool, str]:
    version = [int(part) for part in row["mujoco"].split(".")]
    return version, row["task"].startswith("polyak/"), row["task"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="table to put the rows into")
    path = parser.parse_args().csv
    # By itself MuJoCo 4 writes warnings to MUJOCO_LOG.TXT in the working folder.
    mujoco.set_mju_user_warning(lambda _: None)
    print("| " + " | ".join(COLUMNS[c] for c in PRINTED) + " |")
    print("|" + "---|" * len(PRINTED))
    rows = []
    for task, env in tasks():
        rows.append(measure(task, env))
        print("| " + " | ".join(str(rows[-1][c]) for c in PRINTED) + " |", flush=True)
    if path is not None:
        merge(path, rows)


if __name__ == "__main__":
    main()
