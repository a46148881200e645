"""From a sweep file to a session: what a person asks for, checked before anything heavy is imported.

Options --> load_sweep --> make_plan --> claim the folder --> run_session --> front
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.record.folder import SweepFolder, holder_of
from orchestrator.record.options import CONTINUE, Options, check_answers, check_socket_room
from orchestrator.record.resume import check_begun, check_resume, recorded_sweep
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.secrets import redact
from orchestrator.tracking.client import resolve_uri

if TYPE_CHECKING:
    from orchestrator.driver.display import SweepOutcome
    from orchestrator.plan.plan import Plan


def plan_sweep(options: Options, console: Console) -> Plan:
    """Returns the plan of a sweep file; with `resume`, of the sweep as it was recorded."""
    if not options.resume:
        sweep = load_sweep(options.sweep, options.assignments)
        store_of(options, sweep)
    else:
        sweep, options = _load(options)
        _check_resumes(options, sweep)
    return _make_plan(sweep, console)


def plan_change(options: Options, console: Console) -> tuple[Plan, Options]:
    """Returns the plan of a file that may change a sweep that exists, and the options with all changes of the file."""
    sweep, options = _load(options)
    advice = "correct its name, or run it: craft-sweeps run"
    check_begun(sweep, f"there is no sweep {sweep.name} in", f"{advice} {shlex.quote(options.sweep)}")
    return _make_plan(sweep, console), options


def run_file(options: Options, console: Console) -> SweepOutcome:
    """Runs a sweep file, or continues its sweep. Raises ValueError where nothing has been trained."""
    if options.retry_failed and not options.resume:
        raise SweepError(["--retry-failed goes with --resume: it runs the failed trials of a sweep again that exists already"])
    sweep, options = _load(options)
    options = replace(options, resume=_check_name(options, sweep))
    return run_plan(_make_plan(sweep, console), options, console)


def run_plan(plan: Plan, options: Options, console: Console) -> SweepOutcome:
    from orchestrator.commands.session import run_session

    with _claimed(plan.sweep.folder):
        check_answers(options.address) if options.address is not None else check_socket_room()
        outcome = run_session(plan, options, store_of(options, plan.sweep), console)
    if outcome.trouble:
        Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False).print(redact(outcome.trouble))
    return outcome


def store_of(options: Options, sweep: Sweep) -> str:
    """Returns the address of the run's MLflow store. Raises ValueError if it is wrong."""
    return resolve_uri(options.tracking_uri or sweep.tracking.uri)


def _make_plan(sweep: Sweep, console: Console) -> Plan:
    from orchestrator.plan.plan import make_plan

    with console.status("counting parameters on the meta device ...") if console.is_terminal else nullcontext():
        return make_plan(sweep)


def _load(options: Options) -> tuple[Sweep, Options]:
    """Returns the sweep of a file with the changes by which it was recorded, and the options with them."""
    sweep = load_sweep(options.sweep, options.assignments)
    store_of(options, sweep)
    continued, recorded = options.continued(sweep), recorded_sweep(sweep.folder)
    if continued is not options:
        sweep = load_sweep(options.sweep, continued.assignments)
    if recorded is not None and recorded.search.row.samples and sweep.chosen:  # `auto` stays what it was
        sweep = load_sweep(options.sweep, [*continued.assignments, f"search.algorithm={recorded.search.algorithm}"])
    check_resume(sweep.folder, sweep, recorded)
    return sweep, continued


def _check_name(options: Options, sweep: Sweep) -> bool:
    if options.resume:
        _check_resumes(options, sweep)
        return True
    if not SweepFolder(sweep.folder).effective.exists():
        return False
    question = f"{sweep.folder} holds this sweep already."
    if sys.stdin.isatty() and sys.stdout.isatty() and not options.quiet:
        with suppress(EOFError):
            if input(f"{question} Continue it? [Y/n] ").strip().lower() in ("", "y", "yes"):
                return True
        raise SweepError(["nothing done; give another --name for a sweep of its own"])
    raise SweepError([f"{question} Add --resume to continue it (finished trials are kept), or give another --name"])


def _check_resumes(options: Options, sweep: Sweep) -> None:
    """Raises SweepError if there is nothing to resume, unless a job script runs, which starts and continues by one command."""
    if CONTINUE in os.environ:
        return
    if options.remote is not None:
        from orchestrator.record.checkpoints import attempts

        if attempts(options.storage_of(sweep.folder)):
            return  # the log may be lost, the checkpoints are not
    advice = "resume it in the folder where it was started, or with its --storage; without --resume it starts here"
    check_begun(sweep, "there is nothing to resume in", advice)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Makes the sweep's folder, and removes what it made if the sweep is refused before any of its trials began."""
    from orchestrator.record.checkpoints import check_writable

    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        check_writable(str(folder.absolute()))
        yield
    except (ValueError, OSError):
        if folder in new and not SweepFolder(folder).record.exists() and holder_of(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # a parent has other files
                for path in new[1:]:
                    path.rmdir()
        raise
