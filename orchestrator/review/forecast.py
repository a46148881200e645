"""How long a plan takes on this machine: by recorded trials of the same model and batch, or else by a few steps that are timed.

`seconds_of` is for every forecast: that of `--plan`, and the files that `orchestrator.suggest` writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.words import format_duration, plural
from orchestrator.plan.gpu_shares import usable_gpus
from orchestrator.plan.plan import Plan
from orchestrator.plan.work import Work, count_work
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import cores
from orchestrator.state.log import read_state
from orchestrator.state.state import State
from orchestrator.sweepfile.resources import times
from orchestrator.sweepfile.sweep import Sweep

if TYPE_CHECKING:
    from craft.trainer.probe import Speed

_TIMING_SETTINGS = ("batch_size", "gradient_accumulation", "max_length", "precision")
"""Settings on which the time of a step depends most."""


PROBE_SECONDS = 20.0
"""The most time for steps that are timed."""
BESIDE = 1.15
"""How much longer a training takes if another one runs at the same time on other cores of the machine."""


def past_states(sweep: Sweep) -> list[State]:
    """Returns the states of the sweeps of the same model in the storage of a sweep."""
    states = []
    for folder in sorted(Path(sweep.storage).glob("*/")):
        with suppress(OSError, ValueError):  # a damaged one
            state = read_state(SweepFolder(folder).record)
            states += [state] if state.started is not None and state.sweep.model == sweep.model else []
    return states


def forecast(plan: Plan, share: float, past: Iterable[State]) -> tuple[float | None, str]:
    """Returns the seconds of a share of the plan on this machine, None if they are not known, and a sentence about that.

    The sentence is empty if the work of the plan is not known. The seconds of recorded trials hold their scoring, so a plan
    with other evaluations takes another time: it is an estimate.

    Args:
        past: recorded sweeps of the same model; those with comparable steps count.
    """
    work, storage = sum(count_work(plan).values(), Work()), Path(plan.sweep.storage)
    at_once = trainings_at_once(plan)
    if not work.steps or not at_once:
        return None, ""
    same = [state for state in past if _timing(state.sweep) == _timing(plan.sweep)]
    ended = [entry.result for state in same for entry in state.entries.values() if entry.result is not None]
    trained = [result for result in ended if result.status == "finished" and result.steps]
    if trained:
        a_step = sum(result.seconds for result in trained) / sum(result.steps for result in trained)
        seconds, source = (
            work.steps * a_step / at_once,
            f"the {len(trained)} {plural(len(trained), 'trial')} recorded in {storage}",
        )
    else:
        speed = probe_plan(plan)
        if speed is None:
            missing = f"not known before a trial of this model and batch is recorded in {storage}"
            return None, f"how long: {missing}; a running sweep shows it"
        seconds, source = seconds_of(work, speed, at_once), "a few steps that were timed here"
    minutes = format_duration(60 * max(1, round(share * seconds / 60)))
    return share * seconds, f"about {minutes.removesuffix(' 00 s')} with {at_once} at once, by {source}"


def seconds_of(work: Work, speed: Speed, at_once: int) -> float:
    """Returns the seconds of a plan's work with so many trainings at once."""
    return work.seconds(speed) / at_once * (BESIDE if at_once > 1 else 1.0)


def trainings_at_once(plan: Plan) -> int:
    """Returns how many trainings this machine runs at the same time; 0 if it cannot run any."""
    share = plan.sweep.resources
    fit = math.floor(cores() / share.cpu / share.count)
    if share.gpu:
        fit = min(fit, times(len(usable_gpus()), share.gpu))
    return min(fit, len(plan.jobs))


def probe_plan(plan: Plan) -> Speed | None:
    """Times a few steps with the training settings of the plan's first trial; None where that is not possible here."""
    from craft.results import RunFailed
    from craft.trainer.memory import OutOfMemory
    from craft.trainer.probe import measure_speed

    share = plan.sweep.resources
    if bool(share.gpu) != bool(usable_gpus()):
        return None
    with suppress(RunFailed, OutOfMemory, ValueError, OSError):
        return measure_speed(plan.jobs[0].training.run, PROBE_SECONDS, max(1, int(share.cpu)))
    return None


def _timing(sweep: Sweep) -> tuple[Any, ...]:
    return tuple(getattr(sweep.training, name) for name in _TIMING_SETTINGS)
