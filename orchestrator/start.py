"""From a sweep file to a session: what a person asks for, checked before anything heavy is imported.

Call --> load_sweep --> make_plan --> claim the folder --> run_session --> front
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.record.folder import SweepFolder
from orchestrator.record.overrides import Override, make_overrides, recall
from orchestrator.record.resume import check_begun, check_resume
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.secrets import redact
from orchestrator.tracking.uri import resolve_uri

if TYPE_CHECKING:
    from orchestrator.driver.options import Verbosity
    from orchestrator.driver.outcome import SweepOutcome
    from orchestrator.plan.plan import Plan


CONTINUE = "CRAFT_CONTINUE"
"""The environment variable in which a job script names the command that continues it. There `--resume` may start the sweep."""


@dataclass(frozen=True)
class Call:
    """What a person asks of a sweep file.

    Attributes:
        file: the sweep file.
        assignments: changes of its values, as `key.path=value`.
        within: the points of `enough.within`.
        name: the sweep's name, instead of the file's.
        storage: where runs are kept; a URI holds checkpoints alone.
        tracking_uri: the MLflow store, instead of the file's.
        resume: continue the sweep of this name.
        as_written: ignore what earlier sessions changed.
        retry_failed: run every failed trial again.
        address: a Ray cluster to join; this machine alone if absent.
        max_concurrent: trials at once, at most.
        cpus: cores of this machine to use.
        again: the command that continues the sweep, for people.
        own_process: whether the process is this call's alone, so that another one may take its place.
        until_answered: whether the sweep continues until its answer is decided.
        hours: the hours of the session, instead of the file's.
    """

    file: str
    assignments: tuple[str, ...] = ()
    within: float | None = None
    name: str | None = None
    storage: str | None = None
    tracking_uri: str | None = None
    resume: bool = False
    as_written: bool = False
    retry_failed: bool = False
    address: str | None = None
    max_concurrent: int | None = None
    cpus: int | None = None
    verbosity: Verbosity = "normal"
    again: str = ""
    own_process: bool = False
    until_answered: bool = False
    hours: float | None = None

    @property
    def restart(self) -> list[str]:
        """The arguments of Python that continue the sweep in place of this process; none if it may not be replaced."""
        words = shlex.split(self.again)
        if not self.own_process or CONTINUE in os.environ or "run" not in words or "***" in self.again:
            return []
        return ["-m", "orchestrator", *words[words.index("run") :], *(["--json"] if "--json" in sys.argv else [])]

    @property
    def remote(self) -> str | None:
        """The URI under which checkpoints and adapters are kept; None if they are in the sweep's folder."""
        return self.storage if self.storage is not None and "://" in self.storage else None

    def store_of(self, sweep: Sweep) -> str:
        """Returns the address of the run's MLflow store. Raises ValueError if it is wrong."""
        return resolve_uri(self.tracking_uri or sweep.tracking.uri)

    @property
    def changes(self) -> list[str]:
        """All changes of the file's values, those of flags included."""
        changes = list(self.assignments)
        if self.within is not None:
            changes.append(f"enough.within={self.within}")
        if self.until_answered:
            changes.append("search.until=answered")
        if self.hours is not None:
            seconds = round(3600 * self.hours)
            changes.append(f"budget.wall_clock={f'{seconds // 60}min' if seconds % 60 == 0 else f'{seconds}s'}")
        if self.name is not None:
            changes.append(f"name={json.dumps(self.name)}")
        if self.storage is not None and self.remote is None:
            changes.append(f"storage={json.dumps(self.storage)}")
        if self.tracking_uri is not None and redact(self.tracking_uri) == self.tracking_uri:
            changes.append(f"tracking.uri={json.dumps(self.tracking_uri)}")
        return changes


def plan_sweep(call: Call, console: Console) -> Plan:
    """Returns the plan of a call; with `resume`, of the sweep with what earlier sessions changed.

    Raises:
        ValueError: the file, a change or the tracking store's address is wrong.
    """
    sweep, _, lines = _load(call, recalled=call.resume)
    call.store_of(sweep)
    if call.resume:
        _check_resumes(call, sweep)
    return _make_plan(sweep, lines, console)


