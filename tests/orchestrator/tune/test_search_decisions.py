"""Ray Tune's side and the simulator decide the same: what a replay did is told to `TrialSource` and the scheduler, as Tune
would tell it, and both must answer as the simulator did."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.search.proposers import Listed, propose
from orchestrator.sweepfile.load import load_sweep
from orchestrator.tune.schedulers import scheduler_of
from orchestrator.tune.trial_source import TrialSource, trial_config
from tests.benchmarks.replay.curves import Curve, RecordedCurves
from tests.benchmarks.replay.simulation import Simulation, _Running
from tests.benchmarks.replay.yardstick import Yardstick, whole_record

EVALUATIONS = 8


def counted(run: RunSpec) -> Counts:
    return Counts(100 * run.parameters["rank"], 2, 10_000, 400 * run.parameters["rank"])


def plan_of(folder: Path) -> Plan:
    file = folder / "sweep.yaml"
    file.write_text(
        "name: t\nmodel: m\ntasks: [toy/acceptability, toy/sentiment]\nseeds: [0, 1]\ntraining: {epochs: 4}\n"
        "space: [{method: lora, rank: {values: [1, 2, 4]}, learning_rate: {values: [1e-5, 1e-4, 1e-3, 1e-2]}}]\n"
        "scheduler: {name: promotion, grace: 1, factor: 2}\n"
    )
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, counted))


def random_record(plan: Plan, draw: random.Random) -> RecordedCurves:
    """Random curves with few distinct scores, so that there are ties, and with a speed for each trial."""
    curves = []
    for trial in plan.trials:
        hidden = ("model", "revision", "protocol", "task", "seed")
        flat = {name: value for name, value in flat_parameters(trial.run).items() if name not in hidden}
        points = [(0.5 * place, float(draw.randrange(50, 56))) for place in range(1, EVALUATIONS + 1)]
        known = counted(trial.run).known()
        curves.append(Curve(trial.label, flat, trial.run.task, trial.run.seed, points, 55.0, 54.0, draw.uniform(10, 40), known))
    return RecordedCurves(curves)


class Logged(Simulation):
    """A replay that notes every start of a trial, and every evaluation with whether the trial waits after it."""

    def watch(self) -> list[tuple[Any, ...]]:
        self.log: list[tuple[Any, ...]] = []
        self._running: set[str] = set()
        assert self._rule is not None
        pauses = self._rule.pauses

        def noted(entrant: Any, epoch: float, score: object, last: bool = False) -> bool:
            waits = pauses(entrant, epoch, score, last)
            self.log.append(("evaluation", entrant.key, epoch, score, last, waits))
            if last or waits:
                self._running.discard(entrant.key)
            return waits

        self._rule.pauses = noted  # type: ignore[method-assign]
        self.run()
        return self.log

    def _go_on(self, trial: _Running) -> None:
        if trial.spec.key not in self._running:
            self._running.add(trial.spec.key)
            self.log.append(("start", trial.spec.key))
        super()._go_on(trial)


class TuneSide:
    """The scheduler and the source of trials, called as Tune calls them; trials end as the recorder would have them end."""

    def __init__(self, plan: Plan) -> None:
        scheduler = scheduler_of(plan)
        assert scheduler is not None
        self.plan, self.scheduler = plan, scheduler
        self.specs = {trial.key: trial for trial in plan.trials}
        self.settled: set[str] = set()
        self.ids: dict[str, str] = {}
        self.source = TrialSource(
            Listed(plan.configurations), lambda one: plan.trials_of(one.id), self.settled.__contains__, turns=scheduler
        )

    def start(self) -> str | None:
        name = f"trial{random.random()}"
        handed = self.source.suggest(name)
        if handed is None or handed == Searcher.FINISHED:
            return None
        self.ids[handed["key"]] = name
        return str(handed["key"])

    def evaluation(self, key: str, epoch: float, score: object, last: bool) -> str:
        """What the scheduler tells Tune to do with the trial."""
        trial = SimpleNamespace(config=trial_config(self.specs[key]))
        result = {"epoch": epoch, "search_score": score, "step": round(2 * epoch), "total_steps": EVALUATIONS}
        assert last == (result["step"] == EVALUATIONS)
        answer = self.scheduler.on_trial_result(None, trial, result)
        if last or answer == TrialScheduler.STOP:
            self.settled |= {key} if last else set()
            self.source.on_trial_complete(self.ids.pop(key))
        return answer


@pytest.mark.parametrize("seed", range(4))
def test_the_same_events_lead_to_the_same_decisions(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    plan = plan_of(tmp_path)
    record = random_record(plan, draw)
    plain = plan.sweep.model_copy(update={"scheduler": plan.sweep.scheduler.model_copy(update={"name": "none"})})
    yardstick = Yardstick(whole_record(plain, record)[0], plan.sweep.objectives)
    log = Logged(plan, propose(plan), record.curve, draw.choice([1, 2, 5, 11]), yardstick).watch()

    side = TuneSide(plan)
    seen: set[bool] = set()
    for kind, key, *told in log:
        if kind == "start":
            assert side.start() == key
            continue
        *given, last, waits = told
        assert side.evaluation(key, *given, last) == (TrialScheduler.STOP if waits and not last else TrialScheduler.CONTINUE)
        seen |= {waits} if not last else set()
    assert side.start() is None, "the simulator let all that is left wait"
    assert seen == {True, False}


def test_what_the_journal_recalls_pauses_nothing_by_itself(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    side, resumed = TuneSide(plan), TuneSide(plan)
    keys = [key for _ in range(9) if (key := side.start())]
    entrants = [resumed.scheduler._entrant(side.specs[key]) for key in keys]
    for place, (key, one) in enumerate(zip(keys, entrants, strict=True)):
        side.evaluation(key, 1.0, 90.0 - place, last=False)
        resumed.scheduler._rule.pauses(one, 1.0, 90.0 - place)
    for place, key in enumerate(keys):
        resumed.ids[key] = key
        assert resumed.evaluation(key, 1.0, 90.0 - place, last=False) == TrialScheduler.CONTINUE, "a known evaluation"
