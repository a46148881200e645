"""Where a run starts: its head, by a fit against scikit-learn's own answers; its adapter, from another task's but the head."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from craft.models import Base
from craft.models.loading import head_names, is_head, load_model
from craft.results import Leave, RunFailed
from craft.scoring.encoding import Collator, Encoded
from craft.scoring.scorer import predict
from craft.settings import TrainingSettings, WarmStart
from craft.tasks.task import Kind
from craft.trainer import head_start
from craft.trainer.adapter_folder import load_adapter, start_from
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.head_start import PENALTY, STRENGTH, fit_linear, start_head
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.craft.methods.cases import CASES, marked, put
from tests.craft.trainer.same import leave_at, same_run, same_weights
from tests.word_pairs import word_pairs

N = 60
SHORT = {"max_steps": 3, "train_examples": 24, "eval_examples": 16, "max_length": 24}
PROBE, LABELS = TrainingSettings(eval_batch_size=16), TrainingSettings(head_start="labels")
STILL = {"max_steps": 1, "learning_rate": 1e-9, "head_learning_rate": None}
"""All weights stay as they start."""
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the fits that are made."""
    monkeypatch.setattr(head_start, "fit_linear", counted := Mock(wraps=fit_linear))
    return counted


def split(kind: Kind, classes: int = 2) -> Encoded:
    """Texts of 3 to 9 tokens with labels that their tokens tell in part. Values lie around 3."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, N)
    tokens = [draw.integers(4 + 15 * label, 30 + 15 * label, draw.integers(3, 10)) for label in labels]
    values = labels if kind == "classification" else (3 + labels + draw.normal(0, 0.1, N)).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in tokens])])
    return Encoded({"input_ids": np.concatenate(tokens).astype(np.int32)}, offsets, values)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("labels", "outputs"), [([0, 1], 2), ([0, 1, 2], 3), ([0, 2], 3), ([1, 2, 3], 4)])
def test_a_folded_classifier_gives_the_probabilities_of_scikit_learn(labels: list[int], outputs: int, bias: bool) -> None:
    draw = np.random.default_rng(1)
    features = draw.normal(0.05, 0.04, (N, 12))
    features[:, 0] = 5  # a layer without a bias makes one of what hardly varies
    drawn = draw.choice(labels, N)
    weight, constant = fit_linear(features, drawn, "classification", outputs, bias=bias)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH / N, max_iter=1000)).fit(features, drawn)
    assert (constant is None) != bias
    ours = torch.tensor(features @ weight.T + (0 if constant is None else constant))
    expected = theirs.predict_proba(features)
    np.testing.assert_allclose(ours[:, labels].softmax(dim=1), expected, atol=1e-5 if bias else 1e-2)
    assert ours.softmax(dim=1)[:, [label for label in range(outputs) if label not in labels]].sum(dim=1).max() < 1 / N


@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_regression_answers_in_the_labels_unit(bias: bool) -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(0.5, 0.04, (N, 12))
    values = 3 + x @ draw.normal(0, 5, 12)
    weight, constant = fit_linear(x, values, "regression", 1, bias=bias)
    ours = x @ weight[0] + (0 if constant is None else constant)
    assert abs(ours.mean() - values.mean()) < (1e-6 if bias else 0.1)
    if bias:
        theirs = make_pipeline(StandardScaler(), Ridge(PENALTY * N)).fit(x, values)
        np.testing.assert_allclose(ours, theirs.predict(x), atol=1e-5)


@pytest.mark.parametrize(("kind", "value"), [("classification", 1), ("regression", 2.5)])
def test_labels_of_one_value_give_that_answer(kind: Kind, value: float) -> None:
    weight, constant = fit_linear(
        np.eye(5), np.full(5, value).astype(type(value)), kind, 1 if kind == "regression" else 3, bias=True
    )
    assert not weight.any()
    assert constant is not None
    assert constant.argmax() == 1 if kind == "classification" else constant[0] == value


def test_every_family_starts_at_the_fit_of_its_frozen_features(family: str, tiny_model: Callable[..., Any]) -> None:
    model = tiny_model(family, head="classifier")
    model.config.pad_token_id = 0
    data, collator = split("classification"), Collator(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start_head(model, PROBE, "classification", data, collator, shared=True)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert len({name.rpartition(".")[0] for name in changed}) == 1
    outputs = torch.tensor(predict(model, data, collator, 16))
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(data.labels))
    assert loss < 0.95 * np.log(2)
    if family in ("bert", "llama"):  # the features by hand
        rows = []
        for at in range(N):
            out = getattr(model, model.base_model_prefix)(torch.tensor(data[at]["input_ids"].astype(np.int64))[None])
            rows.append((out.pooler_output if family == "bert" else out.last_hidden_state[:, -1]).detach()[0].numpy())
        features = np.stack(rows).astype(float)
        theirs = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH / N)).fit(features, data.labels)
        apart = outputs.softmax(dim=1).numpy() - theirs.predict_proba(features)
        assert np.abs(apart).mean() < (1e-4 if family == "bert" else 0.1), "LLaMA's head has no bias"


@pytest.mark.parametrize(("kind", "expected"), [("classification", None), ("regression", 3.5)])
def test_the_bias_of_labels_is_their_mean_or_their_shares(tiny_bert: str, kind: Kind, expected: float | None) -> None:
    data = split(kind)
    model: Any = load_model(Base(tiny_bert, kind, ("a", "b")))
    weight = model.classifier.weight.clone()
    start_head(model, LABELS, kind, data, Collator(0), shared=True)
    assert torch.equal(model.classifier.weight, weight)
    bias = model.classifier.bias.detach()
    if expected is None:
        torch.testing.assert_close(bias.softmax(0), torch.tensor(np.bincount(data.labels) / N).float(), atol=0.01, rtol=0)
    else:
        assert abs(bias.item() - expected) < 0.2


def test_a_head_without_a_bias_cannot_start_at_the_labels(tiny_model: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="head has none; use probe"):
        start_head(tiny_model("llama", head="classifier"), LABELS, "regression", split("regression"), Collator(0), shared=True)


@pytest.mark.slow
def test_a_fit_is_made_once_for_what_it_is_made_of(tiny_spec: MakeSpec, tmp_path: Path, fits: Mock) -> None:
    def run(name: str, **changes: Any) -> dict[str, torch.Tensor]:
        training = STILL | changes.pop("training", {})
        return load_file(
            next(train_run(tiny_spec(**changes, training=training), tmp_path / name).adapter.glob("*.safetensors"))
        )

    first = run("first", method="bitfit")
    heads = run("others", method="head", seed=4), run("precision", method="full", training={"learning_rate": 1e-8})
    assert fits.call_count == 1
    for other in heads:
        torch.testing.assert_close(other["classifier.weight"], first["classifier.weight"], atol=1e-6, rtol=0)
    others = {"train_examples": 40}, {"max_length": 16}, {"eval_batch_size": 8}, {"tf32": True}
    for number, changes in enumerate(others, start=2):
        run(str(number), method="head", training=changes)
        assert fits.call_count == number


def test_random_inner_layers_of_a_head_have_a_fit_for_each_seed(tiny_model: Callable[..., Any], fits: Mock) -> None:
    for seed in (0, 1, 0):
        model = tiny_model("roberta", seed=seed, head="classifier")
        start_head(model, PROBE, "classification", split("classification"), Collator(1), shared=True)
    assert fits.call_count == 2


def test_a_warm_start_is_fitted_on_what_was_learnt(tiny_spec: MakeSpec, tmp_path: Path, own_cache: Path) -> None:
    three_classes = word_pairs(tmp_path, "classification")
    learns = {"head_start": "random", "learning_rate": 0.1, "head_learning_rate": None}
    source = tiny_spec(**three_classes, method="bitfit", training=learns)
    adapter = train_run(source, tmp_path / "source").adapter

    def classifier(name: str, **changes: Any) -> torch.Tensor:
        model, _ = load_adapter(train_run(tiny_spec(method="bitfit", training=STILL, **changes), tmp_path / name).adapter)
        return model.classifier.weight  # type: ignore[union-attr, return-value]

    start = {"run": source.key, "adapter": str(adapter)}
    warm = classifier("warm", warm_start=start)
    assert not list((own_cache / "factors").glob("*.safetensors"))
    assert not torch.allclose(warm, classifier("cold"), atol=1e-3)
    learnt, _ = load_adapter(adapter)
    continued = classifier("on", **three_classes, warm_start=start)
    torch.testing.assert_close(continued, learnt.classifier.weight, atol=1e-6, rtol=0)  # type: ignore[union-attr]


@pytest.mark.parametrize("method", marked(("craft", "pissa", "full", "lora", "adalora", "houlsby"), ("craft",)))
def test_every_kind_of_method_starts_from_what_was_learnt_but_the_head(
    tiny_spec: MakeSpec, tmp_path: Path, method: str
) -> None:
    own = {"method": method, "parameters": CASES[method].parameters, "training": SHORT}
    source = tiny_spec(**own, **word_pairs(tmp_path, "classification"))
    adapter = train_run(source, tmp_path / "source").adapter
    spec = tiny_spec(**own, warm_start={"run": source.key, "adapter": str(adapter)})
    base = load_model(Base(spec.model, "classification", ("negative", "positive")), seed=3)
    model = put(base, method)
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


def test_the_key_holds_whose_adapter_it_is_and_not_where_it_lies_nor_the_start_of_no_head(tiny_spec: MakeSpec) -> None:
    first, second = "0123456789abcdef", "0123456789abcde0"
    starts = (None, {"run": first}, {"run": first, "adapter": "/somewhere"}, {"run": second})
    keys = {tiny_spec(warm_start=start).key for start in starts}
    assert tiny_spec().key in keys
    assert len(keys) == 3
    in_words = [{}, *({"head_start": start} for start in ("random", "labels", "probe"))]
    assert len({tiny_spec(task="commonsense", training=training).key for training in in_words}) == 1


@pytest.mark.slow
def test_a_warm_run_resumed_elsewhere_ends_as_the_undisturbed_one(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    source = tiny_spec(training=SHORT, **word_pairs(tmp_path, "classification"))
    smaller = source.model_copy(update={"training": source.training.in_smaller_batches()})  # as after memory ran out
    adapter = train_run(smaller, tmp_path / "source").adapter
    settings = SHORT | {"evaluate_every": 0.4, "weight_decay": 10.0}
    spec = tiny_spec(training=settings, warm_start={"run": source.key, "adapter": str(adapter)})
    whole = train_run(spec, tmp_path / "whole")
    assert whole.facts["warm_start"] == source.key
    cold = train_run(spec.model_copy(update={"warm_start": None}), tmp_path / "cold")
    assert not same_weights(*(run.adapter / "adapter_model.safetensors" for run in (whole, cold)))
    with pytest.raises(Leave):
        train_run(spec, tmp_path / "cut", on_step=leave_at(1))
    shutil.rmtree(tmp_path / "source")
    elsewhere = spec.model_copy(update={"warm_start": WarmStart(run=source.key)})
    again = train_run(elsewhere, tmp_path / "again", resume_from=find_newest_checkpoint(tmp_path / "cut"))
    assert same_run(whole, again)


def test_what_cannot_be_started_from_is_refused_with_its_reason(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    source = tiny_spec(method="lora", training=SHORT, **word_pairs(tmp_path, "classification"))
    adapter = train_run(source, tmp_path / "source").adapter

    refused = [(None, 2, "no folder is given"), (tmp_path, 2, "has no run.json"), (adapter, 4, "has another parameters")]
    for place, rank, said in refused:
        start = {"run": source.key, "adapter": place and str(place)}
        with pytest.raises(RunFailed, match=said):
            train_run(tiny_spec(method="lora", parameters={"rank": rank}, training=SHORT, warm_start=start), tmp_path / "run")
