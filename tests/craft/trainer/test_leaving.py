"""A run that has to leave its machine at any step goes on elsewhere from that very step, and ends as the undisturbed one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from craft.results import Leave, Progress, RunResult
from craft.spec import RunSpec
from craft.trainer.checkpoint import verify
from craft.trainer.training import train_run
from tests.craft.trainer.same import same_run

MakeSpec = Callable[..., RunSpec]


class Machines:
    """Trains a run on one machine after another; it has to leave each after one more of the steps in `leaves`."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.steps: list[int] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.points: list[dict[str, float]] = []
        self.left: list[Path] = []

    def train(self, leaves: list[int]) -> RunResult:
        checkpoint: Path | None = None
        for number, last in enumerate([*leaves, None]):
            try:
                return train_run(
                    self.spec,
                    self.folder / str(number),
                    report=self._report,
                    resume_from=checkpoint,
                    on_step=lambda step, total, last=last: self._step(step, last),  # type: ignore[misc]
                )
            except Leave:
                # The machine and its folder are gone: nothing but the reported checkpoint is left.
                checkpoint = Path(shutil.copytree(self.left[-1], self.folder / "storage" / f"{number}"))
                shutil.rmtree(self.folder / str(number))
                # In between, the process runs something else: nothing of it may be left.
                train_run(self.spec.model_copy(update={"seed": 7}), self.folder / "another")
        raise AssertionError

    def _step(self, step: int, last: int | None) -> None:
        self.steps.append(step)
        if step == last:
            raise Leave(f"after {last}")

    def _report(self, progress: Progress) -> None:
        assert progress.checkpoint is not None
        verify(progress.checkpoint)
        self.points += progress.points
        if progress.metrics:
            self.evaluations.append((progress.step, progress.metrics))
        else:
            self.left.append(progress.checkpoint)


# 48 examples, micro-batches of 8, two accumulated: 3 steps an epoch, 8 in all.
TRAINING = {"gradient_accumulation": 2, "epochs": 2.4, "head_learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("every", "leaves"),
    [
        pytest.param(2.0, [1, 3, 7], id="in mid-epoch, at an epoch's end, after an evaluation"),
        pytest.param(1.0, [3, 8], id="where an evaluation and an epoch's end are due, and at the last step"),
        pytest.param(0.34, [2], id="where each step is evaluated", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_leaves_after_any_step_ends_as_the_undisturbed_one(
    tiny_spec: MakeSpec, tmp_path: Path, every: float, leaves: list[int]
) -> None:
    spec = tiny_spec(parameters={"dropout": 0.1}, training=TRAINING | {"evaluate_every": every})
    quiet, moved = Machines(spec, tmp_path / "quiet"), Machines(spec, tmp_path / "moved")
    undisturbed, result = quiet.train([]), moved.train(leaves)
    assert moved.steps == quiet.steps == list(range(1, 9)), "no step is done twice, none is left out"
    assert same_run(undisturbed, result)
    assert moved.evaluations == quiet.evaluations
    assert moved.points == quiet.points
    assert result.facts["resumed_at"] == leaves


def test_the_order_of_examples_and_the_schedule_go_on(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    options = {"group_by_length": True, "schedule": "cosine", "warmup_ratio": 0.3}
    spec = tiny_spec(method="lora", parameters={"dropout": 0.1}, training=TRAINING | options)
    undisturbed = Machines(spec, tmp_path / "quiet").train([])
    assert same_run(undisturbed, Machines(spec, tmp_path / "moved").train([2, 4]))


def test_a_run_that_was_resumed_where_an_evaluation_was_due_may_be_resumed_once_more(
    tiny_spec: MakeSpec, tmp_path: Path
) -> None:
    """The checkpoint of an evaluation that was made up for is as good as one that was written while training."""
    spec = tiny_spec(parameters={"dropout": 0.1}, training=TRAINING | {"evaluate_every": 1.0})
    moved = Machines(spec, tmp_path / "moved")
    undisturbed = train_run(spec, tmp_path / "undisturbed")

    def first_step(step: int, total: int) -> None:
        raise Leave

    with pytest.raises(Leave):
        train_run(spec, tmp_path / "one", report=moved._report, on_step=lambda step, total: moved._step(step, 3))
    copies: list[Path] = []
    with pytest.raises(Leave):
        train_run(
            spec,
            tmp_path / "two",
            resume_from=moved.left[0],
            report=lambda progress: copies.append(
                Path(shutil.copytree(progress.checkpoint or "", tmp_path / f"kept-{len(copies)}"))
            ),
            on_step=first_step,
        )
    evaluated, left = copies
    assert json.loads((evaluated / "state.json").read_text())["step"] == 3
    assert json.loads((left / "state.json").read_text())["step"] == 4
    for checkpoint in (evaluated, left):
        assert same_run(undisturbed, train_run(spec, tmp_path / f"from-{checkpoint.name}", resume_from=checkpoint))
