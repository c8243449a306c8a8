"""The study: what Optuna remembers, shared by any number of processes."""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from polyak.benchmark import local
from polyak.benchmark.grid import Job
from polyak.errors import PolyakError
from polyak.tune.spaces import Dimension
from polyak.tune.trial import Outcome, Trial

if TYPE_CHECKING:
    import optuna

SQLITE = (".db", ".sqlite", ".sqlite3")
"""Ends of file names that make it a database; any other is a journal."""
STARTUP = 5
"""Trials that must be complete before any is pruned."""
FACTS = "polyak"
"""The study's attribute that holds what it searches."""
SPACE = "space"
"""The fact that says what is searched; the others are settings that are fixed."""


@dataclass(frozen=True)
class Search:
    """What a study searches."""

    storage: Path
    name: str
    facts: Mapping[str, Any]
    """What every command on this study must agree on, plain enough for JSON."""
    space: Mapping[str, Dimension]
    defaults: Mapping[str, Any]
    """Settings of the first trial."""
    jobs: Callable[[Path, Mapping[str, Any]], list[Job]]
    """The runs of a trial, from its folder and its settings."""
    warm_up: int
    """Environment steps before which no trial is pruned; -1 if none ever is."""
    seed: int

    @property
    def folder(self) -> Path:
        """Where the trials lie: beside the storage, so that who shares one shares both."""
        return self.storage.parent / self.name


class Study:
    """An Optuna study and the trials of this process.

    A trial that is RUNNING for Optuna while nobody holds the lock of its log was left by a process
    that was stopped or killed. It is claimed before any new one begins, and goes on.
    """

    def __init__(
        self, search: Search, study: optuna.Study, storage: Any, library: ModuleType
    ) -> None:
        self._search, self._study, self._storage = search, study, storage
        self._optuna = library
        self._own: dict[int, optuna.Trial] = {}

    def claim(self, trials: int) -> Trial | None:
        """A trial for this process, with its lock; None if there is none to be had.

        Args:
            trials: how many the study shall have; failed ones do not count.
        """
        with _alone(self._search.folder):
            found = self._study.get_trials(deepcopy=False)
            for frozen in found:
                if frozen.state.name == "RUNNING" and (left := self._take(frozen.number)):
                    return left
            # Trials that wait were put there by `enqueue_trial`, and `ask` takes them first.
            counted = [t for t in found if t.state.name in ("COMPLETE", "PRUNED", "RUNNING")]
            if len(counted) >= trials:
                return None
            if not found:
                space, defaults = self._search.space, self._search.defaults
                self._study.enqueue_trial(
                    {d.parameter(name): d.inner(defaults[name]) for name, d in space.items()}
                )
            # A new sampler each time: what it draws depends on the trials before it alone, and
            # not on how often the study was stopped.
            self._study.sampler = self._sampler(len(found))
            trial = self._study.ask()
            taken = self._take(trial.number, trial)
            if taken is None:
                raise PolyakError(
                    f"{self._log(trial.number)} is held by another process: has the study "
                    f"{self._search.storage} been replaced? Choose another --study"
                )
            return taken

    def report(self, trial: Trial) -> None:
        """Tells Optuna the trial's new evaluations, and ends the trial if they are too bad."""
        own = self._own[trial.number]
        known = self._frozen(trial.number).intermediate_values
        new = {step: value for step, value in trial.evaluations().items() if step not in known}
        for step, value in new.items():
            own.report(value, step)
            if trial.running() and not trial.pruned and own.should_prune():
                trial.prune()

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        """Ends the trial for Optuna, unless it is left as it is, and gives up its lock."""
        states = self._optuna.trial.TrialState
        own = self._own.pop(trial.number)
        if outcome is Outcome.COMPLETE:
            self._study.tell(own, trial.value())
        elif outcome in (Outcome.PRUNED, Outcome.DIVERGED):
            # Settings that diverge are bad ones. Optuna learns nothing from a trial that failed.
            own.set_user_attr("outcome", outcome.value)
            self._study.tell(own, state=states.PRUNED)
            trial.clear()
        elif outcome is Outcome.FAILED:
            own.set_user_attr("outcome", trial.reason())
            self._study.tell(own, state=states.FAIL)
        trial.release()

    def standings(self) -> dict[int, str]:
        """How each trial that has begun stands, by number: `complete: trial 3, value 12.50`."""
        found = self._study.get_trials(deepcopy=False)
        return {t.number: self._standing(t) for t in found if t.state.name != "WAITING"}

    def counts(self) -> dict[str, int]:
        """How many trials are complete, pruned, running, waiting or failed."""
        names = [trial.state.name for trial in self._study.get_trials(deepcopy=False)]
        names = ["failed" if name == "FAIL" else name.lower() for name in names]
        return {name: names.count(name) for name in dict.fromkeys(sorted(names))}

    def best(self) -> tuple[int, float, dict[str, Any]] | None:
        """Number, objective and settings of the best trial; None where none is complete."""
        complete = [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.name == "COMPLETE" and trial.value is not None
        ]
        if not complete:
            return None
        best = max(complete, key=lambda trial: trial.value or 0.0)
        fixed = self._optuna.trial.FixedTrial(best.params)
        return best.number, best.value or 0.0, self._settings(fixed)

    def _standing(self, trial: optuna.trial.FrozenTrial) -> str:
        outcome = trial.user_attrs.get("outcome")
        match trial.state.name:
            case "RUNNING":
                return f"begins: trial {trial.number} ({self._log(trial.number)})"
            case "COMPLETE":
                return f"complete: trial {trial.number}, value {trial.value:.2f}"
            case "FAIL":
                return f"failed: trial {trial.number}, {outcome}"
        steps = trial.intermediate_values
        return f"{outcome}: trial {trial.number}" + (f" at step {max(steps)}" if steps else "")

    def _take(self, number: int, trial: optuna.Trial | None = None) -> Trial | None:
        """The trial with its lock; None if another process has it, or has just ended it."""
        log = self._log(number)
        lock = local.lock_log(log, "choose another --storage")
        if lock is None:
            return None
        if self._frozen(number).state.name != "RUNNING":
            os.close(lock)
            return None
        own = trial or self._optuna.trial.Trial(self._study, self._id(number))
        self._own[number] = own
        return Trial(number, self._search.jobs(log.parent, self._settings(own)), log, lock)

    def _settings(self, trial: Any) -> dict[str, Any]:
        return {name: d.suggest(name, trial) for name, d in self._search.space.items()}

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        (seed,) = np.random.SeedSequence([self._search.seed, number]).generate_state(1)
        with warnings.catch_warnings():  # of arguments that were experiments in older Optunas
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            # Running trials count as bad ones, so that workers search apart.
            return self._optuna.samplers.TPESampler(seed=int(seed), constant_liar=True)

    def _log(self, number: int) -> Path:
        return self._search.folder / f"trial-{number:04}" / "train.log"

    def _id(self, number: int) -> int:
        study = self._storage.get_study_id_from_name(self._study.study_name)
        return int(self._storage.get_trial_id_from_study_id_trial_number(study, number))

    def _frozen(self, number: int) -> optuna.trial.FrozenTrial:
        """The trial as the storage has it now."""
        return self._study.get_trials(deepcopy=False)[number]


