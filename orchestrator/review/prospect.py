"""What is known of a plan's work before it runs: steps, what has ended already, its data, what it settles, its time on
this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.plan.data_lines import data_lines
from orchestrator.plan.gpu_shares import Gpu, usable_gpus
from orchestrator.plan.plan import Plan
from orchestrator.plan.work import planned_steps, remaining_steps, scored_line, split_examples
from orchestrator.record.folder import SweepFolder
from orchestrator.record.resume import check_name
from orchestrator.review.forecast import forecast, past_states
from orchestrator.review.plan_power import power_lines
from orchestrator.state.log import read_state
from orchestrator.state.state import State


@dataclass(frozen=True)
class Prospect:
    """The work of a plan.

    Attributes:
        steps: optimizer steps of all trainings, by configuration; empty where the data are not here.
        left: those of the trainings that have not ended.
        ended: the number of trainings that have.
        seconds: the time of what is left; None if it is not known.
        gpus: those of this machine that torch can use, if the sweep is to run here.
        lines: sentences about data, probabilities and time, each with its style.
    """

    steps: Mapping[str, int]
    left: int = 0
    ended: int = 0
    seconds: float | None = None
    gpus: Sequence[Gpu] = ()
    lines: Sequence[tuple[str, str]] = ()


def look_ahead(plan: Plan, *, resume: bool = False, elsewhere: bool = False) -> Prospect:
    """Returns the work of a plan.

    Args:
        resume: whether trials that have ended in earlier sessions count as done.
        elsewhere: whether it runs on a cluster, so that this machine says nothing about its time.
    """
    state = read_state(SweepFolder(plan.sweep.folder).record) if resume else State()
    check_name(plan.sweep.folder, state, plan.sweep.name)
    entries = state.entries
    settled = {key for key, entry in entries.items() if entry.result is not None and entry.result.settled}
    examples = split_examples(plan.sweep)
    steps, lines = planned_steps(plan, examples), [*data_lines(plan)]
    ended = sum(all(key in settled for key in job.keys) for job in plan.jobs)
    if settled:
        lines.append((f"{ended} of {len(plan.jobs)} trainings have ended already", ""))
    left = remaining_steps(plan, steps, settled)
    past = past_states(plan.sweep)
    seconds, sentence = forecast(plan, left / sum(steps.values()), past) if left and not elsewhere else (None, "")
    scored = scored_line(plan.sweep, examples)
    lines += [(line, "") for line in (scored, *power_lines(plan, examples, past), sentence) if line]
    return Prospect(steps, left, ended, seconds, [] if elsewhere else usable_gpus(), lines)
