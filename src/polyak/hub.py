"""Agents on the Hugging Face Hub: publishing a run's, and fetching one to play it.

What is fetched are two files by name, of bounded size, which `models.load` then judges; nothing of
a repository is executed. What is published says nothing of the machine's user: see `model_card`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib.util
import json
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from polyak import model_card, models, tensorboard
from polyak.errors import PolyakError
from polyak.models import INFO, WEIGHTS, Agent
from polyak.runs import OURS, Run
from polyak.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT = 10.0
"""Seconds to wait for the Hub's first answer."""

LARGEST = {INFO: 10_000_000, WEIGHTS: 500_000_000}
"""The files that are fetched, and the bytes beyond which they are not."""

REPLACED = ("replay.mp4", "replay.gif", "events.out.tfevents.*")
"""Files whose names change from push to push: those of an earlier one go."""

LONGEST_NAME = 96
"""Characters that the Hub takes in a repository's name."""

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def repository_name(env_id: str, exp_name: str, seed: int) -> str:
    """`{env_id}-{exp_name}-seed{seed}` in the Hub's letters: ASCII letters, digits, `-`, `_`, `.`.

    A slash or colon becomes `-`. Where more than that has to change, eight digits of a hash are
    appended, so that names that differ stay different.
    """
    asked = re.sub(r"[/:]", "-", f"{env_id}-{exp_name}-seed{seed}")
    name = re.sub(r"[^A-Za-z0-9._-]+|-{2,}|\.{2,}", "-", asked)
    name = re.sub(r"-{2,}", "-", name).strip("-.")
    if name == asked and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(asked.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9].rstrip('-.')}-{digest}".lstrip("-")


def publisher(entity: str | None = None) -> str:
    """The user or organisation to publish as, once the Hub has confirmed that one may.

    Args:
        entity: an organisation, or the user; by default the user.

    Raises:
        PolyakError: no huggingface_hub, no network, no valid token, one that only reads, or not a
            member of the organisation.
    """
    who = _who()
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise PolyakError("your token of the Hub may only read: log in with one that may write")
    known = [who["name"], *(organisation["name"] for organisation in who.get("orgs", []))]
    if entity is not None and entity not in known:
        raise PolyakError(f"you are no member of {entity} on the Hub: use {', '.join(known)}")
    return entity or str(who["name"])


def push(
    path: str | Path, *, entity: str | None = None, private: bool = False, trust_env: bool = False
) -> str:
    """Publishes a run's agent as `{entity}/{env_id}-{exp_name}-seed{seed}`; returns its address.

    Weights, description, configuration, evaluation results, a model card, TensorBoard events and a
    replay arrive in one commit, which also removes the replay and the events of an earlier push.
    The replay is the run's `replay.mp4` or `replay.gif` if that is newer than the agent, and is
    else recorded; without a picture the rest is published.

    Args:
        path: a run folder; its final agent is published, else its best.
        entity: see `publisher`.
        private: make a new repository private.
        trust_env: see `models.trusted_env_id`; without it, such an agent has no replay.

    Raises:
        PolyakError: no run, from `models.load` or `publisher`, or the Hub refuses.
    """
    run = Run(Path(path))
    if not run.config.keys() >= OURS:
        raise PolyakError(f"{path} is no run folder: its config.json is of something else")
    agent, source = models.load(path), models.find(Path(path))
    if run.config["algorithm"] != agent.info["algorithm"]:
        raise PolyakError(f"{path}: config.json names another algorithm than the agent")
    owner, api = publisher(entity), _api()
    exp_name = model_card.experiment(agent.info)
    repository = f"{owner}/{repository_name(agent.spec.env_id, exp_name, agent.info['seed'])}"
    address = f"{api.endpoint}/{repository}"
    config = model_card.published(run.config)
    with tempfile.TemporaryDirectory(prefix="polyak-") as folder:
        replay = _replay(agent, source, run, Path(folder), trust_env=trust_env)
        card = model_card.write(
            repository,
            agent.info,
            config,
            kind=source.name,
            replay=f"{address}/resolve/main/{replay.name}" if replay else None,
        )
        files: dict[str, bytes | Path] = {
            WEIGHTS: source / WEIGHTS,
            INFO: source / INFO,
            "config.json": _json(config),
            "results.json": _json(model_card.results(agent.info)),
            "README.md": card.encode(),
        }
        for file in (replay, _events(run, Path(folder))):
            if file:
                files[file.name] = file
        with _in_one_line(repository):
            api.create_repo(repository, private=private or None, exist_ok=True)
            _commit(api, repository, files, private=private)
    return address


