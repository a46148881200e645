"""`apply`, `pause`, `continue`, `stop` and `retry`: what people ask of a sweep that exists.

a driver runs     a request in runs/NAME, which the driver answers between two events (`orchestrator.driver.request`)
none does         `apply` continues the sweep as `run --resume` does; another request waits for the next session
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands.options import (
    Address,
    AsJson,
    Changes,
    Folders,
    Name,
    Storage,
    Store,
    Sweep,
    SweepFile,
    Within,
    changes_of,
    screen,
)
from orchestrator.record.folder import SweepFolder, holder_of, is_driven
from orchestrator.record.options import Options
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.tools.quiet import write_report

if TYPE_CHECKING:
    from orchestrator.driver.request import Request, RequestReport
    from orchestrator.record.events import Verb

Trial = Annotated[
    str, typer.Argument(metavar="TRIAL", help="A trial's key, its beginning, or 'CONFIGURATION · TASK · seed N'; see `status`.")
]
ANSWER_SECONDS = 120.0
"""A driver that lives answers within a second, and makes a plan in some more; one on another machine may be gone."""
LOOK_SECONDS = 0.2


def apply(
    sweep: SweepFile,
    changes: Changes = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    within: Within = None,
    name: Name = None,
    storage: Storage = None,
    tracking_uri: Store = None,
    address: Address = None,
    as_json: AsJson = False,
) -> int:
    """Apply an edited sweep file to its sweep.

    The sweep of that name may be running, stopped or finished. Prints what would change and what it costs, and asks. A running
    driver switches to the file and keeps the running trials that are still wanted; if no driver runs, the sweep continues here
    with the file.

    Exit status: that of `craft-sweeps run` if the sweep continues here; 2 the file is refused, and nothing has changed.
    """
    from orchestrator.commands.run import exit_status
    from orchestrator.commands.start import plan_change, run_plan
    from orchestrator.driver.change import check_change, find_change
    from orchestrator.driver.request import apply_request, pending
    from orchestrator.record.log import read_state
    from orchestrator.record.resume import changed_plugins, check_data, check_name, recorded_sweep
    from orchestrator.worker.preparation import prepare

    options = Options(
        sweep,
        changes_of(changes, within),
        name,
        storage,
        tracking_uri,
        address,
        resume=True,
        edited=True,
        quiet=as_json,
        own_process=True,
    )
    console = screen(quiet=as_json, lasting=True)
    plan, options = plan_change(options, console)
    folder = SweepFolder(plan.sweep.folder)
    recorded, state, driven = recorded_sweep(folder.path), read_state(folder.record), is_driven(folder.path)
    check_name(folder.path, state, plan.sweep.name)
    change = find_change(recorded, plan, state, driven)
    if not change:
        options.remember(folder, plan.sweep.written)  # or --resume would refuse a file that says the same in another way
    if change and driven:
        assert recorded is not None, "a driver writes the effective file first"
        check_change(recorded, plan.sweep, changed_plugins(state))
        new = [trial for trial in (*plan.trials, *plan.examples) if trial.key not in state.entries]
        if new:  # before the driver gets them
            check_data(plan.sweep, state.entries.values(), prepare(new, elsewhere=True))
    console.print(change.text, markup=False, soft_wrap=True)
    outcome, agreed = None, bool(change) and (yes or (not as_json and typer.confirm("Apply it?")))
    if agreed and is_driven(folder.path) and _hand_in(folder, apply_request(plan.sweep, options)):
        console.print("applied: the driver continues with this file", markup=False, soft_wrap=True)
    elif agreed:
        for request in pending(folder):
            if request.verb == "apply":  # of an older file
                request.remove(folder)
        outcome = run_plan(plan, options, console)
    if as_json:
        write_report(change.model_copy(update={"applied": agreed}).to_json())
    return exit_status(outcome) if outcome is not None else 0


def pause(sweep: Sweep, storage: Folders = None, as_json: AsJson = False) -> None:
    """Pause a sweep: no further trial starts.

    Running trials pause at their next evaluation and keep their checkpoints; `continue` resumes them."""
    _ask(sweep, storage, as_json, "pause")


def continue_(sweep: Sweep, storage: Folders = None, as_json: AsJson = False) -> None:
    """Continue a paused sweep."""
    _ask(sweep, storage, as_json, "continue")


def stop(sweep: Sweep, trial: Trial, storage: Folders = None, as_json: AsJson = False) -> None:
    """Stop a running or waiting trial.

    It ends with its last evaluation and does not count as failed."""
    _ask(sweep, storage, as_json, "stop", trial)


def retry(sweep: Sweep, trial: Trial, storage: Folders = None, as_json: AsJson = False) -> None:
    """Run a failed or stopped trial again.

    It continues from its last checkpoint."""
    _ask(sweep, storage, as_json, "retry", trial)


def _ask(sweep: str, storage: str | None, as_json: bool, verb: Verb, trial: str | None = None) -> None:
    from orchestrator.review.past_sweep import find_folder

    report = ask(find_folder(sweep, storage), verb, trial)
    write_report(report.to_json()) if as_json else screen().print(report.text, markup=False, soft_wrap=True)


def ask(folder: Path, verb: Verb, trial: str | None = None) -> RequestReport:
    """Asks a sweep's driver to pause or continue the sweep, or to stop a trial or run it again; returns what came of it."""
    from orchestrator.driver.request import RequestReport, affected, new_request
    from orchestrator.record.log import read_state

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
    from orchestrator.record.log import read_state

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
