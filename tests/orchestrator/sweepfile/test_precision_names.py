"""`precision` and its older name `dtype` are one setting wherever a sweep file gives it: same hashes, keys and study names."""

from __future__ import annotations

from pathlib import Path

from craft.results import Counts
from orchestrator.plan.planner import Planner
from orchestrator.record.resume import contradictions
from orchestrator.search.dimensions import Encoding
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.space.dimensions import grid
from orchestrator.sweepfile.sweep import Sweep

FILE = """\
name: both
model: m
tasks: [toy/sentiment, toy/acceptability]
training: {NAME: bfloat16}
task_training: {toy/acceptability: {NAME: float32}}
space:
  - {method: lora, NAME: {values: [float32, bfloat16]}}
  - {method: lora, rank: 2, task_training: {toy/sentiment: {NAME: float32}}}
"""


def loaded(folder: Path, text: str) -> Sweep:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return load_sweep(file)


def meaning(sweep: Sweep) -> list[object]:
    planner = Planner(sweep, lambda run: Counts(100, 2, 1000, 400), lambda run: 1000)
    configurations = [planner.configuration(point) for point in grid(sweep.blocks)]
    keys = [trial.key for one in configurations for trial in planner.trials(one)]
    return [[(one.id, one.label) for one in configurations], keys, Encoding(sweep.blocks).signature]


def test_both_names_mean_the_same_sweep(tmp_path: Path) -> None:
    new, old = (loaded(tmp_path, FILE.replace("NAME", name)) for name in ("precision", "dtype"))
    assert meaning(new) == meaning(old)
    assert contradictions(old, new) == []
    text = old.to_yaml()
    assert "  precision: bfloat16" in text.splitlines()
    assert meaning(loaded(tmp_path, text)) == meaning(new)
    other = loaded(tmp_path, FILE.replace("NAME", "precision").replace("bfloat16", "bf16-mixed"))
    assert meaning(other)[0] != meaning(new)[0]
    assert contradictions(new, other)
