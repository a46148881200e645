"""How a sweep file chooses, stops and replicates configurations: what `search.algorithm: auto` stands for, and what does not
fit together.

The rules of `auto` are from docs/search.md. The choice is made when the file is read and is written to the
effective file, so that a resumed sweep keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.sweepfile.algorithms import AUTO, SEARCHERS
from orchestrator.sweepfile.mistakes import Mistake, section_of, unknown
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.space.dimensions import Block, is_fixed, is_ordered

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep

FEW = 250
"""Up to so many configurations a suggestion of `gp` is quick in comparison with a training."""


def replace_auto(sweep: Sweep, blocks: Sequence[Block]) -> Sweep:
    """Returns the sweep with `auto` replaced; its `chosen` says by what and why."""
    if sweep.search.algorithm != AUTO:
        return sweep
    name, reason = _choose_searcher(blocks, sweep.search.configurations or 0)
    configurations = None if name == "grid" else sweep.search.configurations
    search = sweep.search.model_copy(update={"algorithm": name, "configurations": configurations})
    sweep = sweep.model_copy(update={"search": search})
    sweep._chosen = f"{name}, {reason}"
    return sweep


def _choose_searcher(blocks: Sequence[Block], configurations: int) -> tuple[str, str]:
    size = sum(block.size for block in blocks)
    if size <= configurations and not any(block.ranges for block in blocks):
        return "grid", f"because the space has {size} combinations and search.configurations is {configurations}"
    if configurations > FEW:
        return "tpe", f"because search.configurations is above {FEW}"
    searched = [dimension for block in blocks for dimension in block.dimensions.values() if not is_fixed(dimension)]
    if not any(map(is_ordered, searched)):
        return "tpe", "because what is searched are names alone, which have no order"
    return "gp", f"because search.configurations is at most {FEW}"


def check_search(document: dict[str, Any], blocks: Sequence[Block], sweep: Sweep | None) -> Iterator[Mistake]:
    """Yields the mistakes in `search`, `scheduler`, `replication` and `budget`, together and with the space.

    Args:
        sweep: the checked file; None if another part of it is wrong, and then only the algorithm is checked.
    """
    yield from _check_algorithm(document, blocks)
    if sweep is not None:
        yield from _check_stopping(sweep)
        yield from _check_replication(sweep)
        yield from _check_until(sweep)


def _check_algorithm(document: dict[str, Any], blocks: Sequence[Block]) -> Iterator[Mistake]:
    search = section_of(document, "search")
    algorithm = search.get("algorithm", "grid")
    row = SEARCHERS.get(algorithm) if isinstance(algorithm, str) else None
    if search.get("configurations") is None:
        if algorithm == AUTO or (row and row.samples):
            message = f"{algorithm} needs the number of configurations to draw, as in configurations: 64"
            yield Mistake(("search",), message)
    elif algorithm == "grid":
        message = "grid runs every combination; drop this, or use algorithm: auto"
        yield Mistake(("search", "configurations"), message)
    if algorithm == "grid":
        advice = "" if document.get("compare") else ", or search: {algorithm: auto, configurations: 64}"
        for path in [(*block.path, name) for block in blocks for name in block.ranges]:
            yield Mistake(path, f"a range has no end of values for grid to run; give values{advice}")


def _check_stopping(sweep: Sweep) -> Iterator[Mistake]:
    scheduler, training = sweep.scheduler, sweep.training
    if scheduler.name == "none":
        return
    sections: dict[YamlPath, Any] = {("training",): training.evaluate_every}
    sections |= {("task_training", task): by.get("evaluate_every") for task, by in sweep.task_training.items()}
    for path, evaluate_every in sections.items():
        if evaluate_every == "end":
            message = f"{scheduler.name} judges trials while they train, and with end there is one evaluation; give epochs"
            yield Mistake((*path, "evaluate_every"), message)
    waiting = {"replication": sweep.replication is not None and not sweep.compare, "warm_start": bool(sweep.warm_start)}
    for name, waits in waiting.items():
        if waits:
            never = f"with scheduler.name: {scheduler.name} some never do; drop it, or take none"
            yield Mistake((name,), f"waits for trials to end, and {never}")
    if "score" not in sweep.objectives:
        yield Mistake(("scheduler",), f"{scheduler.name} stops by the score, so objectives must have score: maximize")
    # With several trials of a configuration it also decides between them, whatever the grace.
    several = len(sweep.task_names) * len(sweep.seeds) > 1
    if several or training.max_steps is not None or any("epochs" in block.dimensions for block in sweep.blocks):
        return
    epochs = max([training.epochs, *(settings.get("epochs", 0) for settings in sweep.task_training.values())])
    if scheduler.grace >= epochs:
        message = f"grace is {scheduler.grace:g} epochs and training has {epochs:g}, so nothing would ever be stopped"
        yield Mistake(("scheduler", "grace"), message)


def _check_until(sweep: Sweep) -> Iterator[Mistake]:
    if sweep.search.until is None:
        return
    if sweep.objectives.get("score") != "maximize":
        yield Mistake(("objectives",), "search.until: answered decides by the score; give score: maximize too")
    if sweep.scheduler.name != "none":
        yield Mistake(("search", "until"), f"waits for trials to end, and with {sweep.scheduler.name} some never do; take none")


def _check_replication(sweep: Sweep) -> Iterator[Mistake]:
    rule = sweep.replication
    if rule is None:
        return
    if "score" not in sweep.objectives:
        reason = "compare: fair" if sweep.compare else "replication"
        yield Mistake(("objectives",), f"{reason} chooses by the score; give score: maximize too")
    if twice := sorted(set(rule.seeds) & set(sweep.seeds)):
        yield Mistake(("replication", "seeds"), f"{twice} tune, and what tunes is not reported; give further ones")
    names = sorted({name for block in sweep.blocks for name in block.dimensions})
    for index, name in enumerate(() if sweep.compare else rule.tuned):
        if name not in names:
            yield Mistake(("replication", "tuned", index), unknown("dimension", name, names))
