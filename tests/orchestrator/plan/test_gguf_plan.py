"""A sweep whose model is a GGUF file: planned, prepared with its SHA-256, refused in a sentence."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from craft.models.files import resolve_model, weights_on_disk
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.table import print_plan
from orchestrator.sweepfile.load import load_sweep
from orchestrator.worker.preparation import needs_of, prepare
from tests.craft import gguf_writing as written

SWEEP = """
name: tiny
model: {model}
tasks: [toy/sentiment]
space: [{{method: craft, ranks: [all, 8, 4], projections: [q, v]}}, {{method: lora, rank: 2, projections: [k, up]}}]
"""


def plan_of(folder: Path, model: str) -> Plan:
    (folder / "sweep.yaml").write_text(SWEEP.format(model=model))
    return make_plan(load_sweep(folder / "sweep.yaml", [f"storage={folder}"]))


def test_it_is_planned_and_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written.write(tmp_path / "tiny.gguf", written.random_llama(), written.Format.Q4_0)
    monkeypatch.chdir(tmp_path)
    plan = plan_of(tmp_path, "tiny.gguf")
    assert plan.sweep.model == str(path)  # trials run in other folders
    craft, lora = plan.configurations
    width, keys, inner, layers = written.WIDTH, written.WIDTH // 2, written.INNER, written.LAYERS
    assert craft.counts.trainable_parameters == 2 * (layers**2 + 8**2 + 4**2)
    assert lora.counts.trainable_parameters == layers * 2 * ((width + keys) + (width + inner))
    screen = io.StringIO()
    print_plan(plan, Console(file=screen, width=200, highlight=False))
    matrices, norms = 1 + 7 * layers, 1 + 2 * layers
    assert f"weights dequantized from GGUF (tensors: Q4_0 {matrices}, F32 {norms})" in screen.getvalue()

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert prepare(needs_of(plan.trials))[str(path)] == digest
    assert weights_on_disk(resolve_model(str(path)))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = written.write(tmp_path / "tiny-Q4_0.gguf", written.random_llama())
    plan = plan_of(tmp_path, str(path))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="cut off or damaged"):
        prepare(needs_of(plan.trials))
