"""`Verdict`: a sweep's configurations at the end of a session, compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.judging.answer import answer_of
from orchestrator.judging.front import marks
from orchestrator.results import tags as names
from orchestrator.results.summary import Summary
from orchestrator.state.entry import Entry
from orchestrator.state.state import State
from orchestrator.sweepfile.objectives import Objectives

Describe = Callable[[Sequence[Summary], Objectives, float], str]
"""Makes the Markdown that describes a sweep's run."""
ENDINGS = {"done": "finished", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class Verdict:
    """The configurations at the end of a session, compared with each other.

    Attributes:
        entries: the trials that the summaries are made of, by configuration.
        members: ids of the configurations that get a mark, by its tag.
    """

    entries: Mapping[str, Sequence[Entry]]
    summaries: Mapping[str, Summary]
    members: Mapping[str, frozenset[str]]
    knee: str
    description: str
    answer: str
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, state: State, describe: Describe) -> Verdict:
        """Judges a state in which a session has ended."""
        objectives = state.sweep.objectives
        summaries, answer = answer_of(state)
        marked = marks(summaries, objectives)
        table = describe(summaries, objectives, state.sweep.enough.within)
        knee = str(marked.pop("knee", ""))
        members = {f"{names.PREFIX}{name}": frozenset(ids) for name, ids in marked.items()}
        return cls(
            group(state),
            {summary.configuration: summary for summary in summaries},
            members | {names.KNEE: frozenset([knee] if knee else [])},
            knee,
            "\n\n".join((answer.markdown, table)),
            answer.text,
            _closing_numbers(state),
        )

    def holds_for(self, configuration: str, entries: Sequence[Entry]) -> bool:
        """Returns whether the configuration has the same trials, with the same results, as when it was judged."""
        judged = self.entries.get(configuration, ())
        same = (old.key == new.key and old.result is new.result for old, new in zip(judged, entries, strict=False))
        return configuration in self.summaries and len(judged) == len(entries) and all(same)


def group(state: State) -> dict[str, list[Entry]]:
    """Returns the trials by configuration: those that the session asks for, or all if it asks for none of them."""
    groups: dict[str, list[Entry]] = {}
    for entry in state.requested:
        groups.setdefault(entry.trial.configuration, []).append(entry)
    unrequested: dict[str, list[Entry]] = {}
    for entry in state.entries.values():
        if entry.trial.configuration not in groups:
            unrequested.setdefault(entry.trial.configuration, []).append(entry)
    return groups | unrequested


def _closing_numbers(state: State) -> dict[str, float]:
    """Returns how many trainings ended how, and the seconds of the last session."""
    assert state.ended is not None
    trained = state.trainings
    ended: list[str] = [entry.result.status for entry in trained if entry.result is not None]
    numbers = {f"trials_{name}": ended.count(status) for name, status in ENDINGS.items()}
    missing = len(trained) - sum(numbers.values())
    return {"trials_planned": len(trained), **numbers, "trials_missing": missing, "seconds": state.ended.seconds}
