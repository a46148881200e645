"""A run that starts from another task's adapter: its weights but the head, its name in the key, its resumed end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models import Base
from craft.models.loading import head_names, is_head, load_model
from craft.results import RunFailed
from craft.settings import WarmStart
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter, start_from
from craft.trainer.training import train_run
from tests.craft.trainer.same import interrupted
from tests.word_pairs import word_pairs

SHORT = {"max_steps": 3, "train_examples": 24, "eval_examples": 16, "max_length": 24, "batch_size": 8, "learning_rate": 1e-2}
METHODS_HERE: dict[str, dict[str, Any]] = {
    "craft": {"ranks": ["all", 8, 8]},
    "lora": {"rank": 2},
    "pissa": {"rank": 2},
    "adalora": {"init_rank": 3, "target_rank": 2},
    "houlsby": {"bottleneck": 4},
    "full": {},
}


def spec_of(model: str, method: str, task: str, **changes: Any) -> RunSpec:
    return RunSpec(model=model, task=task, method=method, parameters=METHODS_HERE[method], training=SHORT, **changes)


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in ("craft", "pissa", "full") else pytest.mark.slow) for name in METHODS_HERE],
)
def test_every_kind_of_method_starts_from_what_was_learnt_but_the_head(tiny_bert: str, tmp_path: Path, method: str) -> None:
    source = spec_of(tiny_bert, method, **word_pairs(tmp_path, "classification"))
    adapter = train_run(source, tmp_path / "source").adapter
    spec = spec_of(tiny_bert, method, "toy/sentiment", warm_start={"run": source.key, "adapter": str(adapter)})
    row = METHODS[method]
    base = load_model(Base(tiny_bert, "classification", ("negative", "positive")), seed=3)
    model = row.build(base, row.parameters.model_validate(spec.parameters), BuildContext("SEQ_CLS", total_steps=3))
    heads = head_names(model)
    fresh = {name: weight.detach().clone() for name, weight in model.named_parameters() if is_head(name, heads)}
    assert spec.warm_start is not None
    start_from(model, spec.warm_start, spec)
    learnt, _ = load_adapter(adapter)
    theirs = dict(learnt.named_parameters())
    ours = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name, weight in ours.items():
        if is_head(name, heads):
            assert torch.equal(weight, fresh[name]), f"{name} is the task's own"
        else:
            assert torch.equal(weight, theirs[name]), name


def test_the_key_holds_whose_adapter_it_is_and_not_where_it_lies(tiny_bert: str) -> None:
    plain = spec_of(tiny_bert, "lora", "toy/sentiment")
    first, second = "0123456789abcdef", "0123456789abcde0"
    keys = {
        spec_of(tiny_bert, "lora", "toy/sentiment", warm_start=start).key
        for start in (None, {"run": first}, {"run": first, "adapter": "/somewhere"}, {"run": second})
    }
    assert plain.key in keys
    assert len(keys) == 3


def test_a_warm_run_resumed_elsewhere_ends_as_the_undisturbed_one(tiny_bert: str, tmp_path: Path) -> None:
    source = spec_of(tiny_bert, "craft", **word_pairs(tmp_path, "classification"))
    adapter = train_run(source, tmp_path / "source").adapter
    spec = spec_of(tiny_bert, "craft", "toy/sentiment", warm_start={"run": source.key, "adapter": str(adapter)})
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"evaluate_every": 0.4, "weight_decay": 10.0})})
    whole = train_run(spec, tmp_path / "whole")
    assert whole.facts["warm_start"] == source.key
    cold = train_run(spec.model_copy(update={"warm_start": None}), tmp_path / "cold")
    assert not torch.equal(first_of(whole.adapter), first_of(cold.adapter))
    checkpoint = interrupted(spec, tmp_path / "cut")
    shutil.rmtree(tmp_path / "source")
    elsewhere = spec.model_copy(update={"warm_start": WarmStart(run=source.key)})
    again = train_run(elsewhere, tmp_path / "again", resume_from=checkpoint)
    assert again.metrics == whole.metrics
    assert torch.equal(first_of(whole.adapter), first_of(again.adapter))


def first_of(adapter: Path) -> torch.Tensor:
    weights = load_file(adapter / "adapter_model.safetensors")
    return next(weight for name, weight in weights.items() if "craft_J" in name)


def test_what_cannot_be_started_from_is_refused_with_its_reason(tiny_bert: str, tmp_path: Path) -> None:
    source = spec_of(tiny_bert, "lora", **word_pairs(tmp_path, "classification"))
    adapter = train_run(source, tmp_path / "source").adapter

    def refused(**changes: Any) -> str:
        start = {"run": source.key, "adapter": str(adapter)} | changes.pop("start", {})
        parameters = {"rank": 2} | changes.pop("parameters", {})
        spec = RunSpec(
            model=tiny_bert, task="toy/sentiment", method="lora", parameters=parameters, training=SHORT, warm_start=start
        )
        with pytest.raises(RunFailed) as caught:
            train_run(spec, tmp_path / "run")
        return str(caught.value)

    assert "no folder is given" in refused(start={"adapter": None})
    assert "has no run.json" in refused(start={"adapter": str(tmp_path)})
    assert f"of run {source.key}, not of 0123456789abcdef" in refused(start={"run": "0123456789abcdef"})
    assert "another parameters" in refused(parameters={"rank": 4}).replace("has ", "")
