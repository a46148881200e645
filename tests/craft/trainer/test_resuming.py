"""A run that leaves its machine at any step ends elsewhere as the undisturbed one; what it must not resume from is refused."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from craft.results import Leave, Progress, RunPrevented, RunResult
from craft.settings import DataSettings
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.checkpoint import find_newest_checkpoint, verify, write_folder
from craft.trainer.training import train_run
from tests.craft.conftest import Evil, MakeSpec
from tests.craft.trainer.same import leave_at, same_run, score_saved


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
                short = self.spec.training.model_copy(update={"max_steps": 2})
                train_run(self.spec.model_copy(update={"seed": 7, "training": short}), self.folder / "another")
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


DROPOUT = {"dropout": 0.1}
ORDERED = {"group_by_length": True, "schedule": "cosine", "warmup_ratio": 0.3, "learning_rate": 5e-3}


@pytest.mark.parametrize(
    ("method", "parameters", "training", "leaves"),
    [
        # In mid-epoch, at an epoch's end, after an evaluation.
        ("craft", DROPOUT, {"evaluate_every": 2.0}, [1, 3, 7]),
        # Where an evaluation and an epoch's end are due, and at the last step; where each step is evaluated.
        pytest.param("craft", DROPOUT, {"evaluate_every": 1.0}, [3, 8], marks=pytest.mark.slow),
        pytest.param("craft", DROPOUT, {"evaluate_every": 0.34}, [2], marks=pytest.mark.slow),
        # The order of examples, the schedule and the optimizer continue.
        ("lora", DROPOUT, ORDERED, [2, 4]),
        pytest.param("adalora", {"init_rank": 4, "target_rank": 2}, ORDERED, [2, 4], marks=pytest.mark.slow),
        pytest.param("galore", {"rank": 4, "interval": 3}, ORDERED, [2, 4], marks=pytest.mark.slow),
    ],
)
def test_a_run_that_leaves_after_any_step_ends_as_the_undisturbed_one(
    tiny_spec: MakeSpec, tmp_path: Path, method: str, parameters: Any, training: dict[str, Any], leaves: list[int]
) -> None:
    spec = tiny_spec(method=method, parameters=parameters, training=TRAINING | training)
    quiet, moved = Machines(spec, tmp_path / "quiet"), Machines(spec, tmp_path / "moved")
    undisturbed, result = quiet.train([]), moved.train(leaves)
    assert moved.steps == quiet.steps == list(range(1, 9)), "no step is done twice, none is left out"
    assert same_run(undisturbed, result)
    assert moved.evaluations == quiet.evaluations
    assert moved.points == quiet.points
    assert result.facts["resumed_at"] == leaves
    # Broken off after its last step there is no optimizer any more, and still its bytes are those that were there.
    ended = train_run(spec, tmp_path / "ended", resume_from=find_newest_checkpoint(tmp_path / "quiet" / "0"))
    assert ended.metrics == undisturbed.metrics
    assert undisturbed.counts.optimizer_bytes, "what the optimizer held is measured"
    assert {run.counts.optimizer_bytes for run in (result, ended)} == {undisturbed.counts.optimizer_bytes}


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("lora_xs", {"rank": 4}),
        pytest.param("peft", {"peft_type": "TINYLORA", "config": {"r": 4}}, marks=pytest.mark.slow),
        pytest.param("peft", {"peft_type": "FROD"}, marks=pytest.mark.slow),
    ],
)
def test_what_stands_between_singular_vectors_is_the_same_model_where_these_have_other_signs(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, parameters: Any
) -> None:
    spec = tiny_spec(method=method, parameters=parameters, training=TRAINING)
    with pytest.raises(Leave):
        train_run(spec, tmp_path / "left", on_step=leave_at(4))
    undisturbed, left = train_run(spec, tmp_path / "undisturbed"), find_newest_checkpoint(tmp_path / "left")
    svd, eigh = torch.linalg.svd, torch.linalg.eigh
    places = 0

    def turned(vectors: torch.Tensor) -> torch.Tensor:
        signs = torch.tensor([-1.0, 1.0, -1.0]).repeat(len(vectors))
        return (vectors * signs[: vectors.shape[1]]).roll(places, 1)

    def other_svd(matrix: torch.Tensor, **how: Any) -> Any:
        u, s, vt = svd(matrix, **how)
        return turned(u), s, turned(vt.T).T

    monkeypatch.setattr(torch.linalg, "svd", other_svd)
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: (eigh(matrix)[0], turned(eigh(matrix)[1])))
    assert same_run(undisturbed, train_run(spec, tmp_path / "moved", resume_from=left))
    (tmp_path / "scores").mkdir()
    scores = score_saved(undisturbed.adapter, tmp_path / "scores")
    assert scores.items() <= undisturbed.metrics.items()
    places = 1
    with pytest.raises(RunPrevented, match="came out otherwise here"):
        train_run(spec, tmp_path / "elsewhere", resume_from=left)
    if method == "lora_xs":  # PEFT saves one or both factors of the others
        with pytest.raises(ValueError, match="came out otherwise here"):
            load_adapter(undisturbed.adapter)


@pytest.mark.slow
def test_a_run_that_was_resumed_where_an_evaluation_was_due_may_be_resumed_once_more(
    tiny_spec: MakeSpec, tmp_path: Path
) -> None:
    """The checkpoint of an evaluation that was made up for is as good as one that was written while training."""
    spec = tiny_spec(parameters={"dropout": 0.1}, training=TRAINING | {"evaluate_every": 1.0})
    moved = Machines(spec, tmp_path / "moved")
    undisturbed, copies = train_run(spec, tmp_path / "undisturbed"), list[Path]()

    def keep(progress: Progress) -> None:
        copies.append(Path(shutil.copytree(progress.checkpoint or "", tmp_path / f"kept-{len(copies)}")))

    with pytest.raises(Leave):
        train_run(spec, tmp_path / "one", report=moved._report, on_step=leave_at(3))
    with pytest.raises(Leave):
        train_run(spec, tmp_path / "two", resume_from=moved.left[0], report=keep, on_step=leave_at(4))
    evaluated, left = copies
    assert json.loads((evaluated / "state.json").read_text())["step"] == 3
    assert json.loads((left / "state.json").read_text())["step"] == 4
    for checkpoint in (evaluated, left):
        assert same_run(undisturbed, train_run(spec, tmp_path / f"from-{checkpoint.name}", resume_from=checkpoint))


def test_code_in_a_checkpoint_is_never_run(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec, marker = tiny_spec(training={"evaluate_every": 0.5}), tmp_path / "code was run"
    train_run(spec, tmp_path / "run")
    sound = tmp_path / "run" / "checkpoint-9"  # of 12 steps
    for name in ("loop.pt", "trainable.safetensors"):
        assert (sound / name).is_file()

        def fill(folder: Path, name: str = name) -> None:
            shutil.copytree(sound, folder, dirs_exist_ok=True)
            (folder / name).write_bytes(pickle.dumps({"state": Evil(marker)}))

        evil = write_folder(tmp_path / name / sound.name, fill)
        verify(evil)
        with pytest.raises(Exception, match=r"(?i)weights.only|header|unpickl"):
            train_run(spec, tmp_path / f"resumed from {name}", resume_from=evil)
        assert not marker.exists()
    assert train_run(spec, tmp_path / "resumed", resume_from=sound).steps == 12


def test_changed_data(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"

    def fill(seed: int) -> None:
        draw = random.Random(seed)
        rows = [f"{draw.choice(['good', 'bad'])} and {draw.randrange(1000)},{'ab'[row % 2]}" for row in range(200)]
        table.write_text("\n".join(["body,way", *rows]))

    fill(seed=0)
    custom = {"mine": {"train": str(table), "text": ["body"], "label": "way"}}
    spec = tiny_spec(task="custom/mine", data=DataSettings(custom=custom), training={"evaluate_every": 0.5})
    train_run(spec, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint-9"  # of 12 steps
    fill(seed=1)
    with pytest.raises(RunPrevented, match=r"task's data have changed since checkpoint .*checkpoint-9 .*put back"):
        train_run(spec, tmp_path / "resumed", resume_from=checkpoint)
    fill(seed=0)
    assert train_run(spec, tmp_path / "resumed", resume_from=checkpoint).steps == 12


@pytest.mark.slow
def test_a_changed_model(tiny_spec: MakeSpec, tiny_bert: str, tmp_path: Path) -> None:
    """Its content counts: a folder that has moved is the same model, one that was trained on in place is not."""
    model = Path(shutil.copytree(tiny_bert, tmp_path / "first"))
    lora = {"method": "lora", "parameters": {"rank": 2}, "training": {"evaluate_every": 0.5}}
    adapter = train_run(tiny_spec(model=str(model), **lora), tmp_path / "run").adapter
    assert adapter is not None
    model = model.rename(tmp_path / "second")
    checkpoint, moved = tmp_path / "run" / "checkpoint-9", tiny_spec(model=str(model), **lora)
    assert train_run(moved, tmp_path / "resumed", resume_from=checkpoint).steps == 12
    weights = load_file(model / "model.safetensors")
    save_file({name: weight * 0.5 for name, weight in weights.items()}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunPrevented, match=r"the base model .* has changed since checkpoint .* put back"):
        train_run(moved, tmp_path / "again", resume_from=checkpoint)
    load_adapter(adapter, base=str(model))  # the choice of the caller
    with pytest.raises(ValueError, match=r"trained on .*first with SHA-256 .*first has .*: its outputs would be different"):
        load_adapter(adapter, base=str(model.rename(tmp_path / "first")))
