"""train_run: equal numbers wherever it runs; selection; failures with their reason; saved adapters give what was scored."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from craft.results import OutOfMemory, Progress, RunFailed, RunPrevented
from craft.scoring.scorer import HeadScorer, collapse_note
from craft.tasks import TASKS
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.checkpoint import CheckpointCorrupt, find_newest_checkpoint
from craft.trainer.process import isolate_process
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.craft.methods.cases import CASES, marked
from tests.craft.trainer.same import same_weights, score_saved
from tests.word_pairs import word_pairs


def test_a_run_leaves_the_process_as_it_found_it(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), dict(os.environ), torch.get_default_dtype()
    train_run(tiny_spec(training={"max_steps": 1}), tmp_path)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), dict(os.environ), torch.get_default_dtype())


def test_the_environment_is_restored_without_being_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads of the process read it meanwhile."""
    unset: list[bytes] = []
    monkeypatch.setenv("CRAFT_TEST_KEPT", "before")
    monkeypatch.setattr(os, "unsetenv", unset.append)
    with isolate_process():
        os.environ["CRAFT_TEST_NEW"] = "x"
        os.environ["CRAFT_TEST_KEPT"] = "inside"
    assert unset == [b"CRAFT_TEST_NEW"]
    assert (os.environ["CRAFT_TEST_KEPT"], "CRAFT_TEST_NEW" in os.environ) == ("before", False)


