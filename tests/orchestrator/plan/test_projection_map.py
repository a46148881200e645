"""A model of a family that no list names: its layout, or the sweep file, says where its projections are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models import Base
from craft.models.loading import load_model
from craft.spec import RunSpec
from craft.trainer.counting import planned_counts
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError

MAP = {
    "q": "self.query",
    "k": "self.key",
    "v": "self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": r"\d\.output.dense",
}


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model of a family that is named nowhere."""
    folder = tmp_path_factory.mktemp("unknown")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
    transformers.MegatronBertForSequenceClassification(transformers.MegatronBertConfig(**sizes)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if "projections" in row.parameters.model_fields])
def test_every_method_finds_an_unknown_family_by_its_layout_as_by_a_map(method: str, unknown: str) -> None:
    ranks = {"ranks": ["all", 4, 4]}
    parameters = {"peft": {"peft_type": "LORA"}, "craft": ranks, "craft_star": ranks}.get(method, {})
    spec = {"model": unknown, "task": "toy/sentiment", "method": method, "parameters": parameters}
    by_layout = planned_counts(RunSpec.model_validate(spec))
    assert by_layout == planned_counts(RunSpec.model_validate(spec | {"projection_map": MAP}))
    assert by_layout.trainable_parameters > 0


def test_a_sweep_file_takes_the_map_of_its_model(unknown: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    blocks = "[{method: craft, ranks: [all, 4, 4]}, {method: lora, rank: 1}]"
    text = f"name: m\nmodel: {unknown}\ntasks: [toy/sentiment]\nspace: {blocks}\n"
    file.write_text(text + "projection_map: {q: self.query, v: self.value}\n")
    plan = make_plan(load_sweep(file))
    assert [row.counts.trainable_parameters for row in plan.configurations] == [2 * (2 * 2 + 4 * 4 + 4 * 4), 2 * 2 * (32 + 32)]
    assert all(trial.run.projection_map == {"q": "self.query", "v": "self.value"} for trial in plan.trials)
    model = load_model(Base(unknown, "classification", ("a", "b"), projection_map={"q": "self.query", "v": "self.value"}))
    parameters = METHODS["craft"].parameters.model_validate({"ranks": ["all", 4, 4]})
    adapted: Any = METHODS["craft"].build(model, parameters, BuildContext("SEQ_CLS"))
    assert adapted.peft_config["default"].projection_map == {"q": "self.query", "v": "self.value"}
    file.write_text(text + "projection_map: {q: '(attn'}\n")
    with pytest.raises(SweepError, match=r"sweep\.yaml:5: projection_map: q: '\(attn' is no regular expression"):
        load_sweep(file)
