"""A configuration that somebody adds to a sweep that exists, with the reason.

    lora rank=4 learning_rate=2e-3     a method, and settings as a method block of a sweep file has them, each with one value

It is a method block of its own: what it does not name is as the method, and the file for all blocks, have it. It gets the
reported seeds.
"""

from __future__ import annotations

import re

from orchestrator.plan.planner import Planner
from orchestrator.state.events import Decided
from orchestrator.state.state import State
from orchestrator.sweepfile.load import check
from orchestrator.sweepfile.mistakes import dotted
from orchestrator.sweepfile.plain_yaml import read_plain
from orchestrator.sweepfile.space.dimensions import Choice, Point, point
from orchestrator.sweepfile.space.own_keys import OWN_KEYS
from orchestrator.sweepfile.sweep import Sweep


def propose(proposal: str, why: str, who: str, planner: Planner, state: State, request: str = "") -> Decided:
    """Returns the event that adds a configuration.

    Args:
        proposal: the configuration in words, as above.
        why: the reason, for people.
        who: proposes it.
        request: the name of the request.

    Raises:
        ValueError: it cannot be read or built, the file's constraints or budget exclude it, or the sweep has it already.
    """
    sweep = planner.sweep
    try:
        proposed = read_proposal(proposal, sweep)
        allowed, dropped = planner.allowed(proposed)
    except ValueError as error:
        raise ValueError("\n".join(f"{proposal}: {line}" for line in str(error).splitlines())) from error
    if not allowed:
        raise ValueError(f"{dropped[-1].configuration.label}: {dropped[-1].reason}, by the file's constraints")
    if sweep.resources not in sweep.shares:  # a driver that runs has places for the shares of the file's blocks alone
        raise ValueError(f"{proposal}: every block of the file has resources of its own; add a block to the file and apply it")
    name, label, seeds = allowed[-1].id, allowed[-1].label, [*sweep.reported_seeds]
    tried = [entry for entry in state.requested if entry.trial.configuration == name]
    if tried:
        finished = f"{sum(entry.finished is not None for entry in tried)} of its {len(tried)} trials have finished"
        raise ValueError(f"{label}: the sweep has it already, as {name} ({tried[0].trial.label}): {finished}")
    needed, most = len(state.trainings) + len(sweep.task_names) * len(seeds), sweep.budget.trials
    if most is not None and needed > most:
        raise ValueError(f"{label}: with it the sweep needs {needed} trials; budget.trials is {most}: raise it by apply")
    why = f"{label}, proposed by {who}: {why}"
    return Decided(why=why, seeds={name: seeds}, point=dict(vars(proposed)), request=request)


def read_proposal(proposal: str, sweep: Sweep) -> Point:
    """Returns the point that a proposal describes, of no block of the file.

    Raises:
        ValueError: it is no method with settings of one value each, as the rest of the file allows them.
    """
    method, *assignments = re.split(r"\s+(?=[\w.]+=)", proposal.strip())
    block = {"method": method} | ({"tuned": False} if sweep.compare else {})
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name in OWN_KEYS or name in block:
            raise ValueError(f"{name} is given twice, or goes with a block of the file only; edit the file and apply it")
        block[name] = read_plain(text, assignment, lines=False)[0]
    checked, mistakes = check(sweep.model_dump(mode="json") | {"space": [*sweep.space, block]})
    if checked is None or mistakes:
        places = [mistake.path[2:] if mistake.path[:1] == ("space",) else mistake.path for mistake in mistakes]
        lines = [
            f"{dotted(place)}: {mistake.message}".removeprefix(": ") for place, mistake in zip(places, mistakes, strict=True)
        ]
        raise ValueError("\n".join(lines))
    dimensions = checked.blocks[-1].dimensions
    values = {name: dimension.values[0] for name, dimension in dimensions.items() if isinstance(dimension, Choice)}
    if several := [name for name in dimensions if dimensions[name] != Choice((values.get(name),))]:
        raise ValueError(f"{', '.join(several)}: a proposal has one value of each setting")
    proposed = point(checked.blocks[-1], values)
    return Point(None, proposed.method, proposed.parameters, proposed.training)
