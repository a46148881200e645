"""`compare: fair` of a sweep file: every configuration is tuned with an equal budget before it is compared.

    compare: fair        seeds: [0, 1, 2]        tuned: [learning_rate]        tuning_seeds: [1000]

is short for what could be written by hand, and `write_out` writes that before the file is checked:

    seeds: [1000]    replication: {seeds: [0, 1, 2], tuned: [learning_rate]}

and values of what is tuned in each block.

Each block searches its own values of a tuned setting, those under `tuned`, or the learning rates in its method's row. A block
with `tuned: false` keeps its settings as they are, and is marked as not tuned. `check_fair` refuses what would make budgets
unequal, stop some of them early, or tune on the reported split.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from craft.methods import METHODS
from orchestrator.sweepfile.mistakes import Mistake, YamlPath, unknown
from orchestrator.sweepfile.settings import tuned_settings
from orchestrator.sweepfile.space.blocks import parameter_names
from orchestrator.sweepfile.space.dimensions import CONFIG, Block, Choice

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep

FAIR = "fair"
RATE = "learning_rate"
TUNING_SEED = 1000
"""The seed that tunes unless the file says which. It is far from the first numbers, so that seeds can be added later."""


def write_out(document: dict[str, Any]) -> tuple[dict[str, Any], dict[YamlPath, YamlPath]]:
    """Replaces `compare: fair` in a file's plain data by what it means; sections that are written by hand stay.

    Returns:
        The plain data, and by each path that is new the path that it comes from.
    """
    if document.get("compare") != FAIR:
        return document, {}
    try:
        tuned = tuned_settings(document["tuned"]) if document.get("tuned") is not None else {RATE: {}}
    except ValueError:
        return document, {}  # a mistake that the check of the section reports
    new: dict[YamlPath, YamlPath] = {}
    seeds, space = document.get("seeds", [0]), document.get("space")
    if document.get("replication") is None and isinstance(seeds, list) and seeds:
        free = next(seed for seed in itertools.count(TUNING_SEED) if seed not in seeds)
        tuning = [free] if document.get("tuning_seeds") is None else document["tuning_seeds"]
        rule: dict[str, Any] = {"seeds": seeds, "tuned": [*tuned]}
        document = document | {"seeds": tuning, "replication": rule, "tuning_seeds": None}
        new |= {("seeds",): ("tuning_seeds",), ("replication",): ("seeds",), ("replication", "seeds"): ("seeds",)}
        new |= {("replication", "tuned", index): ("tuned",) for index in range(len(tuned))}
    if isinstance(space, list):
        document = document | {"space": [_add_values(block, tuned) for block in space]}
        for index, (block, written) in enumerate(zip(document["space"], space, strict=True)):
            if block is not written:
                added = [name for name in block if name not in written]
                new |= {("space", index, name): ("tuned", name) for name in added if tuned.get(name, {}).get("values")}
    return document, new


def _add_values(block: Any, tuned: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns the block with values of each tuned setting that its method has and that it does not have itself."""
    if not isinstance(block, dict) or block.get("tuned") is False or str(block.get("method")) not in METHODS:
        return block
    row = METHODS[block["method"]]
    if not row.adapts and [*tuned] == [RATE] and RATE not in block:
        return {"tuned": False, **block}  # its head has a rate of its own
    names = parameter_names(row)
    present = {names.get(key) for key in block}
    added = {}
    for name, form in tuned.items():
        values = form.get("values") or ([*row.rates] if name == RATE else None)
        if name in names.values() and name not in present and values:
            added[name] = {"values": values}
    return block | added if added else block


def check_fair(sweep: Sweep) -> Iterator[Mistake]:
    """Yields the mistakes in what `compare: fair` does not go with, or in what goes with nothing else."""
    if not sweep.compare:
        paths: list[YamlPath] = [(name,) for name in ("tuned", "tuning_seeds") if getattr(sweep, name) is not None]
        paths += [(*block.path, "tuned") for block in sweep.blocks if not block.tuned]
        message = "goes with compare: fair, which this file does not say; add it, or drop this"
        yield from (Mistake(path, message) for path in paths)
        return
    tuned = sweep.tuned or {RATE: {}}
    yield from _check_settings(sweep, [*tuned])
    yield from _check_sections(sweep, [*tuned])
    mistakes = [*_check_names(sweep.blocks, tuned), *_check_values(sweep.blocks, [*tuned])]
    yield from mistakes or _check_budgets(sweep.blocks, [*tuned])


