"""`measure` in a sweep file: what it means for trials, and what is refused before anything is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan.trial import TrialResult
from orchestrator.record.resume import contradictions
from orchestrator.results.front import mark_front
from orchestrator.review.front_tables import metric_column
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep
from tests.orchestrator.plans import count
from tests.orchestrator.recorded import summarize

WORDS = """\
name: words
model: some/llama
tasks: [commonsense]
seeds: [0, 1]
space:
  - {method: lora, rank: {values: [1, 2, 4]}}
"""


def load(folder: Path, more: str = "", text: str = WORDS) -> Sweep:
    (folder / "sweep.yaml").write_text(text + more)
    return load_sweep(folder / "sweep.yaml")


def test_a_trials_key_has_it_only_where_it_is_asked_for(here: Path) -> None:
    (here / "mine.txt").write_text("Some text.")
    before = [trial.key for trial in count(load(here)).trials]
    for nothing in ("measure: {}\n", "measure: {forgetting: false}\n"):
        assert [trial.key for trial in count(load(here, nothing)).trials] == before
    sweep = load(here, "measure: {forgetting: {text: mine.txt}}\n")
    trials = count(sweep).trials
    assert not {trial.key for trial in trials} & set(before)
    assert trials[0].run.measure.model_dump(exclude_defaults=True) == {"forgetting": {"text": str(here / "mine.txt")}}
    (here / "effective.yaml").write_text(sweep.to_yaml())
    assert load_sweep(here / "effective.yaml").measure == sweep.measure
    assert contradictions(load(here), sweep)[0].startswith("measure.forgetting: was nothing (null), is ")


def test_it_is_an_objective_of_the_front(tmp_path: Path) -> None:
    """By score and parameters alone rank 1 and 4 would be the front; rank 2 forgets least."""
    objectives = "objectives: {score: maximize, trainable_parameters: minimize, forgetting: minimize}\n"
    sweep = load(tmp_path, objectives + "measure: {forgetting: true}\n")
    plan = count(sweep)
    measured = {1: (60.0, 0.2), 2: (55.0, 0.0125), 4: (70.0, 0.4)}
    results = {}
    for trial in plan.trials:
        score, forgotten = measured[trial.run.parameters["rank"]]
        metrics = {"score": score, "forgetting": forgotten + (0.001 if trial.run.seed else -0.001)}
        counts = {"trainable_parameters": float(trial.run.parameters["rank"])}
        results[trial.key] = TrialResult(trial.key, "finished", metrics, counts)
    summaries = mark_front(summarize(plan.trials, results), sweep.objectives)
    assert [summary.on_front for summary in summaries] == [True, True, True]
    assert [summary.value("forgetting") for summary in summaries] == pytest.approx([0.2, 0.0125, 0.4])
    assert metric_column("forgetting").text(summaries[1]) == "0.0125 ± 0.0127", "12.706 times 0.001 / sqrt(2) x sqrt(2)"
    without = mark_front(summarize(plan.trials, results), {"score": "maximize", "trainable_parameters": "minimize"})
    assert [one.on_front for one in without] == [True, False, True]