def _commit(api: HfApi, repository: str, files: dict[str, bytes | Path], *, private: bool) -> None:
    """Makes one commit that brings these files and removes `REPLACED` ones that are not of them."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    info = api.model_info(repository)
    if private and not info.private:
        raise PolyakError(
            f"{repository} exists and is public: make it private in its settings, then push again"
        )
    present = [file.rfilename for file in info.siblings or []]
    stale = [
        name
        for name in present
        if name not in files and any(fnmatch.fnmatchcase(name, kind) for kind in REPLACED)
    ]
    api.create_commit(
        repository,
        [
            *(CommitOperationDelete(path_in_repo=name) for name in stale),
            *(CommitOperationAdd(path_in_repo=n, path_or_fileobj=f) for n, f in files.items()),
        ],
        commit_message=f"Push with Polyak {__version__}",
    )


def fetch(repository: str, revision: str | None = None) -> Path:
    """The folder of a published agent, fetched into the Hub's cache: `load(fetch("owner/name"))`.

    Without a network, what was fetched before serves, with a warning.

    Args:
        repository: `owner/name`.
        revision: a branch, tag or commit; by default the newest.

    Raises:
        PolyakError: no huggingface_hub, no network, no such repository or revision, or it holds
            something else than a saved agent of reasonable size.
    """
    api = _api()
    if revision is not None and (".." in revision or not revision.isprintable()):
        raise PolyakError(f"{revision!r} is no revision: use a branch, tag or commit")
    with _in_one_line(repository, revision):
        from huggingface_hub import errors

        try:
            info = api.model_info(
                repository, revision=revision, files_metadata=True, timeout=TIMEOUT
            )
        except errors.HfHubHTTPError:
            raise
        except (_transport_error(), errors.OfflineModeIsEnabled):
            return _fetched_before(api, repository, revision)
        _check_contents(repository, {f.rfilename: f.size for f in info.siblings or []})
        folders = {
            Path(api.hf_hub_download(repository, name, revision=revision)).parent
            for name in LARGEST
        }
    if {folder.name for folder in folders} != {info.sha}:
        raise PolyakError(f"{repository} changed while it was fetched: try again")
    return folders.pop()


def fetch_named(
    env_id: str,
    exp_name: str,
    seed: int,
    entity: str | None = None,
    revision: str | None = None,
) -> Path:
    """The agent that `push` published of this task, experiment and seed; see `fetch`.

    Args:
        env_id: the task.
        exp_name: the experiment.
        seed: the seed that it was trained with.
        entity: whose it is; by default the user's, who has to be logged in for that.
        revision: see `fetch`.

    Raises:
        PolyakError: see `fetch`; or the repository holds the agent of something else.
    """
    owner = entity or _who()["name"]
    repository = f"{owner}/{repository_name(env_id, exp_name, seed)}"
    folder = fetch(repository, revision)
    info = models.load(folder).info
    found = (info["env_id"], model_card.experiment(info), info["seed"])
    if found != (env_id, exp_name, seed):
        raise PolyakError(f"{repository} holds another agent: {str(found)[:200]}")
    return folder


def _fetched_before(api: HfApi, repository: str, revision: str | None) -> Path:
    """The folder in the cache; raises what `_in_one_line` knows if there is none."""
    paths = [
        api.hf_hub_download(repository, name, revision=revision, local_files_only=True)
        for name in LARGEST
    ]
    warnings.warn(
        f"cannot reach the Hub: taking {repository} as it was fetched before", stacklevel=3
    )
    return Path(paths[0]).parent


def _check_contents(repository: str, sizes: dict[str, int | None]) -> None:
    """Refuses a repository that is none of ours before anything of it is fetched.

    Raises:
        PolyakError: a file is missing or too large, or a name leads out of the repository.
    """
    for name in sizes:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise PolyakError(
                f"{repository} has a file {name[:80]!r}, which leads out of it: refused"
            )
    for name, most in LARGEST.items():
        if name not in sizes:
            raise PolyakError(f"{repository} holds no agent of Polyak: it has no {name}")
        size = sizes[name]
        if size is None or not 0 <= size <= most:
            raise PolyakError(
                f"{name} of {repository} has {size} bytes: refused, as more than {most}"
            )


def _replay(agent: Agent, source: Path, run: Run, folder: Path, *, trust_env: bool) -> Path | None:
    """A film of one episode, noise off: the run's own if it shows this agent, or a new one."""
    for own in (run.path / "replay.mp4", run.path / "replay.gif"):
        if own.is_file() and own.stat().st_mtime >= (source / WEIGHTS).stat().st_mtime:
            return own
    suffix = ".mp4" if importlib.util.find_spec("imageio_ffmpeg") else ".gif"
    path = folder / f"replay{suffix}"
    try:
        env_id = models.trusted_env_id(agent, trust_env)
        from polyak import recording

        recording.record(agent.policy(), env_id, path, seeds=models.seeds(agent, 1, None))
    except Exception as error:  # noqa: BLE001 - of any library that draws; an agent needs no film
        warnings.warn(f"published without a replay: {error}", stacklevel=3)
        return None
    return path


