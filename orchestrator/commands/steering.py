"""A sweep that exists is changed: `apply` gives it an edited file; `ask` pauses, continues, stops, retries.

a driver runs     a request in runs/NAME, which the driver answers between two events (`orchestrator.driver.request`)
none does         `apply` continues the sweep as `run --resume` does; another request waits for the next session
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.commands.start import plan_change, run_plan
from orchestrator.driver.change import Change, check_change, find_change
from orchestrator.driver.request import Request, RequestReport, affected, apply_request, new_request, pending
from orchestrator.plan.plan import Plan
from orchestrator.record.events import Verb
from orchestrator.record.folder import SweepFolder, holder_of, is_driven
from orchestrator.record.log import read_state
from orchestrator.record.options import Options
from orchestrator.record.resume import check_data, check_name, recorded_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.worker.preparation import prepare

if TYPE_CHECKING:
    from orchestrator.driver.display import SweepOutcome

ANSWER_SECONDS = 120.0
"""A driver that lives answers within a second, and makes a plan in some more; one on another machine may be gone."""
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Applied:
    """What came of a file.

    Attributes:
        change: what it changes.
        applied: whether that is made so.
        outcome: of the session that did it, where no driver ran.
    """

    change: Change
    applied: bool = False
    outcome: SweepOutcome | None = None


def apply(options: Options, console: Console, agree: Callable[[Change], bool] = lambda change: True) -> Applied:
    """Applies a sweep file to the sweep of its name, which runs, was stopped, or has ended.

    Args:
        agree: shows the change to a person, and says whether it is to be made; not called if there is none.
    """
    plan, options = plan_change(replace(options, resume=True, edited=True), console)
    folder = SweepFolder(plan.sweep.folder)
    recorded, state = recorded_sweep(folder.path), read_state(folder.record)
    check_name(folder.path, state, plan.sweep.name)
    driven = is_driven(folder.path)
    change = find_change(recorded, plan, state, driven)
    if change and driven:
        assert recorded is not None, "a driver writes the effective file first"
        check_change(recorded, plan.sweep)
        new = [trial for trial in (*plan.trials, *plan.examples) if trial.key not in state.entries]
        if new:  # before the driver gets them
            check_data(plan.sweep, state.entries.values(), prepare(new, elsewhere=True))
    if not change:
        options.remember(folder, plan.sweep.written)  # or --resume would refuse a file that says the same in another way
    if not change or not agree(change):
        return Applied(change)
    if is_driven(folder.path) and _hand_in(folder, apply_request(plan.sweep, options)):
        return Applied(change, applied=True)
    return Applied(change, applied=True, outcome=_continue(folder, plan, options, console))


def ask(folder: Path, verb: Verb, trial: str | None = None) -> RequestReport:
    """Asks a sweep's driver to pause or continue the sweep, or to stop a trial or run it again; returns what came of it.

    Args:
        trial: a trial's key, its beginning, or `CONFIGURATION · TASK · seed N`; with `stop` and `retry`.
    """
    place = SweepFolder(folder.absolute())
    if not place.record.exists():
        raise SweepError([f"{folder} holds no sweep that has begun"])
    state = read_state(place.record)
    keys = affected(state, verb, trial)
    names = ", ".join(state.entries[key].trial.name for key in keys)
    request, action = new_request(verb, keys[0] if trial and len(keys) == 1 else trial), f"{verb}{': ' if names else ''}{names}"
    done = is_driven(place.path) and _hand_in(place, request)
    if not done:
        request.write(place)
    text = f"done: {action}" if done else f"{action}: no driver runs; the next session does it first"
    command = "" if done else state.again
    return RequestReport(sweep=state.name, verb=verb, done=done, trials=keys, text=text, command=command)


def _hand_in(folder: SweepFolder, request: Request) -> bool:
    """Gives the driver a request, and waits for the answer; False if the driver has ended without one."""
    request.write(folder)
    until = time.monotonic() + ANSWER_SECONDS
    while request.is_there(folder):
        if not is_driven(folder.path):
            request.remove(folder)
            return request.name in read_state(folder.record).answered
        if time.monotonic() >= until:
            silence = f"{holder_of(folder.path)} has not answered in {ANSWER_SECONDS:.0f} s"
            raise SweepError([f"{silence}; the request waits for it, or for the next session"])
        time.sleep(LOOK_SECONDS)
    if (why := request.take_refusal(folder)) is not None:
        raise SweepError(why.splitlines())
    return True


def _continue(folder: SweepFolder, plan: Plan, options: Options, console: Console) -> SweepOutcome:
    """Does what `run --resume` does with the file. What was asked for by older files is out of date."""
    for request in pending(folder):
        if request.verb == "apply":
            request.remove(folder)
    return run_plan(plan, options, console)
