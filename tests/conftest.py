"""Settings that every test shares."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The networks of the tests are so small that a second thread costs more than it brings. Set before
# a library reads it, and inherited by the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["NPROC"] = "1"

# A shell ignores Ctrl-C for what it starts in the background, and nohup a terminal that closes;
# processes of these tests must not.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# No test reaches for W&B's servers.
os.environ["WANDB_MODE"] = "offline"

# So that processes which tests start find `tests.toys`, wherever they run.
_root = str(Path(__file__).resolve().parents[1])
_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, _path), _root])

# Compiled programs are kept between tests, but not in the user's own cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(_root) / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Frees what JAX has compiled: gigabytes over the whole suite."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
