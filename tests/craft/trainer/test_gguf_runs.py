"""Runs on a base model in a GGUF file: what their record says of it, and adapters that come back to it alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from craft.models.files import gguf_digest
from craft.results import MODEL_DIGEST
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.counting import planned_counts
from craft.trainer.training import train_run
from tests.craft import gguf_writing as written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", written.random_llama(), written.Format.Q8_0)


def test_an_adapter_reloads_against_the_file(path: Path, tiny_spec: Callable[..., RunSpec], tmp_path: Path) -> None:
    spec = tiny_spec(model=str(path), training={"epochs": 1, "max_length": 48})
    result = train_run(spec, tmp_path / "run")
    assert planned_counts(spec).trainable_parameters == result.counts.trainable_parameters
    assert result.facts[MODEL_DIGEST] == gguf_digest(str(path))
    formats = f"Q8_0 {1 + 7 * written.LAYERS}, F32 {1 + 2 * written.LAYERS}"
    assert f"weights dequantized from GGUF (tensors: {formats})" in result.notes

    folder = tmp_path / "run" / "adapter"
    model, tokenizer = load_adapter(folder)
    batch = tokenizer(["the 12 men", "and"], padding=True, return_tensors="pt")
    moved = Path(shutil.copy(path, tmp_path / "elsewhere.gguf"))
    again, _ = load_adapter(folder, base=str(moved))
    with torch.no_grad():
        outputs = model(**batch).logits
        assert torch.equal(again(**batch).logits, outputs)
    other = written.write(tmp_path / "other.gguf", written.random_llama(seed=1), written.Format.Q8_0)
    with pytest.raises(ValueError, match=r"tiny.gguf with SHA-256 .*, and .*other.gguf has"):
        load_adapter(folder, base=str(other))
