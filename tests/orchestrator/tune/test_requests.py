"""A sweep on real Ray is paused, takes another file and continues: what was handed out and taken back keeps its folder."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.commands.control import ask
from orchestrator.driver.request import apply_request, pending
from orchestrator.record.events import Applied, Ended
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events, read_state
from orchestrator.record.options import Options
from tests.orchestrator.stand_in import ended, plan_of, start_driver, steps, wait_for

pytestmark = pytest.mark.slow


def test_a_sweep_is_paused_takes_another_file_and_continues(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "test")
    process = start_driver(tmp_path, ranks=[1, 2, 4, 8], seconds=0.5)
    wait_for(lambda: folder.record.exists() and read_state(folder.record).in_phase("running"), process)
    ask(folder.path, "pause")
    wait_for(lambda: not read_state(folder.record).in_phase("running"), process)
    begun = {entry.key for entry in read_state(folder.record).entries.values() if entry.begun}
    later = plan_of(tmp_path, "[0]", json.dumps([2, 4, 8, 16]), storage=str(tmp_path))
    for _ in range(2):
        apply_request(later.sweep, Options(str(tmp_path / "sweep.yaml"))).write(folder)
    wait_for(lambda: not pending(folder), process)
    assert {entry.key for entry in read_state(folder.record).entries.values() if entry.begun} == begun, "none starts"
    ask(folder.path, "continue")
    ended(process)
    state, events = read_state(folder.record), [event for event, _ in read_events(folder.record)]
    assert {entry.key for entry in state.requested} == {trial.key for trial in later.trials}
    assert all(entry.finished for entry in state.requested)
    assert sum(isinstance(event, Applied) for event in events) == 1, "the second changes nothing"
    assert set(Counter(event.result.key for event in events if isinstance(event, Ended)).values()) == {1}
    assert set(steps(tmp_path / "log").values()) == {1}, "no step is done twice"
    for entry in state.requested:
        assert entry.finished
        assert Path(str(entry.finished.facts["adapter"])).is_dir()
