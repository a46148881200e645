"""The measure of a replayed search: the hypervolume of the whole record, and how soon the search reaches it."""

from __future__ import annotations

from craft.settings import TrainingSettings, content_hash
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import TrialResult
from orchestrator.results import pareto
from orchestrator.results.front import logarithmic
from orchestrator.results.summary import Entry, Summary, summarize, summarize_entries
from orchestrator.simulator.curves import BEFOREHAND, Curve, RecordedCurves
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep


class Yardstick:
    """Hypervolume of complete configurations by the reported score, from one reference point; counts on a log axis."""

    def __init__(self, summaries: list[Summary], objectives: dict[str, pareto.Direction]) -> None:
        self._names, self._directions = list(objectives), list(objectives.values())
        self._log = [logarithmic(name, [one.value(name) for one in summaries]) for name in self._names]
        points = [self.point(one) for one in summaries]
        self._reference = pareto.reference_point(pareto.log_axes(points, self._log), self._directions)
        self.whole = self.measure(points)

    def point(self, summary: Summary) -> list[float]:
        return [summary.value(name) for name in self._names]

    def measure(self, points: list[list[float]]) -> float:
        return pareto.hypervolume(pareto.log_axes(points, self._log), self._directions, self._reference)


def planner_of(sweep: Sweep, record: RecordedCurves) -> Planner:
    """A planner that counts by the record, so that a replay needs neither the model nor torch.

    Raises:
        SweepError: a constraint on a count that a record does not hold: the replay would train what the sweep refuses.
    """
    unknown = [name for name in sweep.constraints if name not in BEFOREHAND]
    if unknown:
        message = f"a record holds no such count, only {', '.join(BEFOREHAND)}; leave it out of a replay"
        raise SweepError([f"{sweep.where(('constraints', name))}: constraints.{name}: {message}" for name in unknown])
    return Planner(sweep, record.counts)


def whole_record(sweep: Sweep, record: RecordedCurves) -> tuple[list[Summary], float]:
    """Every configuration of the sweep's space that its constraints allow, summed up, and the trial-epochs they all took.

    This is the best that a search can reach. Raises MissingCurve if a trial was not recorded, and SweepError if the space has
    ranges, because no record can hold all of their values.
    """
    for block in sweep.blocks:
        if block.ranges:
            where = f"{sweep.where(block.path)}: space.{block.index}"
            raise SweepError([f"{where}: {', '.join(block.ranges)}: no record holds every value of a range; give values"])
    plain = sweep.search.model_copy(update={"algorithm": "grid", "trials": None})
    budget = sweep.budget.model_copy(update={"trials": None})
    sweep = sweep.model_copy(update={"search": plain, "budget": budget})
    plan = make_plan(sweep, planner_of(sweep, record))
    curves = {trial.key: record.curve(trial.run) for trial in plan.trials}
    results = {trial.key: of_finished(trial.key, curves[trial.key]) for trial in plan.trials}
    return summarize(plan.trials, results, plan.counts), sum(curve.evaluations[-1][0] for curve in curves.values())


def everything(record: RecordedCurves) -> tuple[list[Summary], float]:
    """Every configuration of a record, summed up, and the trial-epochs they all took: the yardstick if a sweep's space is
    wider than the record. Settings may differ from task to task; those that a configuration chose are in its label."""
    settings = TrainingSettings.model_fields
    entries = [
        Entry(
            curve.name,
            content_hash([curve.label, *sorted(one for one in curve.parameters.items() if one[0] not in settings)], 10),
            curve.label,
            str(curve.parameters["method"]),
            curve.task,
            curve.seed,
            "",
            curve.parameters,
            of_finished(curve.name, curve),
        )
        for curve in record.curves
    ]
    return summarize_entries(entries), sum(curve.evaluations[-1][0] for curve in record.curves)


def of_finished(key: str, curve: Curve) -> TrialResult:
    metrics = {"search_score": curve.search_score, "score": curve.score}
    return TrialResult(key, "finished", metrics, dict(curve.counts), seconds=curve.seconds)
