"""The card that a trial's adapter gets before it goes to the tracking store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from craft.spec import RunSpec
from craft.trainer.checkpoint import verify, write_folder
from orchestrator.adapters.model_card import add_card
from orchestrator.plan.trial import PlannedTrial
from orchestrator.state.entry import TrialResult
from tests.golden import check_golden


@pytest.mark.parametrize("by_peft", [True, False])
def test_a_trials_adapter_gets_a_card_with_its_own_scores_alone(tmp_path: Path, by_peft: bool) -> None:
    run = RunSpec(
        model="sentence-transformers/all-MiniLM-L6-v2",
        task="toy/paraphrase",
        method="craft",
        parameters={"ranks": ["all", 8, 8], "projections": ["q", "v"]},
        seed=2,
    )
    trial = PlannedTrial(run, "c0ffee0000", "CRAFT 8, q v")
    result = TrialResult(trial.key, "finished", {"score": 81.25}, {"trainable_parameters": 328.0}, facts={"device": "cpu"})
    record = {
        "spec": trial.run.model_dump(mode="json"),
        "kind": "classification",
        "labels": ["no", "yes"],
        "facts": result.facts,
    }
    record |= {"counts": result.counts, "metrics": result.metrics, "notes": ["micro-batches of 4"]}

    def fill(folder: Path) -> None:
        (folder / "run.json").write_text(json.dumps(record))
        if by_peft:
            (folder / "adapter_config.json").write_text('{"peft_type": "CRAFT"}')

    folder = write_folder(tmp_path / "adapter", fill)
    add_card(folder, "demo", trial, result)
    verify(folder)
    card = ModelCard.load(folder / "README.md")
    assert [(row.dataset_type, row.metric_value) for row in card.data.eval_results] == [("toy/paraphrase", 81.25)]
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    check_golden(f"card/{'peft' if by_peft else 'own'}.txt", card.content)
