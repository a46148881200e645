"""What the record of a sweep says of the sweep itself: the effective file, and the start of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from craft.disk import replacing
from craft.words import redact
from orchestrator.plan.plan import Plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import make_manifest, origin
from orchestrator.state.events import SessionStarted
from orchestrator.sweepfile.sweep import Sweep

HEADING = "# The effective sweep file: what {name} runs with, defaults written out.\n"


def describe_session(
    plan: Plan, fingerprints: Mapping[str, str] | None = None, file: Path | None = None, again: str = ""
) -> SessionStarted:
    """Returns the start of a session that begins now.

    Args:
        fingerprints: of the data, by task.
        file: the sweep file.
        again: the command that continues the sweep.
    """
    manifest = make_manifest(seeds=plan.sweep.reported_seeds, data=fingerprints)
    return SessionStarted(**describe_plan(plan), again=again, origin=origin(file), manifest=manifest)


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Returns the effective file of a plan, and the most configurations and trainings that it has."""
    configurations = plan.wanted if plan.adaptive else len(plan.configurations)
    return {"sweep": plan.sweep.model_dump(mode="json"), "configurations": configurations, "trainings": plan.most_jobs}


def record_in(plan: Plan, uri: str) -> Plan:
    """Returns the plan with the store at `uri` in its effective file, without a password."""
    tracking = plan.sweep.tracking.model_copy(update={"uri": redact(uri)})
    return replace(plan, sweep=plan.sweep.model_copy(update={"tracking": tracking}))


def effective_text(sweep: Sweep) -> str:
    """Returns the effective file of a sweep."""
    return HEADING.format(name=sweep.name) + sweep.to_yaml()


def write_effective(folder: SweepFolder, sweep: Sweep) -> None:
    """Writes the effective file of a sweep."""
    with replacing(folder.effective) as aside:
        aside.write_text(effective_text(sweep), encoding="utf-8")
