"""What `search.algorithm: auto` and `scheduler: auto` stand for in a sweep file: rules from docs/measurements/search.md.

The choice is made when the file is read and stands in the effective file, so that a resumed sweep keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.sweepfile.algorithms import AUTO
from orchestrator.sweepfile.space.dimensions import Block
from orchestrator.sweepfile.space.ordering import is_fixed, is_ordered

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep

FEW = 250
"""Up to so many configurations a suggestion of `gp` is quick beside a training."""
SHARE = 3
"""Under promotion a trial is judged for the first time after this part of its epochs."""


def settle(sweep: Sweep, blocks: Sequence[Block]) -> Sweep:
    """The sweep with `auto` replaced; `sweep.chosen` says by what and why."""
    search, scheduler, chosen = sweep.search, sweep.scheduler, {}
    if search.algorithm == AUTO:
        name, why = _searcher(blocks, search.configurations or 0)
        search = search.model_copy(
            update={"algorithm": name, "configurations": None if name == "grid" else search.configurations}
        )
        chosen["search"] = f"{name}, {why}"
    if scheduler.name == AUTO:
        name, grace, why = _scheduler(sweep)
        scheduler = scheduler.model_copy(update={"name": name, "grace": grace})
        chosen["scheduler"] = f"{name}, {why}"
    if chosen:
        sweep = sweep.model_copy(update={"search": search, "scheduler": scheduler})
        sweep._chosen = chosen
    return sweep


def _searcher(blocks: Sequence[Block], configurations: int) -> tuple[str, str]:
    size = sum(block.size for block in blocks)
    if size <= configurations and not any(block.ranges for block in blocks):
        return "grid", f"because the space has {size} combinations and search.configurations is {configurations}"
    if configurations > FEW:
        return "tpe", f"because search.configurations is above {FEW}"
    searched = [one for block in blocks for one in block.dimensions.values() if not is_fixed(one)]
    if not any(map(is_ordered, searched)):
        return "tpe", "because what is searched are names alone, which have no order"
    return "gp", f"because search.configurations is at most {FEW}"


def _scheduler(sweep: Sweep) -> tuple[str, float, str]:
    """The name, its grace, and why."""
    if sweep.objectives.get("score") != "maximize":
        return "none", 1.0, "because score is no objective"
    if sweep.replication is not None or sweep.warm_start:
        return "none", 1.0, "because other trials depend on the end of each"
    if len(sweep.task_names) * len(sweep.seeds) == 1:
        return "none", 1.0, "because on recorded fine-tunings stopping lost as much as it saved"
    grace = round(sweep.training.epochs / SHARE, 4)
    return "promotion", grace, "because a configuration has several trials, and weak ones need not begin the next"
