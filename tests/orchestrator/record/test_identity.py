"""What names a trial, and what may change under a sweep's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from craft.results import MODEL_DIGEST, TEXT_DIGEST
from craft.spec import RunSpec
from orchestrator.plan.trial import TrialResult
from orchestrator.record.resume import check_data, contradictions, has_moved, recorded_digests
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from tests.orchestrator.logged import entry

MINIMAL = {"name": "s", "model": "m", "tasks": ["glue/cola"], "space": [{"method": "lora", "rank": 1}]}


def spec(task: str = "glue/cola", **data: Any) -> RunSpec:
    return RunSpec.model_validate({"model": "m", "task": task, "method": "lora", "data": data})


def test_what_decides_a_number_decides_the_name_and_no_other_task_or_folder_does() -> None:
    one = {"train": "t.csv", "text": "body", "label": "queue"}
    own = [spec("custom/tickets", custom={"tickets": {**one, "label": label}}) for label in ("queue", "team")]
    same = [spec(root="/a"), spec(root="/b"), spec(custom={"tickets": one}), spec(generation={"beams": 1}), spec()]
    assert len({each.key for each in same}) == 1
    others = [*own, spec(search_fraction=0.2), spec("commonsense"), spec("commonsense", generation={"beams": 1})]
    assert len({each.key for each in (spec(), *others)}) == 6


def test_the_place_of_files_on_a_machine_is_no_part_of_the_name() -> None:
    def run(folder: str, file: str = "rows.csv", **more: str) -> RunSpec:
        own = {"train": f"{folder}/{file}", "text": "body", "label": "queue", **more}
        measure = {"forgetting": {"text": f"{folder}/words.txt"}}
        task = {"model": f"{folder}/model", "task": "custom/tickets", "method": "lora", "data": {"custom": {"tickets": own}}}
        return RunSpec.model_validate(task | {"measure": measure})

    assert run("/a").key == run("/b", "other.csv").key
    assert run("/a", validation="/a/held.csv").key == run("/b", validation="/b/held.csv").key != run("/a").key
    assert run("/a").key != run("/a").model_copy(update={"model": "hub/id"}).key


@pytest.mark.parametrize(
    ("place", "fact", "message"),
    [
        ("glue/cola", "data_fingerprint", "the data of glue/cola are not what"),
        ("/m/one.gguf", MODEL_DIGEST, "model /m/one.gguf: its weights, configuration or tokenizer are not what"),
        ("/m/mine.txt", TEXT_DIGEST, "the text /m/mine.txt is not what"),
    ],
)
def test_other_rows_models_and_texts_under_finished_trials_are_refused(place: str, fact: str, message: str) -> None:
    """By the names that they have now: a finished trial may have read them elsewhere."""
    sweep = Sweep.model_validate(MINIMAL | {"model": "/m/one.gguf", "measure": {"forgetting": {"text": "/m/mine.txt"}}})
    trial = entry(task="glue/cola")
    done = replace(trial, result=TrialResult(trial.key, "finished", facts={fact: "1" * 64, "forgetting_text": "/old/mine.txt"}))
    check_data(sweep, [trial], {place: "2" * 64})
    check_data(sweep, [done], {place: "1" * 64, "another": "2" * 64})
    assert recorded_digests(sweep, [trial, done]) == {place: "1" * 64}
    with pytest.raises(SweepError, match=f"{message} .* finished trials used .SHA-256 222222222222, then 111111111111"):
        check_data(sweep, [done], {place: "2" * 64})


def test_files_may_move_between_sessions_and_nothing_else_of_the_data_may_change() -> None:
    def sweep(folder: str, **own: str) -> Sweep:
        task = {"train": f"{folder}/rows.csv", "text": "t", "label": "l", **own}
        return Sweep.model_validate(MINIMAL | {"model": f"{folder}/bert", "data": {"custom": {"t": task}}})

    assert not contradictions(sweep("/a"), sweep("/b"))
    assert has_moved(sweep("/a"), sweep("/b"))
    assert not has_moved(sweep("/a"), sweep("/a"))
    (line,) = contradictions(sweep("/a"), sweep("/b", label="other"))
    assert line.startswith("data.custom.t.label: was")
    (line,) = contradictions(sweep("/a"), sweep("/b").model_copy(update={"model": "hub/id"}))
    assert "hub/id" in line
