"""`check`: can a sweep run to its end?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from craft.stdout import write_report
from orchestrator.commands.options import Address, AsJson, Changes, Storage, Store, SweepFile
from orchestrator.sweepfile.load import load_sweep
from orchestrator.tracking.uri import resolve_uri


def check(
    sweep: SweepFile,
    changes: Changes = None,
    storage: Storage = None,
    address: Address = None,
    machines: Annotated[
        int | None, typer.Option(metavar="N", help="With --address: how many machines the cluster must have.")
    ] = None,
    tracking_uri: Store = None,
    as_json: AsJson = False,
) -> int:
    """Check that a sweep can run to its end.

    Give it the options of the run. Nothing is trained.

    Exit status: 0 all good (doubts are shown); 1 something would go wrong; 2 the file or the call is wrong.
    """
    from orchestrator.check import diagnose, show
    from orchestrator.plan.plan import make_plan

    checked = load_sweep(sweep, changes or ())
    uri = resolve_uri(tracking_uri or checked.tracking.uri)
    plan, place = make_plan(checked), storage or checked.storage
    place = place if "://" in place else str(Path(place).absolute())
    findings = list(diagnose(plan, place, address, uri, machines if address else None))
    if as_json:
        from orchestrator.reports.check import check_report

        write_report(check_report(findings).to_json())
    else:
        show(findings, Console(highlight=False, width=None if sys.stdout.isatty() else 200))
    return 1 if any(finding.level == "bad" for finding in findings) else 0
