"""Checks that `search`, `scheduler`, `replication` and `budget` of a sweep file fit together and fit its space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.sweepfile.algorithms import SEARCHERS
from orchestrator.sweepfile.mistakes import Mistake, section_of, unknown
from orchestrator.sweepfile.space.dimensions import Block
from orchestrator.sweepfile.space.ordering import is_fixed, is_ordered
from orchestrator.sweepfile.space.sizes import SIZES

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
        mistakes += [*_check_stopping(sweep), *_check_replication(sweep), *_check_budget(sweep), *_check_sizes(sweep)]
    return mistakes


def _check_sizes(sweep: Sweep) -> list[Mistake]:
    """A population changes configurations while they train, so that no adapter is finished until its last generation."""
    if not sweep.scheduler.row.population:
        return []
    message = f"scheduler.name: {sweep.scheduler.name} trains in generations, which are not cut; take asha, or drop sizes"
    return [Mistake((*block.path, SIZES), message) for block in sweep.blocks if block.sizes is not None]


def _check_algorithm(content: dict[str, Any], blocks: list[Block]) -> list[Mistake]:
    search = section_of(content, "search")
    algorithm = search.get("algorithm", "grid")
    if not isinstance(algorithm, str) or algorithm not in SEARCHERS:
        return []
    given = next((key for key in ("learn_from", "warm_start") if search.get(key)), None)
    if given and not SEARCHERS[algorithm].learns:
        able = ", ".join(name for name, row in SEARCHERS.items() if row.learns)
        message = f"{algorithm} learns nothing from results; drop it, or take one that learns: {able}"
        return [Mistake(("search", given), message)]
    if SEARCHERS[algorithm].samples:
        if search.get("trials") is None:
            return [Mistake(("search",), f"{algorithm} needs trials: how many configurations to draw, as in trials: 64")]
        if SEARCHERS[algorithm].one_block and len(blocks) > 1:
            return [
                Mistake(
                    ("search", "algorithm"),
                    f"{algorithm} searches one method block and the space has {len(blocks)}; tpe, gp and sobol search several",
                )
            ]
        return _check_numeric(algorithm, content, blocks)
    mistakes = [
        Mistake(
            (*block.path, name),
            f"a range has no end of values, so {algorithm} cannot run it; give values, or search.algorithm: random",
        )
        for block in blocks
        for name in block.ranges
    ]
    if search.get("trials") is not None:
        mistakes.append(
            Mistake(("search", "trials"), f"{algorithm} runs every combination; drop trials, or use algorithm: random")
        )
    return mistakes


def _check_numeric(algorithm: str, content: dict[str, Any], blocks: list[Block]) -> list[Mistake]:
    row, objectives = SEARCHERS[algorithm], content.get("objectives")
    mistakes = []
    if row.one_objective and (not isinstance(objectives, dict) or len(objectives) != 1):
        named = ", ".join(objectives) if isinstance(objectives, dict) else "score, trainable_parameters (the default)"
        message = (
            f"{algorithm} aims at one objective and there are: {named}; give objectives: {{score: maximize}} and bound the "
            "rest by constraints, or take tpe"
        )
        mistakes.append(Mistake(("search", "algorithm"), message))
    if row.numeric:
        moving = [(block, name) for block in blocks for name, one in block.dimensions.items() if not is_fixed(one)]
        mistakes += [
            Mistake((*block.path, name), f"{algorithm} searches numbers, and these values have no order; give one, or take tpe")
            for block, name in moving
            if not is_ordered(block.dimensions[name])
        ]
        if not moving and blocks:
            mistakes.append(Mistake(("space",), f"{algorithm} has nothing to search: every value is fixed"))
    return mistakes


def _check_stopping(sweep: Sweep) -> list[Mistake]:
    scheduler, training = sweep.scheduler, sweep.training
    row = scheduler.row
    if not row.steers:
        return []
    if row.serves and sweep.search.algorithm not in row.serves:
        why, what = "changes configurations itself", " for its first population"
        if row.pauses:
            why, what = "leaves most configurations unfinished", ", which can learn from unfinished ones"
        message = (
            f"{scheduler.name} {why} and cannot serve {sweep.search.algorithm}; "
            f"give search.algorithm: {' or '.join(row.serves)}{what}, or another scheduler"
        )
        return [Mistake(("scheduler", "name"), message)]
    by_hand = sweep.replication is not None and not sweep.compare
    if row.pauses:
        for name, given in (
            ("replication", by_hand),
            ("warm_start", bool(sweep.warm_start)),
        ):
            if given:
                message = (
                    f"waits for trials to end, and with scheduler.name: {scheduler.name} some never do; drop it, or take asha"
                )
                return [Mistake((name,), message)]
    if sweep.objectives.get("score") != "maximize":
        return [Mistake(("scheduler",), f"{scheduler.name} stops by the score, so objectives must have score: maximize")]
    if row.population:
        return _check_population(sweep)
    epochs = [training.epochs, *(settings.get("epochs", 0) for settings in sweep.task_training.values())]
    searched = any("epochs" in block.dimensions for block in sweep.blocks)
    several = len(sweep.task_names) * len(sweep.seeds) > 1
    if row.pauses and several:
        return []  # a pausing scheduler also decides between the trials of a configuration
    if training.max_steps is None and not searched and scheduler.grace >= max(epochs):
        message = f"grace is {scheduler.grace:g} epochs and training has {max(epochs):g}, so nothing would ever be stopped"
        return [Mistake(("scheduler", "grace"), message)]
    return []


def _check_population(sweep: Sweep) -> list[Mistake]:
    """Mistakes in a sweep with population based training, which cuts training into generations."""
    name, epochs, interval = sweep.scheduler.name, sweep.training.epochs, sweep.scheduler.interval
    whole = epochs / interval
    mistakes = []
    if whole < 2 or abs(whole - round(whole)) > 1e-9:
        message = f"training has {epochs:g} epochs, which are not two or more generations of {interval:g}"
        mistakes.append(Mistake(("scheduler", "interval"), message))
    settings = [sweep.training.max_steps is not None, any("epochs" in one.dimensions for one in sweep.blocks)]
    if any(settings) or any("epochs" in one for one in sweep.task_training.values()):
        mistakes.append(Mistake(("scheduler",), f"{name} counts in training.epochs: no max_steps, and no epochs elsewhere"))
    by_hand = sweep.replication is not None and not sweep.compare
    for key, given in (("replication", by_hand), ("warm_start", bool(sweep.warm_start))):
        if given:
            mistakes.append(Mistake((key,), f"goes with configurations that stay as they are; scheduler.name is {name}"))
    return mistakes


def _check_replication(sweep: Sweep) -> list[Mistake]:
    rule = sweep.replication
    if rule is None:
        return []
    mistakes = []
    if sweep.objectives.get("score") != "maximize":
        mistakes.append(Mistake(("replication",), "chooses by the score, so objectives must have score: maximize"))
    twice = sorted(set(rule.seeds) & set(sweep.seeds))
    if twice:
        already = "tune, and what tunes is not reported" if rule.tunes_apart else "are among the sweep's seeds already"
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
