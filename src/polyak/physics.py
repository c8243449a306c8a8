"""MuJoCo, imported so that it neither fails without a display nor talks over the progress bar."""

from __future__ import annotations

import logging
import os

# A MUJOCO_GL that cannot work here breaks `import mujoco` itself, also for those who never render.
# Gymnasium reads it again when the first frame is drawn, after `recording` has tried it out.
_asked = os.environ.pop("MUJOCO_GL", None)
try:
    import mujoco as mujoco
finally:
    if _asked is not None:
        os.environ["MUJOCO_GL"] = _asked

# By itself MuJoCo prints warnings and appends them to MUJOCO_LOG.TXT in the user's working folder.
mujoco.set_mju_user_warning(logging.getLogger("polyak.mujoco").info)
