"""`precision` and its older name `dtype` are one setting wherever a sweep file gives it: same hashes, keys and study names."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.results import Counts
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.planner import Planner
from orchestrator.record.resume import contradictions
from orchestrator.search.dimensions import Encoding
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
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


def written(folder: Path, text: str) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return file


def loaded(folder: Path, name: str, **changes: str) -> Sweep:
    text = FILE.replace("NAME", name)
    for old, new in changes.items():
        text = text.replace(old, new)
    return load_sweep(written(folder, text))


def meaning(sweep: Sweep) -> list[object]:
    planner = Planner(sweep, lambda run: Counts(100, 2, 1000, 400), lambda run: 1000)
    configurations = [planner.configuration(point) for point in grid(sweep.blocks)]
    trials = [trial for one in configurations for trial in planner.trials(one)]
    flat = [flat_parameters(trial.run) for trial in trials]
    return [
        [(one.id, one.label) for one in configurations],
        [trial.key for trial in trials],
        flat,
        Encoding(sweep.blocks).signature,
    ]


def test_both_names_mean_the_same_sweep(tmp_path: Path) -> None:
    new, old = loaded(tmp_path, "precision"), loaded(tmp_path, "dtype")
    assert meaning(new) == meaning(old)
    assert contradictions(old, new) == []
    assert {one["dtype"] for one in meaning(new)[2]} == {"float32", "bfloat16"}  # type: ignore[index,attr-defined]
    assert not any("tf32" in one for one in meaning(new)[2])  # type: ignore[attr-defined]


def test_the_effective_file_says_precision_and_loads_to_the_same(tmp_path: Path) -> None:
    sweep = loaded(tmp_path, "dtype")
    text = sweep.to_yaml()
    assert "  precision: bfloat16" in text.splitlines()
    assert meaning(load_sweep(written(tmp_path, text))) == meaning(sweep)


def test_another_precision_is_another_sweep(tmp_path: Path) -> None:
    one, other = loaded(tmp_path, "precision"), loaded(tmp_path, "precision", bfloat16="bf16-mixed")
    assert meaning(one)[0] != meaning(other)[0]
    assert contradictions(one, other)


@pytest.mark.parametrize("name", ["precision", "dtype"])
def test_float16_is_refused_where_it_stands(tmp_path: Path, name: str) -> None:
    with pytest.raises(SweepError) as error:
        loaded(tmp_path, name, bfloat16="float16")
    lines = error.value.lines
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines] == ["4", "7"]
    assert all("float16 is refused: the loss is not scaled" in line and "bf16-mixed" in line for line in lines)


def test_the_same_setting_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="two names of one setting"):
        load_sweep(written(tmp_path, FILE.replace("NAME", "dtype")), ["training.precision=bf16-mixed"])
