"""What the documents promise of bits: a run that is repeated, or continued from a checkpoint, ends with equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from craft.results import Leave, RunResult
from craft.spec import RunSpec
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.process import UNREPEATABLE
from craft.trainer.training import train_run
from tests.craft.trainer.same import leave_at

Figure = Callable[[str], None]
CASES = [("craft", "float32"), ("craft", "bfloat16"), ("lora", "float32"), ("lora", "bf16-mixed"), ("full", "float32")]
CASES += [("dora", "bfloat16"), ("adalora", "float32"), ("galore", "float32")]


def ended(result: RunResult, folder: Path) -> tuple[Any, ...]:
    """The bits of a run: its adapter's, its outputs' and its scores."""
    files = [next(result.adapter.glob("*.safetensors")), folder / "predictions.safetensors"]
    return *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()), result.metrics


@pytest.mark.parametrize(("method", "precision"), CASES)
def test_equal_bits_twice_and_after_leaving(
    method: str, precision: str, tiny_spec: Callable[..., RunSpec], tmp_path: Path, figure: Figure
) -> None:
    spec = tiny_spec(method=method, training={"precision": precision, "learning_rate": 1e-3})
    first = train_run(spec, tmp_path / "first")
    second = train_run(spec, tmp_path / "second")
    with pytest.raises(Leave):
        train_run(spec, tmp_path / "left", on_step=leave_at(7))
    resumed = train_run(spec, tmp_path / "resumed", resume_from=find_newest_checkpoint(tmp_path / "left"))
    notes = [note for note in first.notes if UNREPEATABLE in note]
    figure(notes[0] if notes else f"score {first.metrics['score']:.2f}, equal bits")
    if notes:
        pytest.skip(notes[0])
    assert ended(second, tmp_path / "second") == ended(first, tmp_path / "first"), "repeated"
    assert ended(resumed, tmp_path / "resumed") == ended(first, tmp_path / "first"), "resumed"