def plan_call(call: Call, console: Console) -> tuple[Plan, list[Override]]:
    """Returns the plan of a call that continues a sweep, and what the call and earlier sessions change in its file.

    Raises:
        ValueError: the file, a change or the tracking store's address is wrong, there is no such sweep, or the folder holds
            another one.
    """
    sweep, overrides, lines = _load(call, recalled=True)
    call.store_of(sweep)
    advice = "correct its name, or run it: craft-sweeps run"
    check_begun(sweep, f"there is no sweep {sweep.name} in", f"{advice} {call.file}")
    check_resume(sweep.folder, sweep)
    return _make_plan(sweep, lines, console), overrides


def run_file(call: Call, console: Console) -> SweepOutcome:
    """Runs a sweep file, or continues its sweep.

    Raises:
        ValueError: the call is refused, and nothing has been trained.
    """
    if call.retry_failed and not call.resume:
        raise SweepError(["--retry-failed goes with --resume: it runs the failed trials of a sweep again that exists already"])
    sweep, overrides, lines = _load(call, recalled=True)
    call.store_of(sweep)
    resume = _check_name(call, sweep)
    return run_plan(_make_plan(sweep, lines, console), call, overrides, resume, console)


def run_plan(plan: Plan, call: Call, overrides: Sequence[Override], resume: bool, console: Console) -> SweepOutcome:
    """Runs what remains of a plan in a session.

    Args:
        overrides: what the call and earlier sessions change in the file.
        resume: whether the folder may hold this sweep.

    Raises:
        ValueError: the call is refused, and nothing has been trained.
    """
    from orchestrator.driver.options import RunOptions, check_answers, check_socket_room
    from orchestrator.record.checkpoints import within
    from orchestrator.session import run_session

    sweep = plan.sweep
    with _claimed(sweep.folder):
        check_answers(call.address) if call.address is not None else check_socket_room()
        options = RunOptions(
            folder=sweep.folder,
            storage=within(call.remote, sweep.name) if call.remote is not None else None,
            address=call.address,
            resume=resume,
            retry_failed=call.retry_failed,
            max_concurrent=call.max_concurrent,
            cpus=call.cpus,
            sweep_file=Path(call.file),
            overrides=tuple(overrides),
            verbosity=call.verbosity,
        )
        return run_session(plan, options, call.tracking_uri or sweep.tracking.uri, console, call.again, call.restart)


def _make_plan(sweep: Sweep, lines: list[str], console: Console) -> Plan:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    from orchestrator.plan.plan import make_plan

    with console.status("counting parameters on the meta device ...") if console.is_terminal else nullcontext():
        return make_plan(sweep)


def _load(call: Call, recalled: bool) -> tuple[Sweep, list[Override], list[str]]:
    """Returns the sweep, what this call and earlier sessions change in its file, and sentences about that.

    Args:
        recalled: whether changes of earlier sessions count.
    """
    file, changes = Path(call.file), call.changes
    sweep = load_sweep(file, changes)
    overrides = make_overrides(file, changes)
    if call.as_written or not recalled or not SweepFolder(sweep.folder).effective.exists():
        return sweep, overrides, []
    earlier, lines = recall(sweep.folder, file, overrides)
    return load_sweep(file, [*(override.assignment for override in earlier), *changes]), [*earlier, *overrides], lines


def _check_name(call: Call, sweep: Sweep) -> bool:
    """Returns whether the call continues a sweep of this name; asks on a terminal.

    Raises:
        SweepError: the folder holds another sweep, or this one and the call does not continue it.
    """
    folder = sweep.folder
    if call.resume:
        _check_resumes(call, sweep)
    if not SweepFolder(folder).effective.exists():
        return call.resume
    check_resume(folder, sweep)
    if call.resume:
        return True
    question = f"{folder} holds this sweep already."
    if sys.stdin.isatty() and sys.stdout.isatty() and call.verbosity != "quiet":
        with suppress(EOFError):
            if input(f"{question} Continue it? [Y/n] ").strip().lower() in ("", "y", "yes"):
                return True
        raise SweepError(["nothing done; give another --name for a sweep of its own"])
    raise SweepError([f"{question} Add --resume to continue it (finished trials are kept), or give another --name"])


def _check_resumes(call: Call, sweep: Sweep) -> None:
    """Raises SweepError if there is nothing to resume, unless a job script runs, which starts and continues by one command."""
    if CONTINUE in os.environ:
        return
    if call.remote is not None:
        from orchestrator.record.checkpoints import attempts, within

        if attempts(within(call.remote, sweep.name)):
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
        if folder in new and not SweepFolder(folder).record.exists():
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # a parent has other files
                for path in new[1:]:
                    path.rmdir()
        raise
