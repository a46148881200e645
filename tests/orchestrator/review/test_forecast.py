"""`--plan` says how long a sweep takes, by the recorded trials of the same model or by steps that are timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from craft.trainer.probe import Speed
from orchestrator.run import main
from orchestrator.state.entry import TrialResult
from orchestrator.state.events import Ended, Wanted
from orchestrator.state.trial import Trial
from tests.orchestrator.recorded import begin, write_log

SWEEP = """\
name: next
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
training: {max_steps: 100}
resources: {cpu: 1}
space: [{method: lora, rank: {values: [1, 2, 3, 4]}}]
"""


@pytest.mark.parametrize(
    ("training", "speed", "said"),
    [
        ({"batch_size": 16, "precision": "float32", "max_length": 128}, None, "about 10 min with 2 at once, by the 1 trial"),
        (
            {"batch_size": 7},
            Speed(30.0, 3.0, 0.0),
            "about 13 min with 2 at once, by a few steps that were timed here",
        ),  # 4 x 330 s x 1.15 / 2
        ({"batch_size": 7}, None, "how long: not known before a trial of this model and batch"),
    ],
)
def test_the_time_is_that_of_recorded_trials_or_of_timed_steps(
    training: dict[str, object],
    speed: Speed | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("orchestrator.review.forecast.probe_plan", lambda plan: speed)
    monkeypatch.setattr("orchestrator.review.forecast.cores", lambda: 2)
    (tmp_path / "runs" / "before").mkdir(parents=True)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "log.jsonl").write_text("{}\n")
    content: dict[str, Any] = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "training": training | {"gradient_accumulation": 1},
    }
    begin(tmp_path / "runs" / "before", name="before", tasks=["t"], space=[{"method": "lora"}], **content)
    results = TrialResult("a" * 16, "finished", steps=50, seconds=150.0), TrialResult("b" * 16, "failed", steps=50, seconds=1.0)
    trials = [Trial(result.key, "c", "LoRA", "lora", "t", 0, "honest", {}) for result in results]
    wanted = Wanted(keys=[trial.key for trial in trials], trials=trials)
    write_log(tmp_path / "runs" / "before", wanted, *(Ended(result=result) for result in results))
    (tmp_path / "next.yaml").write_text(SWEEP)
    assert main([str(tmp_path / "next.yaml"), "--plan", "--storage", str(tmp_path / "runs")]) == 0
    assert said in capsys.readouterr().out
