"""What the tests of this folder share."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from polyak import runs
from polyak.runs import Run
from tests.plumbing.running import ALGORITHMS, train

# The same examples every time: a test that fails on one machine fails on all. Shared machines are
# slow at times, so none is late.
hypothesis.settings.register_profile("plumbing", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("plumbing")


@pytest.fixture(autouse=True)
def _signals_restored() -> Iterator[None]:
    """The command line changes what SIGTERM does; pytest's own handler comes back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _versions_looked_up_once() -> Iterator[None]:
    """Versions do not change while the tests run, and looking them up takes half of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "versions", functools.cache(runs.versions))
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A finished run of each algorithm, with everything that a run can keep. Never change it."""
    folder = tmp_path_factory.mktemp("trained")
    options = {"eval_interval": 20, "eval_episodes": 3, "save_model": True}
    return {name: train(folder, name, **options) for name in ALGORITHMS}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
