"""`paced/TASK`: a Gymnasium task that stands still between blocks of steps; see `pacing.py`.

It is the clock of every training loop that is compared, whatever library the loop is of: a block
begins and ends where the loop is about to take an environment step, and holds all that the loop
does for so many steps.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec
from pacing import TASK, asked, report


class Clock:
    """Counts the steps of all environments of this process, and pauses where a block ends.

    The first pause is before the first step.
    """

    def __init__(self) -> None:
        self.steps = self.end = 0
        self.began = time.perf_counter()

    def tick(self) -> None:
        """A step is about to be taken."""
        if self.steps == self.end:
            report(time.perf_counter() - self.began)
            block = asked()
            if block is None:
                sys.exit()
            self.end += block
            self.began = time.perf_counter()
        self.steps += 1


CLOCK = Clock()


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The task, and the clock before each of its steps."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the task."""
        CLOCK.tick()
        return self.env.step(action)


def register(env_id: str) -> str:
    """Registers the paced form of a task; its id."""
    spec = gymnasium.spec(env_id)
    gymnasium.register(
        f"paced/{env_id}",
        entry_point=spec.entry_point,
        max_episode_steps=spec.max_episode_steps,
        kwargs=spec.kwargs,
        additional_wrappers=(WrapperSpec("Paced", f"{__name__}:Paced", {}),),
    )
    return f"paced/{env_id}"


ENV_ID = register(os.environ[TASK])
