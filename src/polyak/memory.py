"""How much memory this process may still take."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def available() -> int:
    """Free bytes: the machine's, or those of its control groups if they have less.

    A container or a job of a cluster is limited by its control group or by one above it, which
    psutil does not see. What a group counts as used includes files that were read long ago; the
    system gives their memory up when it is asked for.
    """
    free = int(psutil.virtual_memory().available)
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:  # not Linux
        return free
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers == "":
            group, names = CGROUPS, ("memory.max", "memory.current", "inactive_file ")
        elif "memory" in controllers.split(","):  # version 1
            group = CGROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        else:
            continue
        free = _least(group, own, *names, free)
    return max(free, 0)


def _least(root: Path, own: str, limit: str, used: str, idle: str, free: int) -> int:
    """The least of `free` and what a group and those above it leave."""
    # A container may see its own group as the root: then the path does not exist, the root does.
    parts = [part for part in own.split("/") if part]
    for depth in range(len(parts) + 1):
        group = root.joinpath(*parts[:depth])
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            left = int((group / limit).read_text()) - int((group / used).read_text())
            with contextlib.suppress(OSError):
                for line in (group / "memory.stat").read_text().splitlines():
                    left += int(line.split()[1]) if line.startswith(idle) else 0
            free = min(free, left)
    return free