def _check_settings(sweep: Sweep, names: Sequence[str]) -> Iterator[Mistake]:
    """Yields values for all blocks, or for a task, of what every block tunes: they are never used."""
    fixed = [block for block in sweep.blocks if not block.tuned]
    # A head alone has a rate of its own, unless that is null.
    own_rate = sweep.training.head_learning_rate is not None
    rated = [row for row in fixed if METHODS[row.method].adapts or not own_rate or "head_learning_rate" in row.dimensions]
    # Effective files write defaults out, so a value equal to the default was not chosen by the user.
    sections: dict[YamlPath, Any] = {("training",): sweep.training.model_dump(exclude_defaults=True)}
    sections |= {("task_training", task): settings for task, settings in sweep.task_training.items()}
    message = "is tuned under compare: fair, so this value is never used; drop it, or tune something else"
    for path, settings in sections.items():
        for name in names:
            if name in settings and not (rated if name == RATE else fixed):
                yield Mistake((*path, name), message)


def _check_sections(sweep: Sweep, names: Sequence[str]) -> Iterator[Mistake]:
    rule, algorithm, scheduler = sweep.replication, sweep.search.algorithm, sweep.scheduler.name
    if rule is None or set(rule.tuned) != set(names):
        expected = f"{{tuned: [{', '.join(names)}]}}"
        yield Mistake(("replication",), f"compare: fair sets it to {expected} with the reported seeds; drop it")
    elif sweep.tuning_seeds is not None:
        message = "with a replication by hand the sweep's own seeds tune; drop this, or drop replication"
        yield Mistake(("tuning_seeds",), message)
    if algorithm != "grid":
        message = f"{algorithm} gives some configurations more trials than others; compare: fair goes with grid"
        yield Mistake(("search", "algorithm"), message)
    if scheduler != "none":
        why = f"{scheduler} ends trials because of other configurations, so their tuning budgets would differ"
        yield Mistake(("scheduler", "name"), f"{why}; compare: fair goes without a scheduler")
    if sweep.protocol != "honest":
        why = f"{sweep.protocol} tunes on the reported split, which flatters what is tuned"
        yield Mistake(("protocol",), f"{why}; compare: fair needs honest")


def _check_names(blocks: Sequence[Block], tuned: Mapping[str, Any]) -> Iterator[Mistake]:
    settings = {block.path: {*parameter_names(METHODS[block.method]).values()} for block in blocks}
    names = sorted({name for block in blocks for name in (*settings[block.path], *block.dimensions)})
    for name, form in tuned.items():
        if name not in names:
            yield Mistake(("tuned", name), unknown("setting", name, names))
        if any(block.tuned and name in settings[block.path] and name not in block.dimensions for block in blocks):
            yield Mistake(("tuned", name), f"has no values: give them here, or in each block that has {name}")
        if name.startswith(f"{CONFIG}.") and form:
            message = "which types of PEFT have it depends on the block: give its values in the blocks' config"
            yield Mistake(("tuned", name), message)


def _check_values(blocks: Sequence[Block], names: Sequence[str]) -> Iterator[Mistake]:
    for block in blocks:
        for name in names:
            several = _count_values(block, name) > 1
            if several and not block.tuned:
                message = "has several values, and the block says tuned: false; keep one of the two"
                yield Mistake((*block.path, name), message)
            elif block.tuned and name in block.dimensions and not several and name not in block.ranges:
                message = f"is tuned, and has one value here; give values, drop {name}, or add tuned: false"
                yield Mistake((*block.path, name), message)


def _check_budgets(blocks: Sequence[Block], names: Sequence[str]) -> Iterator[Mistake]:
    candidates = {block.path: math.prod(_count_values(block, name) for name in names) for block in blocks if block.tuned}
    most = max(candidates.values(), default=0)
    for path, count in candidates.items():
        if count < most:
            message = f"has {count} candidates to tune and another block {most}"
            yield Mistake(path, f"{message}: give as many values, or add tuned: false")
    if blocks and not candidates:
        yield Mistake(("compare",), "every block says tuned: false, so nothing is tuned; drop compare")


def _count_values(block: Block, name: str) -> int:
    dimension = block.dimensions.get(name)
    return len(dimension.values) if isinstance(dimension, Choice) else 1
