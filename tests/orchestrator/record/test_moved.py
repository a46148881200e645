"""A sweep whose files have moved: they are read once, and compared with those of the finished trials."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.commands import session
from orchestrator.record.options import Options
from orchestrator.record.state import State
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.worker.preparation import Needs
from tests.orchestrator.driven import driving, outcomes
from tests.orchestrator.plans import toy_plan

SWEEP = """\
name: t
tasks: [custom/mine]
data: {{custom: {{mine: {{train: {place}/rows.csv, text: body, label: way}}}}}}
space: [{{method: lora, rank: {{values: [1, 2]}}}}]
storage: {storage}
"""


@pytest.mark.parametrize("ended", [1, 2])
@pytest.mark.parametrize("same", [True, False])
def test_a_session_prepares_once_after_its_files_moved(
    tmp_path: Path, ended: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    for place in (tmp_path / "old", tmp_path / "new"):
        place.mkdir()
        (place / "rows.csv").write_text("body,way\na,up\nb,down\n")
        plans.append(toy_plan(place, SWEEP.format(place=place, storage=tmp_path)))
    state = finished(plans[0].sweep.folder, plans[0], ended)
    (plans[0].sweep.folder / "sweep.yaml").write_text(plans[0].sweep.to_yaml())
    prepared = list[tuple[Needs, bool]]()

    def prepare(needs: Needs, *, elsewhere: bool = False) -> dict[str, str]:
        prepared.append((needs, elsewhere))
        return {"custom/mine": "a" * 64 if same else "b" * 64}

    monkeypatch.setattr(session, "prepare", prepare)
    if not same:
        with pytest.raises(SweepError, match="the data of custom/mine are not what this sweep's finished trials used"):
            session._prepare(plans[1], state, Options(), Console(quiet=True))
    else:
        shared = session._prepare(plans[1], state, Options(), Console(quiet=True))
        assert (shared is None) == (ended == 2), "nothing is left to train"
    assert [elsewhere for _, elsewhere in prepared] == [ended == 2]


def finished(folder: Path, plan: object, count: int) -> State:
    """The state of a sweep of which so many trainings have finished."""
    with driving(plan, folder) as driver:  # type: ignore[arg-type]
        for _ in range(count):
            job = driver.next_job()
            assert job is not None
            driver.record_start(job.key)
            (outcome,) = outcomes(job, lambda trial: 60.0)
            result = outcome.result.with_facts(data_fingerprint="a" * 64)
            driver.record_end(job.key, [type(outcome)(result)])
        return driver.state
