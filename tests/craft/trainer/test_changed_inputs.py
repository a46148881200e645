"""A run that is resumed reads what it read before its checkpoint, or says what has changed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from craft.data_settings import DataSettings
from craft.results import RunPrevented
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run

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
