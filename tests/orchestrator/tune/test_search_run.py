"""A searcher that learns and promotion, on real Ray with a stand-in for training: run, ended, gone on with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from craft.results import Counts
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Train
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.sweepfile.load import load_sweep
from orchestrator.tools.journal import Journal
from orchestrator.tune.runner import run_sweep

pytestmark = pytest.mark.slow


def stand_in(log: str) -> Train:
    """Three epochs; a learning rate of 1e-3 scores best, and it shows from the first epoch on."""

    def train(spec, directory, *, report, resume_from, on_step):
        import math
        from pathlib import Path

        from craft.results import Counts, Progress, RunResult
        from craft.trainer.checkpoint import write_folder

        done = int((resume_from / "state").read_text()) if resume_from else 0
        for epoch in range(done + 1, 4):
            with Path(log).open("a") as file:
                file.write(f"{spec.key} {epoch}\n")
            score = 80 - 10 * abs(math.log10(spec.training.learning_rate) + 3) + epoch
            folder = write_folder(
                directory / f"checkpoint-{epoch}", lambda aside, at=epoch: (aside / "state").write_text(str(at))
            )
            report(Progress(epoch, 3, float(epoch), {"search_score": score}, [], folder))
        adapter = directory / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text("x")
        counts = Counts(100, 2, 1000, 400)
        return RunResult({"search_score": score, "score": score - 1}, counts, adapter, 3, 3, 1.0)

    return train


@dataclass
class Journalled:
    """Of a tracker that part which a scheduler reads again on a resume."""

    journal: Journal
    open_configurations: frozenset[str] = frozenset()

    def trial_progress(self, key: str, progress: dict[str, Any]) -> None:
        row = {**progress["metrics"], "step": progress["step"], "epoch": progress["epoch"]}
        self.journal.append({"kind": "trial_progress", "key": key, "rows": [row]})

    def settle(self, *given: Any) -> None: ...
    def trial_paused(self, key: str) -> None: ...
    def holds(self, key: str) -> bool:
        return True

    def trial_started(self, *given: Any) -> None: ...
    def trial_ended(self, *given: Any) -> None: ...
    def configuration_ended(self, *given: Any) -> None: ...


def plan_of(folder: Path, trials: int, more: str = "") -> Plan:
    file = folder / "sweep.yaml"
    file.write_text(
        "name: t\nmodel: m\ntasks: [toy/acceptability]\nseeds: [0, 1]\nscheduler: {name: promotion}\n"
        "space: [{method: lora, rank: 4, learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}}]\n"
        f"search: {{algorithm: tpe, configurations: {trials}}}\n{more}"
    )
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, lambda run: Counts(100, 2, 1000, 400)))


def run(folder: Path, trials: int, more: str = "", *, resume: bool = False) -> tuple[Plan, SweepOutcome]:
    plan = plan_of(folder, trials, more)
    options = RunOptions(folder / "run", resume=resume, cpus=1, verbosity="quiet")
    with Journal(folder / "run" / "journal.jsonl") as journal:
        return plan, run_sweep(plan, options, train=stand_in(str(folder / "log")), tracker=Journalled(journal))


def test_a_sweep_that_learns_is_run_extended_and_never_repeats_itself(tmp_path: Path) -> None:
    first, outcome = run(tmp_path, 4)
    assert len(first.configurations) == 4
    assert not outcome.trouble
    assert outcome.complete
    assert SweepFolder(tmp_path / "run").study.exists()
    whole, outcome = run(tmp_path, 7, resume=True)
    assert [one.id for one in whole.configurations][:4] == [one.id for one in first.configurations]
    assert len({one.id for one in whole.configurations}) == 7
    trained = Counter((tmp_path / "log").read_text().splitlines())
    assert set(trained.values()) == {1}, "an epoch was trained twice"
    assert Ledger(tmp_path / "run").results().keys() == {trial.key for trial in whole.trials}
    # What is worse than what came before waits after its first epoch, the best runs to its end.
    epochs = Counter(line.split()[0] for line in trained)
    best = max(outcome.finished, key=lambda key: outcome.results[key].metrics["search_score"])
    assert outcome.results[best].steps == epochs[best] == 3
    assert outcome.stopped
    for key in outcome.stopped:
        assert outcome.results[key].steps == epochs[key] < 3
    # In one process at a time a sweep and one cut in two are the same sweep.
    (tmp_path / "again").mkdir()
    uncut, _ = run(tmp_path / "again", 7)
    assert [one.id for one in uncut.configurations] == [one.id for one in whole.configurations]


def test_a_target_ends_the_sweep_and_a_met_one_starts_nothing(tmp_path: Path) -> None:
    plan, outcome = run(tmp_path, 10, "budget: {target: {score: 50}}\n")
    assert "budget.target" in str(outcome.spent)
    assert 2 <= len(outcome.finished) < 2 * 10
    log = (tmp_path / "log").read_text()
    again, outcome = run(tmp_path, 10, "budget: {target: {score: 50}}\n", resume=True)
    assert "budget.target" in str(outcome.spent)
    assert (tmp_path / "log").read_text() == log
    assert [one.id for one in again.configurations] == [one.id for one in plan.configurations]
