"""What trials share is found from them, and read before the first of them starts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from craft.factors.store import default_store
from craft.models.files import MINILM
from craft.results import Unavailable
from craft.settings import ForgettingSettings, MeasureSettings
from craft.spec import RunSpec
from orchestrator.plan.trial import PlannedTrial
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker.preparation import Shared, needs_of, prepare


def trial(method: str, task: str = "toy/sentiment", resources: dict[str, Any] | None = None, **parameters: Any) -> PlannedTrial:
    run = RunSpec(model=MINILM, task=task, method=method, parameters=parameters, seed=parameters.pop("seed", 0))
    return PlannedTrial(run, "c", "l", Resources(**(resources or {})))


def test_needs_hold_each_task_and_each_base_once() -> None:
    trials = [trial("craft", ranks=["all", 8, 16]), trial("milora", task="toy/paraphrase", rank=8), trial("lora", rank=300)]
    needs = needs_of([*trials, *trials])
    assert [run.task for run in needs.tasks] == ["toy/sentiment", "toy/paraphrase"]
    assert len(needs.bases) == 1
    assert needs.methods == ("craft", "milora", "lora")


def test_the_text_of_forgetting_is_told_under_the_name_that_a_result_gives_it(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("some words")
    run = trial("lora", rank=2).run.model_copy(
        update={"measure": MeasureSettings(forgetting=ForgettingSettings(text=str(text)))}
    )
    needs = needs_of([PlannedTrial(run, "c", "l", Resources())])
    digests = prepare(needs)
    assert digests[str(text)] == hashlib.sha256(b"some words").hexdigest()
    text.unlink()
    with pytest.raises(ValueError, match=r"mine\.txt cannot be read"):
        prepare(needs)


def test_preparation_names_the_data_and_the_model_and_decomposes_nothing() -> None:
    makes = default_store().makes
    assert prepare(needs_of([trial("craft", ranks=["all", 4, 4], projections=["q"])])).keys() == {"toy/sentiment", MINILM}
    assert default_store().makes == makes


def test_a_model_that_is_not_there_is_refused_before_anything_else(tmp_path: Path) -> None:
    run = RunSpec(model=str(tmp_path / "absent"), task="toy/sentiment", method="lora")
    with pytest.raises(ValueError, match="does not exist"):
        prepare(needs_of([PlannedTrial(run, "c", "l")]))


def test_a_machine_with_other_data_than_the_drivers_trains_nothing(tmp_path: Path) -> None:
    """On the driver of a cluster the data and the model's configuration are read, and nothing is decomposed."""
    one = trial("craft", ranks=["all", 4, 4], projections=["q"])
    before = default_store().makes
    digests = prepare(needs_of([one]), elsewhere=True)
    assert default_store().makes == before
    with Shared(digests, True).there(one.run):
        pass
    other = {"toy/sentiment": "0" * 64}
    with Shared(other, False).there(one.run):
        pass
    with pytest.raises(Unavailable, match=f"has other data of {MINILM} than the sweep"):
        Shared({MINILM: "0" * 64}, False).there(one.run).__enter__()  # it was trained on in place while the sweep runs
    with pytest.raises(Unavailable, match="has other data of toy/sentiment than the sweep"):
        Shared(other, True).there(one.run).__enter__()
