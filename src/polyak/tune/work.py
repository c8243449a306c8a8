"""The work on a study: trials claimed, watched and ended, so many at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from polyak import stopping
from polyak.benchmark.progress import say
from polyak.errors import PolyakError
from polyak.tune.study import Study
from polyak.tune.trial import Outcome, Trial

POLL = 0.5
"""Seconds between looks at the trials."""
PATIENCE = 3
"""Trials that may fail one after another before the search gives up."""


class Work:
    """Claims trials and watches them until the study has as many as it shall have.

    Args:
        study: the study.
        trials: how many it shall have.
        workers: trials of this process at a time.
        found: called when a trial is complete, and at the end.
    """

    def __init__(self, study: Study, trials: int, workers: int, found: Callable[[], None]) -> None:
        self._study, self._trials, self._workers, self._found = study, trials, workers, found
        self._active: list[Trial] = []
        self._failed = 0  # one after another

    def __call__(self) -> None:
        """Works until nothing is left to do.

        Raises:
            PolyakError: trials fail one after another.
            KeyboardInterrupt: it was asked to stop, and has ended its trials.
        """
        try:
            while self._claim() or self._active or self._others():
                for trial in list(self._active):
                    self._look(trial)
                if stopping.asked():
                    raise stopping.Stopped("(the same command goes on)")
                time.sleep(POLL)
        except BaseException:
            self._end()
            raise
        self._found()

    def _claim(self) -> bool:
        """Takes as many trials as there are workers for; whether there was one."""
        claimed = False
        while len(self._active) < self._workers:
            trial = self._study.claim(self._trials)
            if trial is None:
                break
            self._active.append(trial)
            say(f"{'goes on' if trial.begun else 'begins'}: trial {trial.number} ({trial.log})")
            trial.start()
            claimed = True
        return claimed

    def _look(self, trial: Trial) -> None:
        ended = not trial.running()  # looked at first, so that the last evaluation is seen
        self._study.report(trial)
        if not ended:
            return
        self._active.remove(trial)
        outcome = trial.outcome()
        self._study.tell(trial, outcome)
        left = f"{outcome.value}: trial {trial.number}"
        say(left if outcome is Outcome.LEFT else self._study.standings()[trial.number])
        self._failed = self._failed + 1 if outcome is Outcome.FAILED else 0
        if self._failed == PATIENCE:
            raise PolyakError(f"{PATIENCE} trials in a row failed: {trial.reason()}")
        if outcome is Outcome.COMPLETE:
            self._found()

    def _others(self) -> bool:
        """Whether other processes have trials: should one of them die, its trials are left."""
        return self._study.counts().get("running", 0) > 0

    def _end(self) -> None:
        if self._active:
            say(f"ending {len(self._active)} trials; again to kill them")
        try:
            for trial in self._active:
                trial.signal(signal.SIGTERM)
            for trial in self._active:
                trial.wait()
        except KeyboardInterrupt:
            for trial in self._active:
                trial.signal(signal.SIGKILL)
            raise
        for trial in self._active:
            trial.release()
