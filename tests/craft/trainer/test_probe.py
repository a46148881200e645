"""A few real steps give the seconds of a start, a step and a scored example; what cannot be timed here gives none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from craft.results import RunFailed
from craft.spec import RunSpec
from craft.trainer.pace import FORWARD
from craft.trainer.probe import measure_speed


def run(model: str, **training: object) -> RunSpec:
    # CRAFT's ranks are too large for this model; LoRA is what trains.
    settings = {"batch_size": 4, "eval_batch_size": 8, "max_length": 16} | training
    return RunSpec.model_validate({"model": model, "task": "toy/sentiment", "method": "craft", "training": settings})


def test_start_step_and_example_are_timed(tiny_bert: str) -> None:
    threads = torch.get_num_threads()
    speed = measure_speed(run(tiny_bert), 60)
    assert speed is not None
    assert min(speed) > 0
    assert speed.example != pytest.approx(FORWARD * speed.step / 4)  # measured
    assert torch.get_num_threads() == threads


def test_a_probe_without_time_takes_three_steps(tiny_bert: str) -> None:
    speed = measure_speed(run(tiny_bert, gradient_accumulation=2), 0)
    assert speed is None or speed.example == pytest.approx(FORWARD * speed.step / 8)


def test_a_model_without_weights_is_not_timed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert measure_speed(run(str(tmp_path)), 60) is None


def test_a_model_that_does_not_fit_is_not_timed(tiny_bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("craft.trainer.probe.device_memory", lambda: 1000)
    assert measure_speed(run(tiny_bert), 60) is None


def test_what_cannot_be_trained_has_its_reason(tiny_bert: str) -> None:
    with pytest.raises(RunFailed, match="max_length"):
        measure_speed(run(tiny_bert, max_length=2), 60)
