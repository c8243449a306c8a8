"""Settings that every test shares."""

from __future__ import annotations

import os
from pathlib import Path

# The networks of the tests are so small that a second thread costs more than it brings. Set before
# a library reads it, and inherited by the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# No test reaches for W&B's servers.
os.environ["WANDB_MODE"] = "offline"

# So that processes which tests start find `tests.toys`, wherever they run.
_root = str(Path(__file__).resolve().parents[1])
_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, _path), _root])
