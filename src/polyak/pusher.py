"""Pusher with its contact restored: `polyak/Pusher-v4` and `polyak/Pusher-v5`.

What changed. Up to MuJoCo 2 the armature of a joint (0.04 kg on each of the object's two slides)
counted in the inverse inertia that the compiler stores for the object, `body_invweight0` and
`dof_invweight0`. MuJoCo 3 treats bodies that only slide apart and stores 1 / mass for them. The
object weighs 13 micrograms (v4) or 8 milligrams (v5), so `body_invweight0` grew by a factor of
4.6 million or 7,600. A contact is as soft as this number says, while the object still moves with
its armature: the arm passes through it.

What is restored. These constants, for the object alone, to the numbers that MuJoCo 2.3.7 compiles
from the same XML. Everything else is Gymnasium's own: environment, XML, rewards, keyword
arguments. The stock ids are not touched.

How it was measured. All fields of the model compiled by MuJoCo 2.3.7 and by 3.1.6 were compared:
of those that the dynamics use, only these constants differ, and `body_simple`, which marks the
bodies treated apart. 300 episodes of fixed random torques then show that the object follows the
golden made on 2.3.7: `benchmarks/pusher.py`, `docs/pusher.md`.

Results are those of the restored task and never belong in one row with those of the stock task.
"""

from __future__ import annotations

import re
from typing import Any

from polyak.physics import mujoco  # before Gymnasium, which imports it as it is

# isort: split

import gymnasium
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv, pusher_v4, pusher_v5
from gymnasium.utils import EzPickle

STOCK_WARNING = (
    "Pusher-v5 is broken on MuJoCo >= 3: the arm passes through the object (random torques move "
    "it in 3 to 7 of 300 episodes instead of 34); polyak/Pusher-v5 has the contact restored"
)
V4_HINT = (
    "Gymnasium refuses to build Pusher-v4 on MuJoCo >= 3, where its contact is broken; "
    "use polyak/Pusher-v4, where it is restored"
)

# `mjModel.body_simple` of a body that only slides along its own axes, known from MuJoCo 3.0 on.
_ONLY_SLIDES = 2


class PusherV4(pusher_v4.PusherEnv):
    """Gymnasium's Pusher-v4 on any MuJoCo, the object's contact as on MuJoCo 2.

    Observation (23,) float64, action (7,) float32 torques in [-2, 2] N m, 0.05 s a step. Takes the
    stock environment's keyword arguments (`render_mode`, `width`, `height`, `camera_id` ...).
    """

    def __init__(self, **kwargs: Any) -> None:
        # The parent's __init__ refuses MuJoCo >= 3 before anything else, so its rest is said again.
        EzPickle.__init__(self, **kwargs)
        MujocoEnv.__init__(
            self,
            "pusher.xml",
            5,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (23,), np.float64),
            default_camera_config=pusher_v4.DEFAULT_CAMERA_CONFIG,
            **kwargs,
        )
        restore_contact(self.model)


class PusherV5(pusher_v5.PusherEnv):
    """Gymnasium's Pusher-v5, the object's contact as on MuJoCo 2.

    Observation (23,) float64, action (7,) float32 torques in [-2, 2] N m, 0.05 s a step. Takes the
    stock environment's arguments (`reward_near_weight`, `frame_skip`, `xml_file` ...).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        restore_contact(self.model)


def restore_contact(model: mujoco.MjModel) -> None:
    """Put back the inverse inertia of the body `object` as MuJoCo 2 compiles it.

    A slide of a body of mass m with armature a has inverse inertia 1 / (m + a) in 1/kg, and the
    body the mean over x, y, z, to which an axis without a slide adds nothing. Does nothing on
    MuJoCo 2, nor in a model (`xml_file`) whose object also turns: there MuJoCo itself counts the
    armature.
    """
    body = model.body("object").id
    if model.body_simple[body] != _ONLY_SLIDES:
        return
    first = int(model.body_dofadr[body])
    slides = slice(first, first + int(model.body_dofnum[body]))
    inverse = 1.0 / (model.body_mass[body] + model.dof_armature[slides])
    model.dof_invweight0[slides] = inverse
    model.body_invweight0[body, 0] = inverse.sum() / 3.0


def register() -> None:
    """Register `polyak/Pusher-v4` and `-v5` with Gymnasium; a second call changes nothing."""
    for version in (4, 5):
        env_id = f"polyak/Pusher-v{version}"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id,
                # Text rather than the class, so that the spec can be written as JSON.
                entry_point=f"polyak.pusher:PusherV{version}",
                max_episode_steps=100,
                reward_threshold=0.0,
            )


def is_stock_pusher(env_id: str) -> bool:
    """Whether this is Gymnasium's own Pusher, of any version, also as `module:Pusher-v5`."""
    return re.fullmatch(r"([\w.]+:)?Pusher(-v\d+)?", env_id) is not None


def stock_v4_is_refused() -> bool:
    """Whether Gymnasium refuses to build its own Pusher-v4 with the installed MuJoCo."""
    return int(mujoco.__version__.partition(".")[0]) >= 3
