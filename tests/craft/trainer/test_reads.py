"""A step reads nothing from its device, which on a GPU would make the host wait; a CPU counts what becomes Python's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from craft.results import RunFailed
from craft.spec import RunSpec
from craft.trainer.loop import Loop
from craft.trainer.training import train_run

MakeSpec = Callable[..., RunSpec]


class Readings(TorchDispatchMode):
    """Counts what becomes a Python number inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **kwargs or {})


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the loop avoid readings, as where they make the host wait. It logs four times a run, so most steps go unread."""
    monkeypatch.setattr("craft.trainer.loop._POINTS", 4)
    train = Loop.train

    def train_unread(self: Loop) -> Iterator[int]:
        self._reads_freely = False
        return train(self)

    monkeypatch.setattr(Loop, "train", train_unread)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Counts the readings of each step up to its gradients, and of each forward pass in it, which are transformers' own."""
    counts: dict[str, list[int]] = {"step": [], "forward": []}
    lists, tolist = 0, torch.Tensor.tolist

    def count(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            before = lists
            with Readings() as counter:
                result = work(*args)
            counts[name].append(counter.count + lists - before)
            return result

        return counted

    def listed(tensor: torch.Tensor) -> Any:
        nonlocal lists
        lists += 1
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", listed)
    monkeypatch.setattr(Loop, "_sum_losses", count("forward", Loop._sum_losses))
    monkeypatch.setattr(Loop, "_add_gradients", count("step", Loop._add_gradients))
    return counts


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("method", ["craft", "lora"])
def test_a_step_reads_nothing_itself(tiny_spec: MakeSpec, tmp_path: Path, readings: dict[str, list[int]], method: str) -> None:
    train_run(tiny_spec(method=method, training={"gradient_accumulation": 2}), tmp_path)
    assert len(readings["forward"]) == 12, "2 epochs of 48 examples in micro-batches of 8"
    # transformers itself asks whether an attention mask hides anything.
    assert max(readings["forward"]) <= 1
    assert sum(readings["step"]) == sum(readings["forward"])


def test_on_a_cpu_a_step_reads_its_loss(tiny_spec: MakeSpec, tmp_path: Path, readings: dict[str, list[int]]) -> None:
    """The counter counts."""
    train_run(tiny_spec(training={"max_steps": 3}), tmp_path)
    assert [step - forward for step, forward in zip(readings["step"], readings["forward"], strict=True)] == [1] * 3


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_run_that_reads_seldom_has_the_same_numbers(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_spec(training={"epochs": 2, "evaluate_every": 1})
    points: list[dict[str, float]] = []
    seldom = train_run(spec, tmp_path / "seldom", report=lambda progress: points.extend(progress.points))
    monkeypatch.undo()
    often = train_run(spec, tmp_path / "often")
    assert seldom.steps == 12
    assert seldom.metrics == often.metrics
    assert [point["step"] for point in points] == [3, 6, 9, 12]
    weights = [load_file(run.adapter / "adapter_model.safetensors") for run in (seldom, often)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
    assert seldom.counts.step_seconds is not None


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("broken", "evaluation"), [(4, 1), (7, 6), (12, 6)])
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
    with pytest.raises(RunFailed, match=f"diverged: the loss is nan at step {broken} of 12"):
        train_run(spec, tmp_path, report=lambda progress: reports.append(progress.step))
    assert all(step < broken for step in reports)
    assert sorted(int(folder.name.split("-")[1]) for folder in tmp_path.glob("checkpoint-*")) == reports[-2:]
    assert not (tmp_path / "adapter").exists()