def _events(run: Run, folder: Path) -> Path | None:
    """The run's metrics as TensorBoard events, which the Hub draws.

    Written anew from metrics.jsonl, with the run's seconds as wall time: the name of the run's own
    file has the machine's in it.
    """
    rows = run.metrics()
    if not rows:
        return None
    path = folder / "events.out.tfevents.0.polyak"
    writer = tensorboard.EventsWriter(path, 0, began=0.0)
    for row in rows:
        values = {k: v for k, v in row.items() if k not in ("step", "time")}
        writer.write_event(tensorboard.scalars(row["step"], values, when=row["time"]))
    writer.close()
    return path


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _api() -> HfApi:
    try:
        from huggingface_hub import HfApi, get_token
    except ImportError as error:
        raise PolyakError("the Hub needs huggingface_hub: pip install 'polyak[hub]'") from error
    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):  # the HTTP library's error would quote it
        raise PolyakError(f"the token of the Hub is damaged: {LOG_IN}")
    return HfApi(library_name="polyak", library_version=__version__)


def _who() -> dict[str, Any]:
    """What the Hub says of the user that is logged in."""
    api = _api()
    from huggingface_hub import get_session, get_token

    if get_token() is None:
        raise PolyakError(f"not logged in to the Hub: {LOG_IN}")
    with _in_one_line():
        get_session().head(api.endpoint, timeout=TIMEOUT)  # `whoami` alone would wait for minutes
        return api.whoami()


def _transport_error() -> type[Exception]:
    """The base of every error of the HTTP library, which is not the same one in all versions."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__bases__ if base is not OSError)


@contextlib.contextmanager
def _in_one_line(repository: str = "", revision: str | None = None) -> Iterator[None]:
    """What can go wrong between here and the Hub, as a `PolyakError`.

    The libraries' own errors are neither quoted nor chained: they may hold the token.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        problem = f"{repository} has no revision {revision!r} on the Hub"
    except errors.GatedRepoError:
        problem = f"{repository} asks its readers to be accepted first: see its page on the Hub"
    except errors.RepositoryNotFoundError:
        problem = (
            f"no repository {repository} on the Hub, or it is private: check the name, or {LOG_IN}"
        )
    except errors.HFValidationError:
        problem = f"{repository!r} is no repository on the Hub: use OWNER/NAME"
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            problem = f"the Hub does not accept your token: {LOG_IN}"
        elif status == 403:
            problem = f"your token of the Hub may not do this with {repository}: use another"
        else:
            reason = " ".join((error.server_message or "no reason given").split())[:200]
            problem = f"the Hub answered with error {status}: {reason}"
    except errors.OfflineModeIsEnabled:
        problem = "HF_HUB_OFFLINE is set, so the Hub cannot be asked: unset it"
    except errors.LocalEntryNotFoundError:
        problem = f"cannot reach the Hub, and {repository} was never fetched: check the network"
    except _transport_error() as error:
        problem = (
            f"cannot reach the Hub ({type(error).__name__}): check the network, or HF_ENDPOINT"
        )
    except ValueError as error:  # the sign-in page of a network, or a card that the Hub rejects
        problem = f"the Hub's answer is not as expected: {' '.join(str(error).split())[:200]}"
    except RuntimeError:  # all that the library says of a large file that did not arrive
        problem = "the upload broke off, and nothing was published: try again"
    except OSError as error:
        problem = f"cannot exchange files with the Hub: {error.strerror or type(error).__name__}"
    else:
        return
    raise PolyakError(problem) from None
