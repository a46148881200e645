"""The kept predictions of classes and values: what a line says, which mistakes come first, and what they cost on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from craft.scoring.encoding import EncodedSplits
from craft.scoring.predictions import predictions_of, read_predictions, worst, write_predictions
from craft.scoring.scorer import score_blindly
from craft.tasks import TASKS, find_task
from craft.tasks.rows import numbered
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.word_pairs import word_pairs


def split(labels: list[float]) -> object:
    from datasets import Dataset

    return numbered(Dataset.from_dict({"text": [f"text {place}" for place in range(len(labels))], "label": labels}))


def test_a_class_has_its_probability_and_its_margin() -> None:
    outputs = np.log(np.array([[0.7, 0.2, 0.1], [0.05, 0.15, 0.8], [0.5, 0.3, 0.2]], dtype=np.float32))
    lines = predictions_of(TASKS["glue/mnli"], split([0, 1, 2]), outputs)  # type: ignore[arg-type]
    assert lines[0] == {
        "row": 1, "label": "entailment", "answer": "entailment", "right": True, "probability": 0.7,
        "margin": round(np.log(0.7 / 0.2), 3),
    }  # fmt: skip
    assert lines[1]["answer"] == "contradiction"
    assert (lines[1]["right"], lines[1]["probability"], lines[1]["text"]) == (False, 0.8, "text 1")
    assert worst(lines) == [1, 2], "the surest mistake first"
    assert worst([*lines, lines[2] | {"probability": 0.49, "margin": 9.0}]) == [1, 2], "no mistake below 0.5 is a sure one"


def test_a_value_has_its_error_and_the_largest_come_first() -> None:
    lines = predictions_of(TASKS["glue/stsb"], split([0.1, 3.2, 5.0]), np.array([[0.2], [0.2], [4.0]], dtype=np.float32))  # type: ignore[arg-type]
    assert [line["label"] for line in lines] == [0.1, 3.2, 5.0], "as the file has them, not as float32 stores them"
    assert worst(lines) == [1, 2, 0]


def test_thousands_of_rows_take_a_few_bytes_each(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    outputs = draw.normal(size=(9815, 3)).astype(np.float32)
    lines = predictions_of(TASKS["glue/mnli"], split(list(draw.integers(0, 3, 9815))), outputs)  # type: ignore[arg-type]
    file = tmp_path / "predictions" / "matched.jsonl.gz"
    write_predictions(file, lines)
    assert read_predictions(file.parent) == {"matched": lines}
    assert file.stat().st_size < 14 * 9815
    before = file.read_bytes()
    write_predictions(file, lines)
    assert file.read_bytes() == before, "equal predictions have equal digests"
    assert read_predictions(tmp_path / "absent") == {}


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_run_and_its_sizes_keep_theirs(tiny_spec: MakeSpec, tmp_path: Path, kind: str) -> None:
    parameters = {"rank": 4, "projections": ["q", "v"]}
    spec = tiny_spec(method="lora", parameters=parameters, **word_pairs(tmp_path, kind))
    result = train_run(spec, tmp_path, cuts=(256,))
    for folder in (tmp_path, result.cuts[0].adapter.parent):
        lines = read_predictions(folder / "predictions")["reported"]
        stored = load_file(folder / "predictions.safetensors")
        assert len(lines) == len(stored["labels"])
        outputs = stored["outputs"].double().numpy()
        labels = find_task(spec.task, spec.data).labels
        answers = [labels[one] for one in outputs.argmax(axis=1)] if labels else list(outputs[:, 0])
        assert [line["answer"] for line in lines] == (answers if labels else pytest.approx(answers))
    record = json.loads((result.adapter / "run.json").read_text())
    if labels:
        whole = read_predictions(tmp_path / "predictions")["reported"]
        assert record["metrics"]["accuracy"] == pytest.approx(100 * np.mean([line["right"] for line in whole]))


def test_a_row_is_found_by_the_line_of_the_users_file(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    file = tmp_path / "letters.csv"
    texts = [f"letter {place} about {('money', 'parcels')[place % 2]}" for place in range(40)]
    body = "\n".join(f"{text},{('pay', 'post')[place % 2]}" for place, text in enumerate(texts))
    file.write_text(f"text,queue\n\n{body}\n")  # a blank line, which is no row
    own = {"letters": {"train": str(file), "text": ["text"], "label": "queue"}}
    spec = tiny_spec(task="custom/letters", data={"custom": own})
    train_run(spec, tmp_path / "run")
    lines = read_predictions(tmp_path / "run" / "predictions")["reported"]
    written = file.read_text().split("\n")
    assert len(lines) == 4, "a tenth of the file is reported"
    assert all(written[line["row"] - 1].endswith(f",{line['label']}") for line in lines)
    wrong = [line for line in lines if not line["right"]]
    assert all(written[line["row"] - 1].startswith(line["text"]) for line in wrong)


@pytest.mark.parametrize(("metric", "blind"), [("accuracy", 95.0), ("f1", 100 * 2 * 0.05 / 1.05), ("macro_f1", 50.0)])
def test_blind_answers_are_those_that_the_metric_likes_best(metric: str, blind: float) -> None:
    """5 % of the rows are of the second class: always the first, always the second, or at random as often as they occur."""
    split: Any = SimpleNamespace(labels=np.array([1] * 50 + [0] * 950))
    task = replace(TASKS["glue/sst2"], metrics=(metric,), primary=metric)
    assert score_blindly(task, EncodedSplits(split, split, {"": split})) == pytest.approx(blind, abs=1.5)
