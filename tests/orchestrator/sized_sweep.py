"""A sweep with sizes and a stand-in for its training, for the tests of what the orchestrator makes of one."""

from __future__ import annotations

from pathlib import Path

from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import PlannedTrial, Train
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.stand_in import stand_in


def sized_plan(folder: Path, block: str = "sizes: [20, 40]", more: str = "", seeds: str = "[0]") -> Plan:
    """The plan of a sweep with one block of CRAFT, whose whole adapter has 10 parameters for each of its last rank, 8."""
    space = f"seeds: {seeds}\nspace:\n  - {{method: craft, ranks: [all, 8, 8], {block}}}\n"
    return toy_plan(folder, f"{space}storage: {folder}\n{more}", lambda run: 10 * run.parameters["ranks"][-1])


def size_of(trial: PlannedTrial) -> int:
    """The most parameters of an output."""
    return int(trial.run.cut_from.to.split(":")[1]) if trial.run.cut_from else 80


def sized_training(log: Path, behaviour: dict[tuple[int, int], str]) -> Train:
    """A stand-in whose whole adapters score 80, their size."""
    return stand_in(str(log), behaviour, finish=lambda spec: {"score": 80.0, "search_score": 80.0})


def text_of(trial: PlannedTrial) -> str:
    """The text that the stand-in writes into a trial's adapter."""
    return str(size_of(trial)) if trial.run.cut_from else f"8 {trial.run.seed}"
