from __future__ import annotations

import functools

import pytest

from polyak import runs
from polyak.algorithms import ALGORITHMS
from tests.maths import cases


@pytest.fixture(params=ALGORITHMS, ids="-".join)
def case(request: pytest.FixtureRequest) -> cases.Case:
    """Every algorithm in every backend that there is."""
    return cases.load(*request.param)


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks for versions once and not for the git commit: half the time of a run of few steps."""
    monkeypatch.setattr(runs, "versions", _versions)
    monkeypatch.setattr(runs, "_git", dict, raising=False)


_versions = functools.cache(runs.versions)
