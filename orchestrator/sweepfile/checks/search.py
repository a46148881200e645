"""Checks that `search`, `scheduler`, `replication` and `budget` of a sweep file fit together and fit its space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.sweepfile.algorithms import AUTO, SEARCHERS
from orchestrator.sweepfile.mistakes import Mistake, section_of, unknown
from orchestrator.sweepfile.space.dimensions import Block

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep


def check_search(content: dict[str, Any], blocks: list[Block], sweep: Sweep | None) -> list[Mistake]:
    """Mistakes in how a file chooses, stops and replicates its configurations, and in its budget.

    Args:
        content: the file's plain data.
        blocks: the method blocks that could be read.
        sweep: the checked file; None if another part of it is wrong, and then only the algorithm is checked.
    """
    mistakes = _check_algorithm(content, blocks)
    if sweep is not None:
        mistakes += [*_check_stopping(sweep), *_check_replication(sweep), *_check_budget(sweep)]
    return mistakes


def _check_algorithm(content: dict[str, Any], blocks: list[Block]) -> list[Mistake]:
    search = section_of(content, "search")
    algorithm = search.get("algorithm", "grid")
    if algorithm == AUTO or (isinstance(algorithm, str) and algorithm in SEARCHERS and SEARCHERS[algorithm].samples):
        missing = search.get("configurations") is None
        message = f"{algorithm} needs the number of configurations to draw, as in configurations: 64"
        return [Mistake(("search",), message)] if missing else []
    if algorithm != "grid":
        return []
    mistakes = [
        Mistake(
            (*block.path, name),
            "a range has no end of values for grid to run; give values, or search: {algorithm: auto, configurations: 64}",
        )
        for block in blocks
        for name in block.ranges
    ]
    if search.get("configurations") is not None:
        mistakes.append(
            Mistake(("search", "configurations"), f"{algorithm} runs every combination; drop this, or use algorithm: auto")
        )
    return mistakes


def _check_stopping(sweep: Sweep) -> list[Mistake]:
    scheduler, training = sweep.scheduler, sweep.training
    if scheduler.name == "none":
        return []
    if "end" in (training.evaluate_every, *(one.get("evaluate_every") for one in sweep.task_training.values())):
        message = f"{scheduler.name} judges trials while they train, and with end there is one evaluation; give epochs"
        return [Mistake(("training", "evaluate_every"), message)]
    by_hand = sweep.replication is not None and not sweep.compare
    for name, given in (("replication", by_hand), ("warm_start", bool(sweep.warm_start))):
        if given:
            message = f"waits for trials to end, and with scheduler.name: {scheduler.name} some never do; drop it, or take none"
            return [Mistake((name,), message)]
    if sweep.objectives.get("score") != "maximize":
        return [Mistake(("scheduler",), f"{scheduler.name} stops by the score, so objectives must have score: maximize")]
    epochs = [training.epochs, *(settings.get("epochs", 0) for settings in sweep.task_training.values())]
    searched = any("epochs" in block.dimensions for block in sweep.blocks)
    several = len(sweep.task_names) * len(sweep.seeds) > 1
    if several:
        return []  # it also decides between the trials of a configuration
    if training.max_steps is None and not searched and scheduler.grace >= max(epochs):
        message = f"grace is {scheduler.grace:g} epochs and training has {max(epochs):g}, so nothing would ever be stopped"
        return [Mistake(("scheduler", "grace"), message)]
    return []


def _check_replication(sweep: Sweep) -> list[Mistake]:
    rule = sweep.replication
    if rule is None:
        return []
    mistakes = []
    if sweep.objectives.get("score") != "maximize":
        mistakes.append(Mistake(("replication",), "chooses by the score, so objectives must have score: maximize"))
    twice = sorted(set(rule.seeds) & set(sweep.seeds))
    if twice:
        already = "tune, and what tunes is not reported" if rule.tunes else "are among the sweep's seeds already"
        mistakes.append(Mistake(("replication", "seeds"), f"{twice} {already}; give further ones"))
    names = sorted({name for block in sweep.blocks for name in block.dimensions})
    mistakes += [
        Mistake(("replication", "tuned", index), unknown("dimension", name, names))
        for index, name in enumerate(() if sweep.compare else rule.tuned)
        if name not in names
    ]
    return mistakes


def _check_budget(sweep: Sweep) -> list[Mistake]:
    return [
        Mistake(("budget", "target", name), unknown("objective", name, list(sweep.objectives)))
        for name in sweep.budget.target
        if name not in sweep.objectives
    ]
