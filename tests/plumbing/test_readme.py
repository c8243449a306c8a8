"""What the README tells a newcomer to do works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyak import cli, settings, training
from polyak.runs import Run
from tests.plumbing.running import SMALL

ROOT = Path(__file__).parents[2]


def test_the_python_of_the_readme(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = training.train

    def small(algorithm: str, **options: Any) -> Run:
        settings.setup(algorithm, options)  # as long as it says, they hold together
        return train(algorithm, **SMALL | {"env_id": options["env_id"]})

    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.setattr(training, "train", small)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own README
    assert np.shape(names["action"]) == (1,)


def test_links_of_the_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for link in re.findall(r"(?:\]\(|src=\")([^)#\"\s]+)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_commands_of_the_readme_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `polyak train` line parses, and its settings hold together."""
    seen: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(training, "train", lambda name, **options: seen.append((name, options)))
    monkeypatch.setattr(
        training,
        "train_seeds",
        lambda name, num_seeds, *, resume, **options: seen.append((name, options)),
    )
    text = (ROOT / "README.md").read_text()
    for line in re.findall(r"^polyak (train .*?)\s*(?:#.*)?$", text, re.MULTILINE):
        with pytest.raises(AttributeError):  # of the run that was not made
            cli.main(line.split())
        name, options = seen.pop()
        settings.setup(name, {k: v for k, v in options.items() if k != "progress"})
