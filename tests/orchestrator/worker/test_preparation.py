"""What a machine prepares before it trains: models, rows, texts, their fingerprints."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from craft.factors.store import Store
from craft.models.files import MINILM
from craft.results import Unavailable
from craft.settings import ForgettingSettings, MeasureSettings
from craft.spec import RunSpec
from orchestrator.plan.trial import PlannedTrial
from orchestrator.worker import preparation
from orchestrator.worker.preparation import Shared, prepare


def trial(method: str, task: str = "toy/sentiment", **parameters: Any) -> PlannedTrial:
    return PlannedTrial(RunSpec(model=MINILM, task=task, method=method, parameters=parameters), "c", "l")


def test_each_task_and_each_base_is_prepared_once_and_nothing_is_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, bases = {*Store().files()}, list[RunSpec]()
    prepare_base = preparation._prepare_base
    monkeypatch.setattr(preparation, "_prepare_base", lambda run, elsewhere: (bases.append(run), prepare_base(run, elsewhere)))
    trials = [trial("craft", ranks=["all", 8, 16]), trial("milora", task="toy/paraphrase", rank=8), trial("lora", rank=300)]
    assert prepare([*trials, *trials]).keys() == {"toy/sentiment", "toy/paraphrase", MINILM}
    assert len(bases) == 1
    assert {*Store().files()} == stored


def test_the_text_of_forgetting_is_told_under_the_name_that_a_result_gives_it(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("some words")
    measure = MeasureSettings(forgetting=ForgettingSettings(text=str(text)))
    run = trial("lora", rank=2).run.model_copy(update={"measure": measure})
    trials = [PlannedTrial(run, "c", "l")]
    assert prepare(trials)[str(text)] == hashlib.sha256(b"some words").hexdigest()
    text.unlink()
    with pytest.raises(ValueError, match=r"mine\.txt cannot be read"):
        prepare(trials)


def test_a_machine_with_other_data_than_the_drivers_trains_nothing() -> None:
    """On the driver of a cluster the data and the model's configuration are read, and nothing is decomposed."""
    one = trial("craft", ranks=["all", 4, 4], projections=["q"])
    before = {*Store().files()}
    digests = prepare([one], elsewhere=True)
    assert {*Store().files()} == before
    with Shared(digests).checked(one.run):
        pass
    for name in (
        MINILM,
        "toy/sentiment",
    ):  # a model that was trained on in place, or rows that were edited, while the sweep runs
        with pytest.raises(Unavailable, match=f"has other files of {name} than the sweep"):
            Shared({name: "0" * 64}).checked(one.run).__enter__()
