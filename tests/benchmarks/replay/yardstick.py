"""The measure of a replayed search: the hypervolume of the whole record, and how soon the search reaches it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.results import pareto
from orchestrator.results.front import logarithmic
from orchestrator.results.summary import Summary
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.sweep import Sweep
from tests.benchmarks.hypervolume import hypervolume, reference_point
from tests.benchmarks.replay.curves import Curve, RecordedCurves
from tests.orchestrator.recorded import summarize


class Yardstick:
    """Hypervolume of complete configurations by the reported score, from one reference point; counts on a log axis."""

    def __init__(self, summaries: Sequence[Summary], objectives: dict[str, pareto.Direction]) -> None:
        self._names, self._directions = list(objectives), list(objectives.values())
        self._log = [logarithmic(name, [entry.value(name) for entry in summaries]) for name in self._names]
        points = [self.point(entry) for entry in summaries]
        self._reference = reference_point(pareto.log_axes(points, self._log), self._directions)
        self.whole = self.measure(points)

    def point(self, summary: Summary) -> list[float]:
        return [summary.value(name) for name in self._names]

    def measure(self, points: Sequence[Sequence[float]]) -> float:
        return hypervolume(pareto.log_axes(points, self._log), self._directions, self._reference)


def whole_record(sweep: Sweep, record: RecordedCurves) -> tuple[list[Summary], float]:
    """Every configuration of the sweep's space that its constraints allow, summed up, and the trial-epochs they all took.

    This is the best that a search can reach. Raises MissingCurve if a trial was not recorded.
    """
    plain = sweep.search.model_copy(update={"algorithm": "grid", "configurations": None})
    sweep = sweep.model_copy(update={"search": plain})
    plan = make_plan(sweep, Planner(sweep, record.counts))
    curves = {trial.key: record.curve(trial.run) for trial in plan.trials}
    results = {trial.key: of_finished(trial.key, curves[trial.key]) for trial in plan.trials}
    return summarize(plan.trials, results, plan.counts), sum(curve.evaluations[-1][0] for curve in curves.values())


def of_finished(key: str, curve: Curve) -> TrialResult:
    metrics = {"search_score": curve.search_score, "score": curve.score}
    return TrialResult(key, "finished", metrics, dict(curve.counts), seconds=curve.seconds)
