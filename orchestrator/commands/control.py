"""`apply`, `pause`, `continue`, `stop` and `retry`: what people ask of a sweep that exists."""

from __future__ import annotations

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
from orchestrator.record.options import Options
from orchestrator.tools.quiet import write_report

if TYPE_CHECKING:
    from orchestrator.driver.change import Change
    from orchestrator.record.events import Verb

Trial = Annotated[
    str, typer.Argument(metavar="TRIAL", help="A trial's key, its beginning, or 'CONFIGURATION · TASK · seed N'; see `status`.")
]


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
    from orchestrator.commands.steering import apply as apply_file

    options = Options(
        sweep,
        changes_of(changes, within),
        name,
        storage,
        tracking_uri,
        address,
        verbosity="quiet" if as_json else "normal",
        own_process=True,
    )
    console = screen(quiet=as_json, lasting=True)

    def agree(change: Change) -> bool:
        console.print(change.text, markup=False, soft_wrap=True)
        return yes or (not as_json and typer.confirm("Apply it?"))

    done = apply_file(options, console, agree)
    if as_json:
        write_report(done.change.model_copy(update={"applied": done.applied}).to_json())
    elif not done.change:
        console.print(done.change.text, markup=False, soft_wrap=True)
    elif done.applied and done.outcome is None:
        console.print("applied: the driver continues with this file", markup=False, soft_wrap=True)
    return exit_status(done.outcome) if done.outcome is not None else 0


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
    from orchestrator.commands.steering import ask
    from orchestrator.review.past_sweep import find_folder

    report = ask(find_folder(sweep, storage), verb, trial)
    write_report(report.to_json()) if as_json else screen().print(report.text, markup=False, soft_wrap=True)
