"""`RequestQueue`: the requests to a driver (`orchestrator.control.request`), which it answers one by one between two events,
and the trials that a person means by `stop TRIAL` and `retry TRIAL`.

A new file's plan is made in a thread, because counting parameters may take seconds; the driver continues meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.control.change import check_change, find_change
from orchestrator.control.request import Request, pending
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import describe_plan, record_in, write_effective
from orchestrator.record.overrides import write_overrides
from orchestrator.search.stages import make_strategy
from orchestrator.state.entry import Entry
from orchestrator.state.events import Applied, Requested, Verb
from orchestrator.state.state import State
from orchestrator.sweepfile.load import check
from orchestrator.sweepfile.mistakes import SweepError

SHORTEST = 4
"""Digits of a key that may name a trial."""
NAMED = 5


def affected(state: State, verb: Verb, name: str | None) -> list[str]:
    """Returns the keys of the trials that a request stops or lets run again; none for `pause` and `continue`.

    A training takes along what is cut from its adapter. A cut whose training failed takes this along.

    Args:
        name: a trial's key, its beginning, or `CONFIGURATION · TASK · seed N`.

    Raises:
        SweepError: there is no such trial, or nothing of it can be stopped or run again.
    """
    if verb not in _MAY:
        return []
    entry = _find(state, verb, name or "")
    training, family = state.training_of(entry.trial), state.cuts_of(entry.trial)
    if training is not entry and verb == "retry" and not training.finished:
        family.append(training)
    keys = [other.key for other in (entry, *family) if _MAY[verb](other)]
    if not keys:
        how = entry.result.status if entry.ended and entry.result is not None else entry.phase
        raise SweepError([f"{verb} {_said(entry)}: it is {how}; {verb} is for a trial that {_RULE[verb]}"])
    return keys


_MAY = {"stop": lambda entry: not entry.ended, "retry": lambda entry: entry.ended and not entry.finished}
_RULE = {"stop": "runs or waits", "retry": "failed or was stopped"}


def _find(state: State, verb: Verb, name: str) -> Entry:
    entries = state.requested or [*state.entries.values()]
    exact = [entry for entry in entries if name in (entry.key, entry.trial.name)]
    begun = [entry for entry in entries if len(name) >= SHORTEST and entry.key.startswith(name)]
    matches = exact or begun
    if len(matches) == 1:
        return matches[0]
    candidates = matches or [entry for entry in entries if _MAY[verb](entry)]
    listed = [f"  {_said(entry)}" for entry in candidates[:NAMED]]
    more = [f"  and {len(candidates) - NAMED} more"] if len(candidates) > NAMED else []
    wrong = f"{name!r} names {len(matches)} trials" if matches else f"the sweep {state.name} has no trial {name!r}"
    raise SweepError([f"{verb}: {wrong}. " + ("Those are:" if listed else f"No trial of it {_RULE[verb]}."), *listed, *more])


def _said(entry: Entry) -> str:
    return f"{entry.key} ({entry.trial.name})"


logger = logging.getLogger(__name__)

Look = Callable[[], tuple[Plan, State]]
"""Returns the present plan and the state of the sweep."""


@dataclass(frozen=True)
class Command:
    """What the driver is to do: take the event, and follow the plan if there is one."""

    event: Applied | Requested
    plan: Plan | None = None

    @property
    def keys(self) -> list[str]:
        """The trials that it is about."""
        return self.event.keys if isinstance(self.event, Requested) else []


class _Planning(threading.Thread):
    """Makes the plan of a request's file. `error` says what is wrong with it."""

    def __init__(self, request: Request, current_plan: Plan) -> None:
        super().__init__(name=f"plan-{request.name}", daemon=True)
        self.request, self._current_plan = request, current_plan
        self.plan: Plan | None = None
        self.error = ""

    def run(self) -> None:
        try:
            sweep, mistakes = check(dict(self.request.sweep))
            if sweep is None or mistakes:
                raise SweepError([f"{self.request.file}: {mistake}" for mistake in mistakes])
            check_change(self._current_plan.sweep, sweep)
            plan = make_plan(sweep, self._current_plan.planner.of(sweep))
            make_strategy(plan)  # its errors belong to the request, too
            self.plan = plan
        except Exception as error:  # whatever it is, the person who has asked hears of it, and the sweep runs
            logger.warning("the request %s is refused", self.request.name, exc_info=error)
            self.error = str(error) or type(error).__name__


class RequestQueue:
    """The requests to the driver of the sweep in a folder."""

    def __init__(self, folder: SweepFolder, file: Path | None) -> None:
        """
        Args:
            file: the sweep file that the session was started with.
        """
        self._folder, self._file = folder, file
        self._planning: _Planning | None = None
        self._opened = False

    @property
    def is_busy(self) -> bool:
        """Whether a file is being planned that is to be applied."""
        return self._planning is not None

    def commands(self, look: Look, on_disk: bool) -> Iterator[Command]:
        """Yields the commands since the last call. The driver obeys each before it takes the next one.

        Args:
            on_disk: whether the disk has all events: before that no request is removed.
        """
        for request in pending(self._folder):
            try:
                command = self._answer(request, *look(), on_disk)
            except Exception as error:  # whatever is wrong with a request, it may not end the sweep
                logger.warning("the request %s is refused", request.name, exc_info=error)
                request.refuse(self._folder, str(error) or type(error).__name__)
                continue
            if command is not None:
                yield command
            if self._planning is not None:
                break  # those behind it wait
        self._opened = True

    def _answer(self, request: Request, plan: Plan, state: State, on_disk: bool) -> Command | None:
        """Returns the command of a request. None if it is answered already, out of date, or being planned."""
        if request.name in state.answered:
            if on_disk:
                request.remove(self._folder)
            return None
        if request.verb != "apply":
            keys = affected(state, request.verb, request.trial)
            return Command(Requested(request=request.name, who=request.who, verb=request.verb, keys=keys))
        if self._is_out_of_date(request):
            request.remove(self._folder)
            return None
        return self._apply(request, plan, state)

    def _is_out_of_date(self, request: Request) -> bool:
        """Returns whether the session was started with this file after the file was edited again."""
        if self._opened or self._file is None or self._file.absolute() != Path(request.file):
            return False
        return self._file.exists() and self._file.stat().st_mtime > request.time

    def _apply(self, request: Request, plan: Plan, state: State) -> Command | None:
        if self._planning is None:
            self._planning = _Planning(request, plan)
            self._planning.start()
        if self._planning.is_alive():
            return None
        planning, self._planning = self._planning, None
        if planning.request.name != request.name:
            return None  # it was withdrawn meanwhile
        if planning.plan is None:
            request.refuse(self._folder, planning.error)
            return None
        new = record_in(planning.plan, state.sweep.tracking.uri)
        change = find_change(plan.sweep, new, state)
        if not change:
            request.remove(self._folder)
            return None
        # Before the event: a driver that is killed in between finds the request, and a difference in the trials.
        write_overrides(self._folder.path, request.overrides)
        write_effective(self._folder, new.sweep)
        event = Applied(request=request.name, who=request.who, difference=change.lines, **describe_plan(new))
        return Command(event, new)
