"""Serving speed: what is read in turns is the base, the adapter and the merged adapter, and nothing is left changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.scoring import serving
from craft.scoring.serving import bare, cannot_merge, measure_serving, merged_bare
from craft.spec import RunSpec
from craft.trainer.training import train_run

RANKED: dict[str, dict[str, Any]] = {
    "craft": {"ranks": ["all", 8, 8]},
    "lora": {"rank": 2},
    "dora": {"rank": 2},
    "vera": {"rank": 4},
    "ia3": {},
    "lokr": {"rank": 2},
    "houlsby": {"bottleneck": 4},
    "lotr": {"rank": 2},
}
STAYS_BESIDE = ("houlsby", "lotr")
"""Methods whose adapters cannot be merged."""


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROUNDS": 2, "MOST_ROUNDS": 2, "SHORTEST": 0.0, "LENGTH": 16}.items():
        monkeypatch.setattr(serving, name, value)


def built(model: Any, method: str, task_type: str = "CAUSAL_LM") -> Any:
    """The method on the model, its weights away from their start."""
    row = METHODS[method]
    made: Any = row.build(model, row.parameters.model_validate(RANKED[method]), BuildContext(task_type))
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn_like(weight)
    return made.eval()


def outputs(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(24).reshape(2, 12)).logits


@pytest.mark.parametrize("method", RANKED)
def test_the_variants_are_what_they_are_called(tiny_model: Callable[..., Any], method: str) -> None:
    base = outputs(tiny_model("llama", head="causal").eval())
    model = built(tiny_model("llama", head="causal"), method)
    adapted, layers = outputs(model), [type(module) for module in model.modules()]
    assert not torch.allclose(adapted, base, atol=1e-2)
    with bare(model):
        inside = outputs(model)
    if method != "houlsby":  # it trains the base's norms, which stay
        assert torch.equal(inside, base)
    assert torch.equal(outputs(model), adapted)
    if method in STAYS_BESIDE:
        assert "not merged into the base weights" in (cannot_merge(model) or "")
    else:
        assert cannot_merge(model) is None
        with merged_bare(model):
            assert not any(isinstance(module, serving.BaseTunerLayer) for module in model.modules())
            torch.testing.assert_close(outputs(model), adapted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(outputs(model), adapted, atol=1e-5, rtol=1e-5)
    assert [type(module) for module in model.modules()] == layers


@pytest.mark.parametrize(("architecture", "head"), [("llama", "causal"), ("roberta", "classifier"), ("gpt2", "causal")])
def test_a_share_of_the_bases_speed_for_encoders_and_decoders(
    tiny_model: Callable[..., Any], architecture: str, head: str
) -> None:
    model = built(tiny_model(architecture, head=head), "lora", "SEQ_CLS" if head == "classifier" else "CAUSAL_LM")
    model.train()
    served = measure_serving(model)
    both = [f"serving_{what}{which}" for what in ("tokens_per_second", "speed") for which in ("", "_merged")]
    assert served.metrics.keys() == {*both, "serving_tokens_per_second_base"}
    assert all(value > 0 for value in served.metrics.values())
    assert served.notes == []
    assert model.training, "it is left in the mode that it was in"


def test_speeds_are_medians_of_ratios_within_a_round(tiny_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gets twice as slow in the second of three rounds: the ratios stay."""
    times = {"_base": [1.0, 2.0, 1.0], "": [2.0, 4.0, 2.0], "_merged": [1.0, 2.0, 1.25]}
    readings = {name: [serving.Reading(3 * work, work) for work in values] for name, values in times.items()}
    monkeypatch.setattr(serving, "_readings", lambda *_arguments: readings)
    served = measure_serving(built(tiny_model("llama", head="causal"), "lora"))
    assert served.metrics["serving_speed"] == 0.5
    assert served.metrics["serving_speed_merged"] == 1.0
    assert served.metrics["serving_tokens_per_second"] == serving.ROWS * 16 / 6.0, "by the wall clock"


@pytest.mark.parametrize("method", ["lora", "houlsby", "full"])
def test_a_run_has_it_where_it_is_asked_for(tiny_spec: Callable[..., RunSpec], tmp_path: Path, method: str) -> None:
    plain = tiny_spec(method=method, training={"epochs": 1})
    asked = plain.model_copy(update={"measure": plain.measure.model_copy(update={"serving": True})})
    assert asked.key != plain.key
    without, result = train_run(plain, tmp_path / "plain"), train_run(asked, tmp_path / "asked")
    measured = {name for name in result.metrics if name.startswith("serving_")}
    assert {name: value for name, value in result.metrics.items() if name not in measured} == without.metrics
    note = next((one for one in result.notes if one.startswith("serving_speed_merged is not measured: ")), None)
    assert ("serving_speed_merged" in measured) == (method != "houlsby") == (note is None)
    assert (result.metrics["serving_speed"] == 1.0) == (method == "full"), "it has no adapter"
