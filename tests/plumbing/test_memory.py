"""Free memory, as machines, containers and clusters tell it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from polyak import memory

GIB = 2**30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of control groups on a machine with 8 GiB free."""
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=8 * GIB))
    (tmp_path / "membership").write_text("0::/\n")
    return tmp_path


def limit(group: Path, most: str, used: int, idle: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {idle}\nactive_file 7\n")


def test_without_control_groups_the_machine_decides(groups: Path) -> None:
    assert memory.available() == 8 * GIB
    (groups / "membership").unlink()
    assert memory.available() == 8 * GIB


@pytest.mark.parametrize(
    ("most", "used", "idle", "free"),
    [
        (str(3 * GIB), GIB, 0, 2 * GIB),
        (str(3 * GIB), GIB, GIB // 2, 2 * GIB + GIB // 2),
        ("max", GIB, 0, 8 * GIB),
        (str(100 * GIB), GIB, 0, 8 * GIB),
        (str(GIB), 2 * GIB, 0, 0),  # may happen for a moment
    ],
)
def test_a_container_that_sees_its_group_as_the_root(
    groups: Path, most: str, used: int, idle: int, free: int
) -> None:
    limit(groups, most, used, idle)
    (groups / "membership").write_text("0::/not/visible/in/here\n")
    assert memory.available() == free


@pytest.mark.parametrize("tight", ["job", "job/step", "job/step/task"])
def test_a_limit_may_lie_anywhere_above(groups: Path, tight: str) -> None:
    for name in ("job", "job/step", "job/step/task"):
        limit(groups / name, str(4 * GIB) if name == tight else "max", 3 * GIB)
    (groups / "membership").write_text("0::/job/step/task\n")
    assert memory.available() == GIB


def test_control_groups_of_version_1(groups: Path) -> None:
    group = groups / "memory" / "job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(5 * GIB))
    (group / "memory.usage_in_bytes").write_text(str(4 * GIB))
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {GIB // 4}\n")
    (groups / "membership").write_text("9:name=systemd:/\n4:memory:/job\n0::/\n")
    assert memory.available() == GIB + GIB // 4
