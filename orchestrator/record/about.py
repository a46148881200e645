"""What the record of a sweep says of the sweep itself: the effective file, and the parameters of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from craft.disk import replacing
from craft.words import redact
from orchestrator.plan.plan import Plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import make_manifest, origin
from orchestrator.sweepfile.sweep import Sweep


def describe_session(
    folder: SweepFolder, plan: Plan, fingerprints: Mapping[str, str], file: Path | None, again: str
) -> dict[str, Any]:
    """Returns what the record says of a session that starts now.

    Args:
        folder: holds the effective file.
        fingerprints: of the data, by task.
        file: the sweep file.
        again: the command that continues the sweep.
    """
    sweep = plan.sweep
    manifest = make_manifest(sweep.model_dump(mode="json"), seeds=sweep.reported_seeds, data=fingerprints)
    return describe_plan(folder, plan) | {"again": again, "origin": origin(file), "manifest": manifest}


def describe_plan(folder: SweepFolder, plan: Plan) -> dict[str, Any]:
    """Returns the part of that which another sweep file changes."""
    sweep = plan.sweep
    return {
        "model": sweep.model,
        "tasks": ",".join(sweep.tasks),
        "seeds": ",".join(map(str, sweep.reported_seeds)),
        **({"tuning_seeds": ",".join(map(str, sweep.seeds))} if sweep.tunes else {}),
        "objectives": json.dumps(sweep.objectives),
        "enough": sweep.enough.model_dump_json(),
        "algorithm": sweep.search.algorithm,
        "scheduler": sweep.scheduler.name,
        "protocol": sweep.protocol,
        **({"compare": sweep.compare, "tuned": ",".join(sweep.tuned_settings)} if sweep.compare else {}),
        "configurations": plan.wanted if plan.adaptive else len(plan.configurations),
        "trials": plan.most_jobs,
        "sweep_yaml": folder.effective.read_text(encoding="utf-8"),
    }


def write_effective(folder: SweepFolder, sweep: Sweep, uri: str | None = None) -> None:
    """Writes the effective file of a sweep.

    Args:
        uri: the store in which it is recorded; as the last effective file has it if not given.
    """
    if uri is None and folder.effective.exists():
        uri = yaml.safe_load(folder.effective.read_text(encoding="utf-8"))["tracking"]["uri"]
    uri = sweep.tracking.uri if uri is None else uri
    tracking = sweep.tracking.model_copy(update={"uri": redact(uri)})
    text = sweep.model_copy(update={"tracking": tracking}).to_yaml()
    with replacing(folder.effective) as aside:
        aside.write_text(
            f"# The effective sweep file: what {sweep.name} runs with, defaults written out.\n{text}", encoding="utf-8"
        )
