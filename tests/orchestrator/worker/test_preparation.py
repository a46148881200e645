"""What trials share is found from them, and is in the stores before the first of them starts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from craft.factors.store import default_store
from craft.methods.method import BuildContext
from craft.models.files import MINILM
from craft.models.loading import load_model
from craft.results import Unavailable
from craft.settings import ForgettingSettings, MeasureSettings
from craft.spec import RunSpec
from orchestrator.plan.trial import PlannedTrial
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker.preparation import Base, Shared, needs_of, prepare


def trial(method: str, task: str = "toy/sentiment", resources: dict[str, Any] | None = None, **parameters: Any) -> PlannedTrial:
    run = RunSpec(model=MINILM, task=task, method=method, parameters=parameters, seed=parameters.pop("seed", 0))
    return PlannedTrial(run, "c", "l", Resources(**(resources or {})))


def test_needs_hold_the_largest_ranks_of_every_projection_once() -> None:
    trials = [
        trial("craft", ranks=["all", 8, 16], projections=["q"]),
        trial("craft", ranks=[2, 32, 4], projections=["q", "v"]),
        trial("milora", task="toy/paraphrase", rank=8, projections=["o"]),
        trial("lora", rank=300),
    ]
    needs = needs_of([*trials, *trials])
    assert [run.task for run in needs.tasks] == ["toy/sentiment", "toy/paraphrase"]
    (base,) = needs.bases
    assert base == Base(trials[0].run, {"ranks": ["all", 32, 16], "projections": ["q", "v"]}, on_gpu=False)


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


def test_after_preparation_no_trial_decomposes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    prepared = trial("craft", ranks=["all", 4, 4], projections=["q"])
    digests = prepare(needs_of([prepared, trial("pissa", rank=2)]))
    assert digests.keys() == {"toy/sentiment", MINILM}
    makes = default_store().makes
    assert makes == 1, "one stack"
    run = prepared.run
    run.row.build(load_model(run.base("classification", ("a", "b"))), run.typed_parameters, BuildContext("SEQ_CLS"))
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
