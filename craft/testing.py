"""Contract tests of rows, for the tests of this project and of plugins: each raises AssertionError with what does not hold.

from craft.testing import check_metric
def test_kappa() -> None: check_metric("kappa")
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from craft.methods import find_method
from craft.settings import DataSettings
from craft.tasks import expand_tasks, find_task
from craft.tasks.metrics import METRICS, compute_metrics
from craft.tasks.splits import load_splits

STEPS = 20


def check_metric(name: str) -> None:
    """Checks a metric of classes or values: right answers have 1; wrong, equal and shuffled ones are within its range."""
    row, draw = METRICS[name], np.random.default_rng(0)
    labels = draw.integers(0, 2, 200) if row.kind == "classification" else draw.normal(size=200)
    assert np.isclose(row.compute(labels, labels), 1.0), f"{name}: right answers have {row.compute(labels, labels):g} and not 1"
    least = -1.0 if row.signed else 0.0
    for case, answers in {"shuffled": draw.permutation(labels), "equal": np.zeros_like(labels), "wrong": 1 - labels}.items():
        value = row.compute(answers, labels)
        assert isinstance(value, float), f"{name}: {case} answers have {value!r}, which is no float"
        assert least - 1e-9 <= value < 1, f"{name}: {case} answers have {value:g}, not from {least:g} to below 1"


def check_task(name: str, data: DataSettings | None = None) -> None:
    """Checks a task with its data: names, metrics, labels, splits; and that right answers have 100 in each metric."""
    data = data or DataSettings()
    task = find_task(name, data)
    assert task.name in expand_tasks([task.suite], data), f"{name} is not in its suite {task.suite}"
    assert task.title.strip(), f"{name} has no title"
    assert task.primary in task.metrics, f"{name}: {task.primary} is none of its metrics"
    assert bool(task.labels) == (task.kind == "classification"), f"{name}: classes are for classification"
    assert len(set(task.labels)) == len(task.labels) != 1, f"{name}: two classes or more, each once"
    splits = load_splits(task, data, eval_examples=200)
    for split in (splits.train, splits.search, *splits.reported.values()):
        assert len(split), f"{name}: a split is empty"
        if task.kind == "classification":
            assert set(split["label"][:]) <= set(range(len(task.labels))), f"{name}: a label is no class"
        if task.span is not None:
            assert task.span[0] <= min(split["label"][:]) <= max(split["label"][:]) <= task.span[1], f"{name}: out of its span"
    if task.kind == "generation":
        return
    for metric in task.metrics:
        assert METRICS[metric].fits(task.kind, len(task.labels)), f"{name}: {metric} does not fit"
    for split in splits.reported.values():
        scores = compute_metrics(task, split["label"][:], split["label"][:])
        assert all(np.isclose(score, 100.0) for score in scores.values()), f"{name}: right answers have {scores}"


def check_method(name: str, trainable: int | None = None, **parameters: Any) -> None:
    """Checks a method on a small random BERT (3 layers of width 32): it starts as the base, learns, trains nothing else, and
    comes back from its folder. A start may have small noise, as CRAFT's. `trainable` is the number of parameters that it trains
    there without the head, counted by hand."""
    import tempfile

    import torch
    import transformers
    from peft import PeftModel

    from craft.methods.method import BuildContext
    from craft.models.loading import trained_weights

    row = find_method(name)
    transformers.set_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    )  # fmt: skip
    base = transformers.BertForSequenceClassification(config).eval()
    labels = torch.arange(16) % 2
    texts = torch.randint(10, 20, (16, 8)) + 10 * labels[:, None]
    start, spare = base(texts).logits.detach(), copy.deepcopy(base)
    context = BuildContext("SEQ_CLS", total_steps=STEPS)
    parsed = row.parameters.model_validate(parameters)
    model = row.build(base, parsed, context)
    trained = [weight for _, weight, head in trained_weights(model) if not head]
    count = sum(weight.numel() for weight in trained)
    assert trainable in (None, count), f"{name} trains {count:,} numbers, not {trainable:,}"
    assert torch.allclose(model.eval()(texts).logits, start, atol=0.05), f"{name} does not start as the base model"
    frozen = {key: value.clone() for key, value in model.named_parameters() if not value.requires_grad}
    groups = [{"params": [weight for weight in model.parameters() if weight.requires_grad], "lr": 0.01, "weight_decay": 0.0}]
    optimizer = row.optimizer(model, groups, parsed, context) if row.optimizer else torch.optim.AdamW(groups)
    losses = []
    for _ in range(STEPS):
        loss = model.train()(texts, labels=labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0], f"{name} does not learn: its loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
    moved = [key for key, value in model.named_parameters() if key in frozen and not torch.equal(value, frozen[key])]
    assert not moved, f"{name} changes frozen weights: {moved[:3]}"
    if isinstance(model, PeftModel):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = PeftModel.from_pretrained(spare, folder).eval()
        assert torch.allclose(again(texts).logits, model.eval()(texts).logits, atol=1e-4), (
            f"{name}: loaded, it answers otherwise"
        )
