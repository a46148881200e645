"""A run that is resumed reads what it read before its checkpoint, or says what has changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from craft.results import RunPrevented
from craft.settings import DataSettings
from craft.spec import RunSpec
from craft.trainer.training import train_run
from tests.craft import gguf_writing as written

MakeSpec = Callable[..., RunSpec]


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


def test_what_is_no_part_of_the_run_may_change(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec = tiny_spec(training={"evaluate_every": 0.5})
    undisturbed = train_run(spec, tmp_path / "run")
    other = {"mine": {"train": "mine.csv", "text": ["body"], "label": "way"}}
    moved = tiny_spec(data=DataSettings(root=str(tmp_path), custom=other), training={"evaluate_every": 0.5})
    assert moved.key == spec.key
    resumed = train_run(moved, tmp_path / "resumed", resume_from=tmp_path / "run" / "checkpoint-9")
    assert resumed.metrics == undisturbed.metrics


def test_a_changed_model_file(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    model = written.write(tmp_path / "tiny.gguf", written.random_llama(), written.Format.Q8_0)
    spec = tiny_spec(model=str(model), training={"evaluate_every": 0.5, "max_length": 48})
    train_run(spec, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint-9"
    written.write(model, written.random_llama(seed=1), written.Format.Q8_0)
    with pytest.raises(RunPrevented, match=r"the model's GGUF file has changed"):
        train_run(spec, tmp_path / "resumed", resume_from=checkpoint)
