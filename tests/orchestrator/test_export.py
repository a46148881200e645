"""A sweep's results written for others: as one CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator.commands.app import main
from orchestrator.plan.trial import Trial, TrialResult
from orchestrator.results.summary import Entry
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.trials_file import write_trials
from tests.benchmarks.trials import read_trials
from tests.orchestrator.recorded import over_seeds, record


def test_trials_are_one_csv_from_which_the_same_trials_are_read(tmp_path: Path) -> None:
    configurations = {"LoRA r1": (100, over_seeds(81.5, 79)), "LoRA r2": (200, over_seeds(1 / 3, search=70))}
    folder = record(tmp_path / "runs" / "two", configurations, adapter=tmp_path / "checkpoint_000001" / "adapter")
    assert main(["export", str(folder), "--to", str(tmp_path / "out")]) == 0
    file = tmp_path / "out" / "trials.csv"
    entries = [entry for entry in read_folder(folder).entries if entry.result is not None and entry.result.status == "finished"]
    found = read_trials(file)
    assert len(found) == len(entries) > 1
    for one, before in zip(found, entries, strict=True):
        assert one.trial == before.trial
        assert one.result is not None
        assert before.result is not None
        known = (before.result.metrics, before.result.counts, before.result.steps, before.result.seconds)
        assert (one.result.metrics, one.result.counts, one.result.steps, one.result.seconds) == known
    table = pd.read_csv(file)
    assert table["metric.score"].tolist() == [entry.result and entry.result.metrics["score"] for entry in entries]
    assert "checkpoint_" not in file.read_text(), "where an adapter lay says nothing elsewhere"


@pytest.mark.parametrize(
    "value", ["", "12", "NaN", "all,8,8", '"quoted"', "[1, 2", None, 0.1 + 0.2, True, [1, "a"], {"a": None}]
)
def test_a_parameter_is_read_as_it_was(tmp_path: Path, value: Any) -> None:
    result = TrialResult("1e5", "finished", {"score": 1.0})
    trial = Trial("1e5", "c", "label", "lora", "glue/rte", 0, "honest", {} if value is None else {"it": value})
    one = Entry(trial, result, "ended", begun=True)
    assert write_trials([one], tmp_path / "t.csv") == 1
    assert read_trials(tmp_path / "t.csv") == [one]
