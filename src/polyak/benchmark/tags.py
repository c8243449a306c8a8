"""Labels of runs from the repository and from continuous integration."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from polyak.errors import PolyakError

PULL_REQUEST = {
    "GITHUB_REF": r"refs/pull/(\d+)/",
    "CI_MERGE_REQUEST_IID": r"(\d+)",
    "BUILDKITE_PULL_REQUEST": r"(\d+)",
    "CHANGE_ID": r"(\d+)",
    "CIRCLE_PULL_REQUEST": r".*/(\d+)",
}
"""Variables by which GitHub, GitLab, Buildkite, Jenkins and CircleCI tell the pull request."""


def automatic(environment: Mapping[str, str] = os.environ) -> list[str]:
    """What the working folder is at: git tag, commit and, where known, pull request.

    The tag is that of `git describe --tags`, or `no-tag-{commits}-g{hash}` before the first.

    Raises:
        PolyakError: it is no git repository, or has no commit.
    """
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        raise PolyakError("--auto-tag needs git and a repository with a commit; or give --tags")
    tag = _git("describe", "--tags")
    if tag is None:
        tag = f"no-tag-{_git('rev-list', '--count', 'HEAD')}-g{commit[:7]}"
    requests = (
        re.match(pattern, environment.get(name, "")) for name, pattern in PULL_REQUEST.items()
    )
    return [tag, commit, *(f"pr-{found[1]}" for found in requests if found)][:3]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", *arguments), capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
