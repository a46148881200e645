"""The steps of a run: micro-batches, rates, orders, losses, and when they are evaluated and read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from craft.models import Base
from craft.models.loading import load_model
from craft.results import Progress, RunFailed
from craft.settings import DataSettings, TrainingSettings
from craft.tasks import TASKS
from craft.tasks.splits import load_splits
from craft.trainer import loop as optimizing
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.loop import Loop, evaluation_steps, order_examples, rate_factor, total_steps
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.craft.trainer.same import close_weights, same_weights, train_watched
from tests.word_pairs import word_pairs


@pytest.mark.parametrize("kind", ["classification", pytest.param("regression", marks=pytest.mark.slow)])
def test_the_cut_into_micro_batches_does_not_change_a_step(tiny_spec: MakeSpec, tmp_path: Path, kind: str) -> None:
    # 44 examples: the last step of an epoch is a smaller one and its micro-batches are uneven (8 + 4 against 12).
    training = {"batch_size": 16, "train_examples": 44, "select": "last"}
    spec = tiny_spec(training=training, **word_pairs(tmp_path, kind))
    smaller = spec.training.in_smaller_batches()
    assert smaller is not None
    assert (smaller.batch_size, smaller.gradient_accumulation) == (8, 2)
    large = train_run(spec, tmp_path / "large")
    small = train_run(spec.model_copy(update={"training": smaller}), tmp_path / "small")
    assert large.steps == small.steps == 6
    assert close_weights(large, small, atol=1e-4)  # of 6e-2; AdamW makes rounding large where a gradient is nearly 0


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ((6, 1), [(3, 2), (1, 6)]),
        ((3, 4), [(1, 12)]),
        ((9, 2), [(3, 6), (1, 18)]),
    ],
)
def test_micro_batches_shrink_to_one_example_and_keep_the_effective_batch(
    sizes: tuple[int, int], steps: list[tuple[int, int]]
) -> None:
    training = TrainingSettings(batch_size=sizes[0], gradient_accumulation=sizes[1], eval_batch_size=5)
    seen = []
    while (smaller := training.in_smaller_batches()) is not None:
        training = smaller
        seen.append((training.batch_size, training.gradient_accumulation))
    assert seen == steps
    assert training.eval_batch_size == max(1, 5 // 2 ** len(steps))


def test_evaluations_fall_where_they_were_asked_for_and_at_the_end() -> None:
    settings = TrainingSettings(epochs=2.5, batch_size=10, gradient_accumulation=2, evaluate_every=1)
    assert total_steps(settings, 95) == 13  # 10 micro-batches, 5 steps an epoch
    assert total_steps(settings.model_copy(update={"epochs": 0.07}), 2000) == 7, "0.07 * 100 is a little more in the computer"
    assert evaluation_steps(settings, 95) == [5, 10, 13]
    assert evaluation_steps(settings.model_copy(update={"evaluate_every": 9.0}), 95) == [13]
    assert evaluation_steps(settings.model_copy(update={"evaluate_every": "end"}), 95) == [13]
    assert evaluation_steps(settings.model_copy(update={"max_steps": 7}), 95) == [5, 7]
    for every in (0.01, 1e-9):
        assert evaluation_steps(settings.model_copy(update={"evaluate_every": every, "max_steps": 3}), 95) == [1, 2, 3]
    assert total_steps(settings.model_copy(update={"max_steps": 0}), 95) == 0, "0 steps are not all of the epochs"


@pytest.mark.parametrize("method", ["craft", pytest.param("dora", marks=pytest.mark.slow), "full"])
def test_weight_decay_pulls_an_adapter_to_its_start(tiny_spec: MakeSpec, tmp_path: Path, method: str) -> None:
    """A decay of one half a step next to an update of 1e-9: what is left of the weights is what they decay to."""
    still = {"learning_rate": 1e-9, "head_learning_rate": 1e-30, "max_steps": 4, "warmup_ratio": 0, "schedule": "constant"}
    runs = [tiny_spec(method=method, training=still | {"weight_decay": decay}) for decay in (0.0, 0.5e9)]
    start, end = (train_run(run, tmp_path / str(at)).adapter.parent / "predictions.safetensors" for at, run in enumerate(runs))
    moved = float((load_file(start)["outputs"] - load_file(end)["outputs"]).abs().max())
    assert (moved > 1e-3) == (method == "full"), moved


@pytest.mark.parametrize(
    ("schedule", "warmup", "steps", "expected"),
    [
        ("linear", 0.06, 1, [1]),
        ("linear", 0.5, 4, [1 / 2, 1, 1, 1 / 2]),
        ("linear", 0, 4, [1, 3 / 4, 2 / 4, 1 / 4]),
        ("cosine", 0.2, 5, [1, 1, (2 + 2**0.5) / 4, 1 / 2, (2 - 2**0.5) / 4]),
        ("constant", 0.4, 5, [1 / 2, 1, 1, 1, 1]),
    ],
)
def test_rates_of_every_step(schedule: str, warmup: float, steps: int, expected: list[float]) -> None:
    training = TrainingSettings(schedule=schedule, warmup_ratio=warmup)
    assert [rate_factor(training, step, steps) for step in range(steps)] == pytest.approx(expected)


@pytest.mark.parametrize("grouped", [False, True])
def test_every_epoch_of_every_seed_has_an_order_of_its_own(grouped: bool) -> None:
    training = TrainingSettings(batch_size=4, gradient_accumulation=2, group_by_length=grouped)
    lengths = np.random.default_rng(0).integers(10, 300, 1003)
    orders = [order_examples(training, lengths, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert all(sorted(order) == [*range(1003)] for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert order_examples(training, lengths, 1, 1) == orders[3]
    steps = [lengths[orders[0][at : at + 8]] for at in range(0, 1003, 8)]
    padding = sum(len(step) * step.max() for step in steps) / lengths.sum()
    assert (padding < 1.1, steps[0].max() == lengths.max()) == (grouped, grouped)
    order = [step.mean() for step in steps]
    assert abs(np.corrcoef(order, range(len(order)))[0, 1]) < 0.3, "steps are not sorted themselves"


def test_the_head_has_a_learning_rate_of_its_own(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec = tiny_spec(training={"head_start": "random", "head_learning_rate": 1e-30, "select": "last"})
    result = train_run(spec, tmp_path)
    model, _ = load_adapter(result.adapter)
    fresh = load_model(Base(spec.model, "classification", TASKS[spec.task].labels), seed=spec.seed)
    assert torch.equal(model.get_base_model().classifier.weight, fresh.classifier.weight)


def test_every_evaluation_sees_the_weights_of_a_fused_step(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's optimizer changes weights without counting it in their versions."""
    losses = dict[bool, list[float]]()
    for fused in (False, True):
        monkeypatch.setattr(optimizing, "adamw", partial(torch.optim.AdamW, fused=fused))
        reports: list[Progress] = []
        train_run(tiny_spec(method="lora"), tmp_path / str(fused), report=reports.append)
        losses[fused] = [progress.metrics["search_loss"] for progress in reports if progress.metrics]
    assert len(set(losses[False])) > 1
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)


