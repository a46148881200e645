"""Laws of State: whatever happens to a sweep, its fold, and each event as a line of the log."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.plan.trial import Trial, TrialResult, Why
from orchestrator.record.events import (
    EVENTS,
    Ended,
    Event,
    Opened,
    Refused,
    Reported,
    Requested,
    SessionEnded,
    SessionStarted,
    Wanted,
)
from orchestrator.record.log import Log, read_events, read_state
from orchestrator.record.state import State, fold, new_rows
from tests.orchestrator import logged

KEYS = ["a", "b", "c"]
NUMBERS = st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = st.sampled_from(["x", "search_score"])
METRICS = st.dictionaries(NAMES, NUMBERS, max_size=2)
PLAIN = st.dictionaries(NAMES, NUMBERS | st.none() | st.just("text") | st.lists(st.booleans(), max_size=2), max_size=2)
TRIALS = st.builds(
    Trial,
    key=st.sampled_from(KEYS),
    configuration=st.sampled_from("fg"),
    label=st.just("LoRA"),
    method=st.just("lora"),
    task=st.just("toy/sentiment"),
    seed=st.integers(0, 1),
    protocol=st.just("honest"),
    parameters=PLAIN,
    why=st.sampled_from([Why(), Why("candidate", "f"), Why("cut", "a"), Why("cut", "b", Why("candidate", "f"))]),
    planned=METRICS,
)
RESULTS = st.builds(
    TrialResult,
    key=st.sampled_from(KEYS),
    status=st.sampled_from(["finished", "failed", "stopped"]),
    metrics=METRICS,
    error=st.none() | st.just("gone"),
    retryable=st.booleans(),
    facts=PLAIN,
)
ROWS = st.builds(lambda step, row: {"step": step, **row}, st.integers(0, 4), METRICS)
FIELDS = {
    **dict.fromkeys(("time", "epoch", "seconds"), st.floats(0, 2e9)),
    "left": st.none() | st.floats(0, 2e9),
    "keys": st.lists(st.sampled_from(KEYS), max_size=3),
    "key": st.sampled_from(KEYS),
    "trials": st.lists(TRIALS, max_size=3),
    "result": RESULTS,
    "rows": st.lists(ROWS, min_size=1, max_size=3),
    **dict.fromkeys(("sweep", "manifest", "point", "parameters"), PLAIN),
    "counts": METRICS,
}
"""What the fields of events hold; a field that is not here gets any value of its type."""


def drawn(kind: type[Event]) -> st.SearchStrategy[Event]:
    given = {field.name: FIELDS[field.name] for field in fields(kind) if field.name in FIELDS}
    return st.builds(kind, **given | ({"sweep": st.just("demo")} if kind is Opened else {}))


HISTORIES = st.lists(st.one_of(*map(drawn, EVENTS.values())), max_size=25)
LAWS = settings(deadline=None, max_examples=50, derandomize=True)


@pytest.mark.slow
@LAWS
@given(HISTORIES)
def test_no_event_takes_back_what_another_one_has_settled(history: list[Event]) -> None:
    state = State()
    for event in history:
        before, state = state, state.after(event)
        assert state.wanted.keys() <= state.entries.keys()
        assert [*state.entries][: len(before.entries)] == [*before.entries]
        for entry in before.entries.values():
            later = state.entries[entry.key]
            assert later.begun >= entry.begun
            assert later.seconds >= entry.seconds
            assert all(later.last_steps[name] >= step for name, step in entry.last_steps.items())
            if entry.ended and not isinstance(event, SessionStarted):
                assert later.ended
            if entry.result is not None and entry.result.settled and not isinstance(event, Requested):
                assert (later.result, later.phase) == (entry.result, entry.phase)
        if isinstance(event, SessionStarted | SessionEnded):
            assert not state.in_phase("running")


@LAWS
@given(HISTORIES, drawn(Reported))
def test_what_is_on_record_is_not_recorded_again(history: list[Event], report: Event) -> None:
    assert isinstance(report, Reported)
    state = fold(history)
    entry = state.entries.get(report.key)
    rows = new_rows(entry, report.rows) if entry is not None and not entry.ended else []
    if rows:
        state = state.after(replace(report, rows=rows))
        assert new_rows(state.entries[report.key], report.rows) == []


@pytest.mark.parametrize("name", EVENTS)
@given(data=st.data())
@settings(LAWS, max_examples=30)
def test_an_event_is_a_line_of_the_log_and_back(name: str, data: st.DataObject) -> None:
    event = data.draw(drawn(EVENTS[name]))
    line = event.to_json()
    assert Event.from_json(json.dumps(line)) == event
    assert isinstance(State().after(event), State)
    changes = [{"surprise": 1}, {"event": "Unheard"}, {"event": 5}, *({field: [[]]} for field in line if field != "event")]
    for change in changes:
        with pytest.raises(ValueError, match=r"it is no \w+ of a sweep"):
            Event.from_json(json.dumps(line | change))


@settings(LAWS, max_examples=20)
@given(HISTORIES, st.integers(0, 25))
def test_a_log_is_read_as_it_was_written_from_any_event_on(history: list[Event], place: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        log = Log(path)
        assert log.append(*history)
        log.close()
        events = [*read_events(path)]
        offset = ([0] + [behind for _, behind in events])[min(place, len(events))]
        assert [event for event, _ in events] == history
        assert [event for event, _ in read_events(path, offset)] == history[place:]
        assert read_state(path) == fold(history)


def test_a_configuration_that_a_loosened_constraint_allows_is_refused_no_longer() -> None:
    trial = logged.entry().trial
    names = {"configuration": trial.configuration, "label": trial.label, "method": trial.method, "protocol": trial.protocol}
    refused = fold([Refused(**names, parameters={}, counts={}, reason="above max 40")])
    assert [*refused.refused] == [trial.configuration]
    asked = refused.after(Wanted(keys=[trial.key], trials=[trial]))
    assert not asked.refused
    assert not fold([Refused(**names, parameters={}, counts={}, reason="above"), Wanted(keys=[trial.key])], asked).refused


def test_a_session_has_the_pace_of_the_one_before_until_a_training_has_ended() -> None:
    def session(time: float) -> SessionStarted:
        return SessionStarted(**logged.started(), time=time)

    trainings = [logged.entry(seed=seed) for seed in range(4)]
    wanted = Wanted(keys=[each.key for each in trainings], trials=[each.trial for each in trainings])
    ends = [Ended(result=replace(logged.finished(each), seconds=100.0), time=100.0) for each in trainings]
    first = fold([session(0.0), wanted, *ends[:3], SessionEnded(status="interrupted", time=100.0)])
    again = fold([session(500.0), wanted], first)
    assert [first.pace, again.pace] == [3.0, 3.0]
    resumed = Ended(result=replace(ends[3].result, seconds=3600.0), time=600.0)
    assert again.after(resumed).pace == 1.0, "the seconds of earlier sessions do not make it seem fast"