@pytest.mark.slow
def test_how_often_a_run_is_evaluated_does_not_change_how_it_trains(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    runs = [
        train_run(
            tiny_spec(parameters={"dropout": 0.2}, training={"evaluate_every": every, "select": "last"}), tmp_path / str(every)
        )
        for every in (0.34, 2)
    ]
    assert same_weights(*(run.adapter / "adapter_model.safetensors" for run in runs))


def test_selection_takes_the_best_evaluation_and_the_score_is_that_of_its_weights(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    progress: list[Progress] = []
    weights: dict[int, Path] = {}

    def watch(report: Progress) -> None:
        progress.append(report)
        weights[report.step] = shutil.copytree(report.checkpoint, tmp_path / "kept" / str(report.step))  # type: ignore[arg-type]

    spec = tiny_spec(training={"epochs": 4, "learning_rate": 5e-2, "evaluate_every": 0.5})
    result = train_run(spec, tmp_path / "best", report=watch)
    scores = {report.step: report.metrics["search_score"] for report in progress}
    assert len(set(scores.values())) > 1, "a flat curve would not show what selection does"
    assert scores[result.best_step] == max(scores.values()) == result.metrics["search_score"]
    saved = load_file(result.adapter / "adapter_model.safetensors")
    selected = load_file(weights[result.best_step] / "trainable.safetensors")
    assert all(torch.equal(saved[name], selected[name]) for name in saved.keys() & selected.keys())
    predictions = load_file(result.adapter.parent / "predictions.safetensors")
    right = (predictions["outputs"].argmax(1) == predictions["labels"]).float()
    assert result.metrics["score"] == pytest.approx(100 * float(right.mean()))
    last = train_run(
        spec.model_copy(update={"training": spec.training.model_copy(update={"select": "last"})}), tmp_path / "last"
    )
    assert last.best_step == last.steps == progress[-1].step


def test_two_checkpoints_stay_without_base_weights_and_behind_a_damaged_one_the_other_is_found(
    tiny_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = tiny_spec(training={"evaluate_every": 0.5})
    train_run(spec, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-9"]
    newest = tmp_path / "run" / "checkpoint-12"
    names = load_file(newest / "trainable.safetensors").keys()
    assert names
    assert all("craft_" in name or "classifier" in name for name in names)
    assert not any(path.name.startswith(".") for path in (tmp_path / "run").iterdir()), "nothing half-written stays"
    shutil.copytree(newest, newest.with_name("checkpoint-12 (copy)"))
    file = newest / "loop.pt"
    stored = file.read_bytes()
    file.write_bytes(stored[:-9] + bytes([stored[-9] ^ 1]) + stored[-8:])
    with pytest.raises(CheckpointCorrupt, match=r"loop\.pt"):
        train_run(spec, tmp_path / "resumed", resume_from=newest)
    assert not (tmp_path / "resumed").exists()
    assert find_newest_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-9"


def test_a_checkpoint_of_another_run_is_refused(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    train_run(tiny_spec(training={"max_steps": 1}), tmp_path / "one")
    with pytest.raises(RunFailed, match="another run"):
        train_run(tiny_spec(seed=1, training={"max_steps": 1}), tmp_path / "two", resume_from=tmp_path / "one" / "checkpoint-1")


def test_an_error_while_scoring_is_not_called_a_divergence(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeadScorer, "reported", Mock(side_effect=ValueError("odd rows")))
    with pytest.raises(RunFailed, match=r"^scoring after step 1 failed: odd rows$"):
        train_run(tiny_spec(training={"max_steps": 1}), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message", "kind"),
    [
        ({"parameters": {"ranks": [4, 8, 8]}}, "r1", RunFailed),
        ({"model": "./no/such/folder"}, "does not exist", RunPrevented),
        ({"task": "glue/rte", "data": {"root": "no-such-root"}}, "no-such-root", RunPrevented),
    ],
)
def test_what_the_user_must_change_fails_with_its_reason_and_writes_nothing(
    tiny_spec: MakeSpec, tmp_path: Path, changes: dict[str, object], message: str, kind: type[RunFailed]
) -> None:
    with pytest.raises(RunFailed, match=message) as caught:
        train_run(tiny_spec(**changes), tmp_path / "run")
    assert type(caught.value) is kind
    assert not (tmp_path / "run").exists()


def test_data_without_a_column_are_wrong_and_data_that_are_absent_may_come(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    spec = tiny_spec(task="custom/mine", data={"custom": {"mine": {"train": str(file), "text": "body", "label": "label"}}})
    with pytest.raises(RunPrevented, match="no file"):
        train_run(spec, tmp_path / "run")
    file.write_text("text,label\na,x\nb,y\n")
    with pytest.raises(RunFailed, match="no column 'body'") as caught:
        train_run(spec, tmp_path / "run")
    assert type(caught.value) is RunFailed


@pytest.mark.parametrize(
    ("place", "scoring", "stored"),
    [
        ("craft.trainer.loop.Loop._sum_losses", False, False),
        ("craft.trainer.head_start._origin", True, False),
        ("craft.scoring.scorer.HeadScorer.search", True, True),
    ],
)
def test_memory_that_runs_out_has_its_own_name(
    tiny_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, scoring: bool, stored: bool
) -> None:
    monkeypatch.setattr(place, lambda *_args, **_options: torch.empty(2**58))
    batches = "evaluation batches of 64 texts" if scoring else "micro-batches of 8 x 32 tokens"
    spec = tiny_spec(training={"max_steps": 2})
    with pytest.raises(OutOfMemory, match=f"out of memory with {batches}") as caught:
        train_run(spec, tmp_path)
    assert caught.value.scoring == scoring
    monkeypatch.undo()
    resume_from = find_newest_checkpoint(tmp_path)
    assert (resume_from is not None) == stored
    smaller = spec.model_copy(update={"training": spec.training.in_smaller_batches(scoring=scoring)})
    again = train_run(smaller, tmp_path, resume_from=resume_from)
    assert again.facts.get("resumed_at") == ([2] if stored else None), "an evaluation alone is made again"


def test_a_regression_run_is_scored_by_correlation(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    result = train_run(tiny_spec(**word_pairs(tmp_path, "regression")), tmp_path)
    outputs = load_file(tmp_path / "predictions.safetensors")
    expected = 100 * np.corrcoef(outputs["outputs"].squeeze(1).double(), outputs["labels"].double())[0, 1]
    assert result.metrics["score"] == result.metrics["pearson"] == pytest.approx(expected, abs=1e-6)
    model, _ = load_adapter(result.adapter)
    assert model.config.num_labels == 1
    assert model.config.problem_type == "regression"


def test_a_collapse_is_noted() -> None:
    task = TASKS["toy/sentiment"]
    same = np.array([[2.0, 1.0], [1.5, 0.1], [0.3, 0.2]], dtype=np.float32)
    assert collapse_note(task, {"": same}) == f"collapsed to one class: every prediction is {task.labels[0]!r}"
    assert collapse_note(task, {"": np.array([[2.0, 1.0], [0.0, 1.0]])}) is None
    assert collapse_note(task, {"": same[:1]}) is None, "one example says nothing"
    constant = collapse_note(TASKS["glue/stsb"], {"": np.full((3, 1), 2.5)})
    assert constant == "collapsed to one value: every prediction is 2.5"
    assert collapse_note(TASKS["glue/stsb"], {"": np.array([[2.5], [2.6]], dtype=np.float32)}) is None


def test_a_note_says_how_many_inputs_are_cut_and_the_phases_of_a_run_are_its_time(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    result = train_run(tiny_spec(training={"max_steps": 1, "max_length": 8}), tmp_path)
    (note,) = [note for note in result.notes if note.startswith("inputs cut to max_length: ")]
    assert "% of the training split" in note
    assert {"load", "data", "decompose", "train", "score", "store"} <= result.phases.keys()
    assert sum(result.phases.values()) == pytest.approx(result.seconds, rel=0.1)


FORMATS = [("craft", "float32"), ("houlsby", "bfloat16"), ("craft", "bfloat16"), ("lora", "bf16-mixed"), ("full", "bfloat16")]


@pytest.mark.parametrize(("method", "precision"), marked(FORMATS, FORMATS[:2]))
def test_a_saved_adapter_gives_the_very_logits_that_were_scored(
    tiny_spec: MakeSpec, tmp_path: Path, method: str, precision: str
) -> None:
    spec = tiny_spec(method=method, training={"precision": precision, "select": "last"})
    result = train_run(spec, tmp_path / "run")
    moved = shutil.copytree(result.adapter, tmp_path / "moved")
    (tmp_path / "again").mkdir()
    assert score_saved(moved, tmp_path / "again").items() <= result.metrics.items()
    assert same_weights(*(tmp_path / name / "predictions.safetensors" for name in ("run", "again")))
    model, _ = load_adapter(moved)
    assert tuple(model.config.id2label.values()) == TASKS[spec.task].labels
    heads = ("classifier.modules_to_save", "classifier.weight", "classifier.bias")
    trained = {name: weight.dtype for name, weight in model.named_parameters() if any(head in name for head in heads)}
    assert trained
    assert set(trained.values()) == {torch.float32}
    (weights,) = moved.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"safetensors is damaged"):
        load_adapter(moved)


@pytest.mark.parametrize("method", marked(("craft", "lora", "peft"), ("craft",)))
def test_the_folder_loads_with_plain_transformers_and_peft(tiny_spec: MakeSpec, tmp_path: Path, method: str) -> None:
    spec = tiny_spec(method=method, parameters=CASES[method].parameters, training={"select": "last"})
    folder = train_run(spec, tmp_path).adapter
    ours, _ = load_adapter(folder)
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    base = AutoModelForSequenceClassification.from_pretrained(spec.model, config=config)
    theirs = PeftModel.from_pretrained(base, str(folder)).eval()
    batch = tokenizer(["a plain line", "and quite another one"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(ours(**batch).logits, theirs(**batch).logits)
    assert tuple(theirs.config.id2label.values()) == TASKS[spec.task].labels
    assert theirs.config.problem_type == "single_label_classification"
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == spec.model
