"""Results of earlier sweeps, for a searcher that learns to begin with: `search.learn_from: [run folder or sweep's name]`.

A configuration of an earlier sweep counts if it is complete and a point of this sweep's space: it has the same method, each of
its values is allowed by the dimension here, and every setting that this file fixes had the same value there. Model, protocol
and tasks must be the same, because scores could not be compared otherwise. The searcher is told the search score, as for its
own suggestions. A point that it suggests again is trained again: these results belong to another sweep and are not on this
front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.settings import OLDER
from orchestrator.plan.configuration import Earlier
from orchestrator.plan.parameters import flat_parameters, flatten, text
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, point

if TYPE_CHECKING:
    from orchestrator.results.summary import Summary
    from orchestrator.review.past_sweep import PastSweep
    from orchestrator.sweepfile.sweep import Sweep

ELSEWHERE = ("model", "revision", "protocol", "task", "seed")
"""Parameters that are compared for the whole sweep, or do not belong to a configuration."""


def planned(sweep: Sweep, planner: Planner | None = None) -> Plan:
    """The plan of `sweep`, with what its searcher begins with; raises as `make_plan` and `earlier_results` do."""
    planner = planner or Planner(sweep)
    plan = make_plan(sweep, planner)
    if plan.adaptive and sweep.search.learn_from:
        plan.earlier.extend(earlier_results(sweep, planner))
    return plan


def earlier_results(sweep: Sweep, planner: Planner) -> list[Earlier]:
    """The results of the sweeps that the file names, in their order, as far as they lie in this sweep's space."""
    found: list[Earlier] = []
    for index, name in enumerate(sweep.search.learn_from):
        where = f"{sweep.where(('search', 'learn_from', index))}: search.learn_from.{index}"
        try:
            record = _find(name, sweep)
            trained = [one for one in record.summaries if "cut_to" not in one.parameters]
            complete = [one for one in trained if one.complete or one.screened]
        except (ValueError, OSError) as error:
            raise SweepError([f"{where}: {error}"]) from None
        if differs := _differs(record, sweep):
            raise SweepError([f"{where}: {name} is of {differs}, so its scores say nothing here"])
        matching = [one for summary in complete if (one := _matching(record.name, summary, sweep, planner))]
        if not matching:
            message = f"none of the {len(complete)} complete configurations of {name} is a point of this space"
            raise SweepError([f"{where}: {message}; settings that this file fixes must be as they were there"])
        found += matching
    return found


def _find(name: str, sweep: Sweep) -> PastSweep:
    from orchestrator.review.past_sweep import NoSuchSweep, find_sweep

    try:
        return find_sweep(name, storage=sweep.storage)
    except NoSuchSweep as missing:
        try:
            return find_sweep(name, sweep.tracking.uri)
        except (ValueError, OSError):
            raise missing from None


def _differs(record: PastSweep, sweep: Sweep) -> str | None:
    theirs = record.sweep
    pairs = (
        ("the model", Path(theirs.model).name, Path(sweep.model).name),
        ("the protocol", theirs.protocol, sweep.protocol),
        ("the tasks", ", ".join(sorted(theirs.task_names)), ", ".join(sorted(sweep.task_names))),
    )
    return next((f"{what} {there}, this one of {here}" for what, there, here in pairs if there != here), None)


def _matching(name: str, summary: Summary, sweep: Sweep, planner: Planner) -> Earlier | None:
    for block in sweep.blocks:
        values = _values(block, summary)
        if values is None:
            continue
        candidate = point(block, values)
        try:
            configuration = planner.configuration(candidate)
        except SweepError:
            continue
        run = flat_parameters(planner.run_spec(configuration, sweep.task_names[0], sweep.seeds[0]))
        # A setting that older versions did not have stands in no record that means what they did.
        theirs = {**dict.fromkeys(OLDER["training"]), **summary.parameters}
        if not all(_same(run.get(key), value) for key, value in theirs.items() if key not in ELSEWHERE):
            continue
        own = {"score": summary.value("search_score")}
        found = {one: own.get(one, configuration.known.get(one, summary.value(one))) for one in sweep.objectives}
        if all(map(math.isfinite, found.values())):
            return Earlier(candidate, found, f"{name} {summary.configuration}")
    return None


def _values(block: Block, summary: Summary) -> dict[str, Any] | None:
    """The summary's value of every dimension of `block`; None if it is no point of it."""
    if block.shown_method != summary.method:
        return None
    values: dict[str, Any] = {}
    for name, dimension in block.dimensions.items():
        known, value = _value(name, dimension, summary.parameters)
        if not known:
            return None
        values[name] = value
    return values


def _value(name: str, dimension: Dimension, flat: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether the dimension allows the value in `flat`, and which of its own values that is."""
    if isinstance(dimension, Choice):
        for value in dimension.values:
            wanted = flatten({name: value}) or {name: None}
            if all(_same(flat.get(key), one) for key, one in wanted.items()):
                return True, value
        return False, None
    try:
        number = float(flat[name])
    except (KeyError, TypeError, ValueError):
        return False, None
    inside = dimension.low <= number <= dimension.high
    if dimension.distribution.startswith("int_"):
        return inside and number.is_integer(), int(number) if number.is_integer() else None
    return inside, number


def _same(one: Any, other: Any) -> bool:
    # A tracking store keeps text, a journal keeps numbers.
    return (one is None and other is None) or (one is not None and other is not None and text(one) == text(other))
