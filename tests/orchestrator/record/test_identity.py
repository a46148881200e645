"""What names a trial, and what may change under a sweep's name."""

from __future__ import annotations

from typing import Any

import pytest

from craft.models.gguf import MODEL_DIGEST
from craft.results import TEXT, TEXT_DIGEST
from craft.spec import RunSpec
from orchestrator.plan.trial import Trial
from orchestrator.record.resume import check_data
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.mistakes import SweepError


def spec(task: str = "glue/cola", **data: Any) -> RunSpec:
    return RunSpec.model_validate({"model": "m", "task": task, "method": "lora", "data": data})


def test_a_trial_keeps_its_name_where_its_data_move_or_other_tasks_join() -> None:
    other = {"train": "t.csv", "text": "body", "label": "queue"}
    assert spec(root="/a").key == spec(root="/b").key == spec().key
    assert spec(custom={"tickets": other}).key == spec().key
    assert spec(generation={"beams": 1}).key == spec().key


def test_what_decides_a_number_decides_the_name() -> None:
    one = {"train": "t.csv", "text": "body", "label": "queue"}
    assert spec(search_fraction=0.2).key != spec().key
    changed = spec("custom/tickets", custom={"tickets": {**one, "label": "team"}})
    assert changed.key != spec("custom/tickets", custom={"tickets": one}).key
    assert spec("commonsense", generation={"beams": 1}).key != spec("commonsense").key


def test_a_setting_at_its_default_changes_no_name() -> None:
    written = spec("glue/sst2").model_dump(mode="json")
    assert RunSpec.model_validate(written).key == spec("glue/sst2").key
    assert set(spec("glue/sst2").identity()) == {"model", "task", "method", "parameters", "protocol", "seed"}
    assert spec("glue/sst2", search_groups=False).key != spec("glue/sst2").key


@pytest.mark.parametrize(
    ("place", "facts", "message"),
    [
        ("glue/cola", {"data_fingerprint": "1" * 64}, "glue/cola"),
        ("/m/one.gguf", {MODEL_DIGEST: "1" * 64}, "/m/one.gguf is not the file .* SHA-256 is 222222222222, then 111111111111"),
        ("mine.txt", {TEXT: "mine.txt", TEXT_DIGEST: "1" * 64}, "mine.txt is not the file .* SHA-256 is 222222222222"),
    ],
)
def test_other_rows_models_and_texts_under_finished_trials_are_refused(place: str, facts: dict[str, str], message: str) -> None:
    trial = Trial(spec().model_copy(update={"model": "/m/one.gguf"}), "c", "label")
    result = TrialResult(trial.key, "finished", facts=facts)
    check_data([result], [trial], {place: "1" * 64})
    check_data([result], [trial], {"another": "2" * 64})
    with pytest.raises(SweepError, match=message):
        check_data([result], [trial], {place: "2" * 64})