@contextmanager
def opened(search: Search) -> Iterator[Study]:
    """The study, made if it does not exist.

    Raises:
        PolyakError: Optuna is not installed, the storage cannot be used, or the study is another.
    """
    library = load()
    try:
        search.folder.mkdir(parents=True, exist_ok=True)
        with _alone(search.folder):  # several processes may want to make the tables
            storage = _storage(library, search.storage)
            study = library.create_study(
                storage=storage,
                study_name=search.name,
                direction="maximize",
                pruner=_pruner(library, search.warm_up),
                load_if_exists=True,
            )
            _check(study, search)
    except PolyakError:
        raise
    except OSError as error:
        raise PolyakError(f"cannot use {search.storage}: {error.strerror}") from error
    except Exception as error:  # of SQLAlchemy, Alembic or the journal's reader
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise PolyakError(f"{search.storage} holds no studies ({reason})") from error
    try:
        yield Study(search, study, storage, library)
    finally:
        if search.storage.suffix in SQLITE:
            storage.remove_session()
            storage.engine.dispose()


def load() -> ModuleType:
    """Optuna, silent.

    Raises:
        PolyakError: it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise PolyakError("polyak tune needs Optuna: pip install 'polyak[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _storage(library: ModuleType, path: Path) -> Any:
    if path.suffix in SQLITE:
        from sqlalchemy import URL

        url = URL.create("sqlite", database=str(path)).render_as_string()
        # Seconds to wait for another process that writes.
        return library.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
    backend = library.storages.journal.JournalFileBackend(str(path))
    return library.storages.JournalStorage(backend)


def _pruner(library: ModuleType, warm_up: int) -> optuna.pruners.BasePruner:
    if warm_up < 0:
        return library.pruners.NopPruner()
    return library.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=warm_up)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process opens the study or claims a trial meanwhile."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check(study: optuna.Study, search: Search) -> None:
    """Refuses a study of something else under the same name."""
    before = study.user_attrs.get(FACTS)
    if before is None:
        if study.get_trials(deepcopy=False):
            raise PolyakError(f"the study {search.name} is not Polyak's: choose another --study")
        study.set_user_attr(FACTS, dict(search.facts))
        return
    for key in sorted(before.keys() | search.facts.keys(), key=lambda key: (key == SPACE, key)):
        was, now = before.get(key), search.facts.get(key)
        if was == now:
            continue
        flag = "--" + key.replace("_", "-")
        how = f"with {flag} {was}" if was is not None else f"without {flag}"
        how = "in another search space" if key == SPACE else how
        raise PolyakError(
            f"the study {search.name} was begun {how}: give the same flags, or choose another "
            "--study"
        )
