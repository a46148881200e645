"""`run`, and two looks at what it would do: `plan` says what it costs, `check` whether it can end. Nothing heavier than
pydantic is imported until the file has been checked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands.options import (
    WIDTH,
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
    plain_screen,
    screen,
)
from orchestrator.commands.start import plan_sweep, run_file
from orchestrator.record.options import Options
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.tools.quiet import write_report

STARTS = (["craft-sweeps", "run"], ["python", "-m", "orchestrator.run"], ["python", "-m", "orchestrator", "run"])
"""How a command line that runs a sweep may begin."""

if TYPE_CHECKING:
    from orchestrator.driver.display import SweepOutcome


def run(
    context: typer.Context,
    sweep: SweepFile,
    changes: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep of this name.")] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="With --resume: run every failed trial again, from its last checkpoint. --resume alone does so only if the "
            "machine was at fault (memory, model, data, a crash). Use it once you have corrected another cause, such as a "
            "learning rate at which the loss was not finite.",
        ),
    ] = False,
    until_answered: Annotated[
        bool,
        typer.Option("--until-answered", help="Add seeds, sizes and rates until the answer is decided (search.until)."),
    ] = False,
    hours: Annotated[
        float | None, typer.Option(min=0.01, metavar="N", help="End this session after so many hours (budget.wall_clock).")
    ] = None,
    within: Within = None,
    name: Name = None,
    storage: Storage = None,
    tracking_uri: Store = None,
    address: Address = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, metavar="N", help="Trials at once, at most.")] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cores of this machine to use; all if not given.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
    as_json: AsJson = False,
) -> int:
    """Run a sweep and show its front of score against size.

    Exit status: 0 the sweep or its budget has ended, with an answer or, in answer.kind, why there is none; 1 trials have failed
    or the session broke off; 2 the sweep file or the call is wrong; 130 stopped by Ctrl-C, 143 by SIGTERM, 129 because its
    terminal was closed (within 15 s; trials keep their last checkpoints, --resume continues).
    """
    options = Options(
        sweep,
        changes_of(changes, within, until_answered, hours),
        name,
        storage,
        tracking_uri,
        address,
        max_concurrent,
        cpus,
        resume,
        retry_failed,
        quiet=quiet or as_json,
        start=context.obj,
        own_process=True,
    )
    console = screen(quiet or as_json, lasting=True)
    outcome = run_file(options, console)
    if as_json:
        from orchestrator.review.front_report import front_report
        from orchestrator.review.past_sweep import read_folder

        assert outcome.state.started is not None, "a session has run"
        write_report(front_report(read_folder(Path(outcome.state.started.folder))).to_json())
    return exit_status(outcome)


def plan(
    sweep: SweepFile,
    changes: Changes = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Count only trials that are left of the sweep of this name.")
    ] = False,
    within: Within = None,
    name: Name = None,
    storage: Storage = None,
    address: Address = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Estimate hours and memory on this GPU: H100, L4 ...")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --gpu: how many of them; 1 if not given.")] = None,
    tflops: Annotated[
        float | None, typer.Option(metavar="N", help="Instead of --gpu: the peak of dense products in the sweep's precision.")
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="With --gpu or --tflops: the memory of one GPU.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a sweep would run, and what it would cost.

    It lists the configurations with their parameters, steps and memory, and forecasts the time; on a GPU that is not here, by
    counted operations. Nothing is trained.

    Exit status: 0 planned; 2 the file or the call is wrong.
    """
    from orchestrator.plan.gpu_costs import find_card
    from orchestrator.plan.table import print_plan
    from orchestrator.review.prospect import look_ahead

    asked = any(option is not None for option in (gpu, gpus, tflops, memory))
    card = find_card(gpu, tflops, memory) if asked else None
    options = Options(sweep, changes_of(changes, within), name, storage, address=address, resume=resume)
    plan = plan_sweep(options, screen(quiet=as_json))
    report = look_ahead(plan, resume=resume, elsewhere=address is not None, card=card, gpus=gpus or 1)
    if as_json:
        write_report(report.to_json())
        return
    # A file or a pipe has no width to keep to: rows stay whole there, so that they can be searched.
    labels = [len(configuration.label) for configuration in plan.configurations]
    print_plan(plan, screen(width=max(WIDTH, max(labels, default=40) + 90)), report.steps, report.lines)


def check(
    sweep: SweepFile,
    changes: Changes = None,
    name: Name = None,
    storage: Storage = None,
    address: Address = None,
    machines: Annotated[
        int | None, typer.Option(metavar="N", help="With --address: how many machines the cluster must have.")
    ] = None,
    tracking_uri: Store = None,
    as_json: AsJson = False,
) -> int:
    """Check that a sweep can run to its end.

    Give it those options of the run that name file, place and cluster. Nothing is trained.

    Exit status: 0 all good (doubts are shown); 1 something would go wrong; 2 the file or the call is wrong.
    """
    from orchestrator.commands.check import CheckReport, diagnose

    options = Options(sweep, changes_of(changes), name, storage, tracking_uri, address)
    findings = [*diagnose(plan_sweep(options, screen(quiet=as_json)), options, machines if address else None)]
    report = CheckReport(ok=all(finding.level != "bad" for finding in findings), findings=findings)
    if as_json:
        write_report(report.to_json())
    else:
        report.show(screen(width=200))
    return 0 if report.ok else 1


def more(
    sweep: Sweep,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    within: Within = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> int:
    """Run what the answer of a sweep proposes.

    That is more seeds, another size or rate, or the rest of the sweep. --json without --yes runs nothing.

    Exit status: that of `craft-sweeps run`; 1 also if nothing is proposed; 2 the call is wrong.
    """
    from orchestrator.commands.app import main
    from orchestrator.review.front_report import front_report
    from orchestrator.review.past_sweep import find_folder, read_folder

    record = read_folder(find_folder(sweep, storage)).with_within(within)
    answer, again, console = record.answer, record.state.again, plain_screen(quiet=as_json)
    if not answer.command:
        raise NothingMeets(f"{answer.text}\nNothing is proposed that a command could run.")
    console.print(answer.text)
    command, changes = shlex.split(again), "; ".join(f"{key}={json.dumps(value)}" for key, value in answer.changes.items())
    start = next((start for start in STARTS if command[: len(start)] == start), None)
    if start is None:
        raise ValueError(f"the sweep is continued by a program of its own ({again}); change its file ({changes})")
    if "***" in again:
        raise ValueError(f"passwords are kept nowhere: run {again} with the whole address, and with these changes: {changes}")
    assert record.state.started is not None, "a session has run"
    place = Path(record.state.started.manifest.get("folder", ""))
    if place.is_dir() and not place.samefile(Path.cwd()):
        raise ValueError(f"the sweep's command ({again}) is meant for {place}: run this there")
    settings = {**answer.changes, **({} if within is None else {"enough.within": within})}  # a run until answered ends by it
    if (name := settings.pop("name", None)) is not None:  # a sweep of its own
        command = [*(part for part in command if part != "--resume"), "--name", name]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    if as_json and not yes:
        write_report(front_report(record).to_json())
        return 0
    if not yes and not typer.confirm("Run it?"):
        return 0
    return main(["run", *command[len(start) :], *(["--json"] if as_json else [])], start=start)


def exit_status(outcome: SweepOutcome) -> int:
    """Returns the exit status. A budget that is used up is a good end, a signal with work left is not."""
    if outcome.signal is not None and (outcome.left or outcome.open):
        return 128 + outcome.signal
    good = outcome.complete or (outcome.exhausted is not None and not outcome.failed)
    return 0 if good and not outcome.trouble else 1
