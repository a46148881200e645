"""A searcher that learns and promotion, in one process with a stand-in for training: run, ended, continued."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from craft.spec import RunSpec
from orchestrator.driver.display import SweepOutcome
from tests.orchestrator.local_engine import without_ray
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import stand_in
from tests.orchestrator.tune.running import run_sweep


def run(folder: Path, trials: int, more: str = "", *, resume: bool = False) -> SweepOutcome:
    def evaluate(spec: RunSpec, step: int) -> float:
        """1e-3 scores best, and it shows from the first epoch on."""
        return 80 - 10 * abs(math.log10(spec.training.learning_rate) + 3) + step

    plan = toy_plan(
        folder,
        "seeds: [0, 1]\nscheduler: {name: promotion}\n"
        "space: [{method: lora, rank: 4, learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}}]\n"
        f"search: {{algorithm: tpe, configurations: {trials}}}\n{more}",
    )
    train = stand_in(str(folder / "log"), {}, evaluate=evaluate, finish=lambda spec: {"search_score": evaluate(spec, 3)})
    with without_ray():
        return run_sweep(plan, folder / "run", resume=resume, cpus=1, verbosity="quiet", train=train)


def drawn(outcome: SweepOutcome) -> list[str | None]:
    """The configurations that were drawn and trained, in order."""
    return [proposal.configuration for proposal in outcome.state.proposals if proposal.verdict is None]


def test_a_sweep_that_learns_is_run_extended_and_never_repeats_itself(tmp_path: Path) -> None:
    """Its first session has no time."""
    over = run(tmp_path, 4, "budget: {wall_clock: 0.001s}\n")
    assert (over.exhausted, over.ended("finished")) == ("budget.wall_clock: 0 s are over", [])
    first = run(tmp_path, 4, "budget: {wall_clock: 1h}\n", resume=True)
    assert (first.exhausted, first.complete, bool(first.trouble)) == (None, True, False)
    outcome = run(tmp_path, 7, resume=True)
    assert drawn(outcome)[:4] == drawn(first)
    assert len({*drawn(outcome)}) == 7
    results = results_of(outcome)
    assert results.keys() == {*outcome.state.wanted}
    trained = Counter(tuple(line.split()[3:]) for line in (tmp_path / "log").read_text().splitlines() if line[:4] == "step")
    assert set(trained.values()) == {1}, "an epoch was trained twice"
    # What is worse than what came before waits after its first epoch, the best runs to its end.
    epochs = Counter(key for _, key in trained)
    best = max(outcome.ended("finished"), key=lambda entry: results[entry.key].metrics["search_score"]).key
    assert results[best].steps == epochs[best] == 3
    assert outcome.ended("stopped")
    assert all(results[entry.key].steps == epochs[entry.key] < 3 for entry in outcome.ended("stopped"))
