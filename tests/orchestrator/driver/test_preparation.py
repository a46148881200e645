"""What trials share is found from them, and is in the stores before the first of them starts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from craft.factors.store import Store, default_store
from craft.factors.svd import singular_vectors
from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models.loading import MINILM, load_model
from craft.results import Unavailable
from craft.settings import ForgettingSettings, MeasureSettings
from craft.spec import RunSpec
from orchestrator.driver.preparation import Base, Shared, needs_of, prepare
from orchestrator.plan.trial import PlannedTrial
from orchestrator.sweepfile.resources import Resources


def trial(method: str, task: str = "toy/sentiment", resources: dict[str, Any] | None = None, **parameters: Any) -> PlannedTrial:
    run = RunSpec(model=MINILM, task=task, method=method, parameters=parameters, seed=parameters.pop("seed", 0))
    return PlannedTrial(run, "c", "l", Resources(**(resources or {})))


def test_needs_hold_the_largest_ranks_of_every_projection_once() -> None:
    trials = [
        trial("craft", ranks=["all", 8, 16], projections=["q"]),
        trial("craft", ranks=[2, 32, 4], projections=["q", "v"]),
        trial("pissa", rank=4, projections=["q", "v"], resources={"cpu": 2}),
        trial("lora_xs", rank=16, projections=["q"], resources={"cpu": 2}),
        trial("milora", task="toy/paraphrase", rank=8, projections=["o"], resources={"cpu": 2}),
        trial("lora", rank=300),
    ]
    needs = needs_of([*trials, *trials])
    assert [run.task for run in needs.tasks] == ["toy/sentiment", "toy/paraphrase"]
    (base,) = needs.bases
    assert base == Base(
        trials[0].run, {"ranks": ["all", 32, 16], "projections": ["q", "v"]}, {"q": 16, "v": 4, "o": 8}, threads=2, on_gpu=False
    )


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


def test_after_preparation_no_trial_decomposes_and_the_numbers_are_those_of_its_own_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    trials = [trial("craft", ranks=["all", 4, 4], projections=["q"])]
    trials += [trial(method, rank=rank, projections=["q"]) for method in ("pissa", "milora", "lora_xs") for rank in (2, 4)]
    before = torch.get_num_threads()
    digests = prepare(needs_of(trials), cores=2)
    assert digests.keys() == {"toy/sentiment", MINILM}
    assert torch.get_num_threads() == before
    makes = default_store().makes
    assert makes == 7, "one stack, and one weight of each layer"
    for run in [prepared.run for prepared in trials]:
        row, model = METHODS[run.method], load_model(MINILM, "classification", ("a", "b"))
        row.build(model, row.parameters.model_validate(run.parameters), BuildContext("SEQ_CLS"))
    assert default_store().makes == makes
    weight = load_model(MINILM, "classification", ("a", "b")).get_submodule("bert.encoder.layer.0.attention.self.query").weight
    torch.set_num_threads(1)
    try:
        u, _, _ = torch.linalg.svd(weight.detach(), full_matrices=False)
    finally:
        torch.set_num_threads(before)
    again = Store(tmp_path / "cache")
    assert torch.equal(singular_vectors(weight, 4, "largest", again)[0], u[:, :4])
    assert again.makes == 0


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