def test_the_loss_of_a_step_is_the_mean_over_its_examples(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    """With weights that stay, the losses of an epoch are those of its examples, whatever the micro-batches."""
    training = {"epochs": 1, "gradient_accumulation": 2, "learning_rate": 1e-12, "head_learning_rate": 1e-12}
    spec = tiny_spec(method="lora", training=training | {"train_examples": 40})
    result, points = train_watched(spec, tmp_path)
    rows = load_splits(TASKS[spec.task], DataSettings(), train_examples=40).train
    model, _ = load_adapter(result.adapter)
    inputs = AutoTokenizer.from_pretrained(spec.model)(
        rows["text"][:], padding=True, truncation=True, max_length=32, return_tensors="pt"
    )
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(model.eval()(**inputs).logits, torch.tensor(rows["label"]), reduction="sum")
    sizes = [16, 16, 8]
    assert [point["step"] for point in points] == [1, 2, 3]
    measured = sum(size * point["train_loss"] for size, point in zip(sizes, points, strict=True))
    assert measured == pytest.approx(losses.item(), rel=1e-4)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the loop avoid readings, as where they make the host wait. It logs four times a run, so most steps go unread."""
    monkeypatch.setattr("craft.trainer.loop._POINTS", 4)
    never = property(lambda _loop: False, lambda _loop, _freely: None)
    monkeypatch.setattr(Loop, "_reads_freely", never, raising=False)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_run_that_reads_seldom_has_the_same_numbers(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_spec(training={"epochs": 2, "evaluate_every": 1})
    seldom, points = train_watched(spec, tmp_path / "seldom")
    monkeypatch.undo()
    often = train_run(spec, tmp_path / "often")
    assert seldom.steps == 12
    assert seldom.metrics == often.metrics
    assert [point["step"] for point in points] == [3, 6, 9, 12]
    assert same_weights(*(run.adapter / "adapter_model.safetensors" for run in (seldom, often)))
    assert seldom.counts.step_seconds is not None


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("broken", "evaluation"), [(4, 1), pytest.param(7, 6, marks=pytest.mark.slow), (12, 6)])
def test_a_broken_loss_ends_the_run_with_its_step_before_anything_is_written(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int, evaluation: int
) -> None:
    """Losses are read when the loop logs (every third step), and before an evaluation even if it comes earlier."""
    sum_losses, reports = Loop._sum_losses, []

    def break_loss(self: Loop, batch: dict[str, Any]) -> Any:
        loss = sum_losses(self, batch)
        return loss * torch.nan if self.step + 1 == broken else loss

    monkeypatch.setattr(Loop, "_sum_losses", break_loss)
    spec = tiny_spec(training={"evaluate_every": evaluation / 6})
    with pytest.raises(RunFailed, match=f"diverged: the loss is nan at step {broken} of 12.*0.01"):
        train_run(spec, tmp_path, report=lambda progress: reports.append(progress.step))
    assert all(step < broken for step in reports)
    assert sorted(int(folder.name.split("-")[1]) for folder in tmp_path.glob("checkpoint-*")) == reports[-2:]
    assert not (tmp_path / "adapter").exists()
