"""Checks what makes `compare: fair` fair: equal budgets, nothing that stops some of them early, a search split of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from craft.methods import METHODS
from craft.plain_yaml import YamlPath
from craft.settings import TrainingSettings
from orchestrator.sweepfile.fair import FAIR, RATE
from orchestrator.sweepfile.mistakes import Mistake, unknown
from orchestrator.sweepfile.space.blocks import parameter_names
from orchestrator.sweepfile.space.dimensions import CONFIG, Block, Choice

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep


def check_fair(content: dict[str, Any], blocks: Sequence[Block], sweep: Sweep | None) -> list[Mistake]:
    """Mistakes in what stands beside `compare: fair`, or in what is only for it.

    Args:
        content: the file's plain data, written out.
        blocks: the method blocks that could be read.
        sweep: the checked file; None if another part of it is wrong, and then only the words themselves are checked.
    """
    if content.get("compare") != FAIR:
        only = [(name,) for name in ("tuned", "tuning_seeds") if content.get(name) is not None]
        paths: list[YamlPath] = [*only, *((*block.path, "tuned") for block in blocks if not block.tuned)]
        return [Mistake(path, "goes with compare: fair, which this file does not say; add it, or drop this") for path in paths]
    if sweep is None:
        return []
    return [*_check_settings(content, blocks, sweep), *_check_sections(sweep), *_check_blocks(blocks, sweep)]


def _check_settings(content: dict[str, Any], blocks: Sequence[Block], sweep: Sweep) -> list[Mistake]:
    """Where every block is tuned, what is tuned has values there, so a value for all blocks or for a task says nothing."""
    if not all(block.tuned for block in blocks):
        return []
    per_task = content.get("task_training") or {}
    places = [("training",), *(("task_training", task) for task in per_task)]
    given = [content.get("training") or {}, *per_task.values()]
    return [
        Mistake((*path, name), "is tuned under compare: fair, so this value is never used; drop it, or tune something else")
        for path, settings in zip(places, given, strict=True)
        for name in sweep.tuned or {RATE: {}}
        if isinstance(settings, dict) and settings.get(name, _default(name)) != _default(name)
    ]


def _default(name: str) -> Any:
    """A training setting's; an effective file writes it out, so it is no choice of the user's."""
    field = TrainingSettings.model_fields.get(name)
    return None if field is None else field.default


def _check_sections(sweep: Sweep) -> list[Mistake]:
    mistakes = []
    rule, names = sweep.replication, [*(sweep.tuned or {RATE: {}})]
    if rule is None or rule.choose != "best" or set(rule.tuned) != set(names):
        message = f"compare: fair sets it to {{choose: best, tuned: [{', '.join(names)}]}} with the reported seeds; drop it"
        mistakes.append(Mistake(("replication",), message))
    elif sweep.tuning_seeds is not None:
        message = "beside a replication by hand the sweep's own seeds tune; drop this, or drop replication"
        mistakes.append(Mistake(("tuning_seeds",), message))
    if sweep.search.algorithm != "grid":
        message = f"{sweep.search.algorithm} gives some configurations more trials than others; compare: fair goes with grid"
        mistakes.append(Mistake(("search", "algorithm"), message))
    if sweep.scheduler.name != "none":
        message = (
            f"{sweep.scheduler.name} ends trials because of other configurations, so their tuning budgets would differ; "
            "compare: fair goes without a scheduler"
        )
        mistakes.append(Mistake(("scheduler", "name"), message))
    if sweep.protocol != "honest":
        message = f"{sweep.protocol} tunes on the reported split, which flatters what is tuned; compare: fair needs honest"
        mistakes.append(Mistake(("protocol",), message))
    if sweep.budget.target:
        message = "ends the sweep before every configuration has had its budget; drop it beside compare: fair"
        mistakes.append(Mistake(("budget", "target"), message))
    return mistakes


def _check_blocks(blocks: Sequence[Block], sweep: Sweep) -> list[Mistake]:
    names = [*(sweep.tuned or {RATE: {}})]
    known = sorted({name for block in blocks for name in (*parameter_names(METHODS[block.method]).values(), *block.dimensions)})
    mistakes = [Mistake(("tuned", name), unknown("setting", name, known)) for name in names if name not in known]
    mistakes += [
        Mistake(("tuned", name), f"has no values: give them here, or in each block that has {name}")
        for name in names
        if any(_lacks(block, name) for block in blocks)
    ]
    mistakes += [
        Mistake(("tuned", name), "which types of PEFT have it depends on the block: give its values in the blocks' config")
        for name, how in (sweep.tuned or {}).items()
        if name.startswith(f"{CONFIG}.") and how
    ]
    candidates = {}
    for block in blocks:
        several = [name for name in names if _values(block, name) > 1]
        fixed = [name for name in names if name in block.dimensions and name not in several and name not in block.ranges]
        if not block.tuned:
            mistakes += [
                Mistake((*block.path, name), "has several values, and the block says tuned: false; keep one of the two")
                for name in several
            ]
            continue
        mistakes += [
            Mistake((*block.path, name), f"is tuned, and has one value here; give values, drop {name}, or add tuned: false")
            for name in fixed
        ]
        candidates[block.path] = math.prod(_values(block, name) for name in names)
    most = max(candidates.values(), default=0)
    if candidates and not mistakes:
        message = f"candidates to tune and another block {most}: give as many values, or add tuned: false"
        mistakes += [Mistake(path, f"has {count} {message}") for path, count in candidates.items() if count < most]
    if blocks and not candidates:
        mistakes.append(Mistake(("compare",), "every block says tuned: false, so nothing is tuned; drop compare"))
    return mistakes


def _lacks(block: Block, name: str) -> bool:
    """Whether a block that is tuned has a setting of that name without any value of it."""
    known = parameter_names(METHODS[block.method]).values()
    return block.tuned and name in known and name not in block.dimensions


def _values(block: Block, name: str) -> int:
    one = block.dimensions.get(name)
    return len(one.values) if isinstance(one, Choice) else 1
