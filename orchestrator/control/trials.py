"""Which trials a person means by `stop TRIAL` and `retry TRIAL`."""

from __future__ import annotations

from orchestrator.state.entry import Entry
from orchestrator.state.events import Verb
from orchestrator.state.state import State
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
