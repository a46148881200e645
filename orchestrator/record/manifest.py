"""What the record of a sweep says of the sweep itself: the effective file, the start of a session, and its manifest (versions,
source state, hardware, seeds and data), as plain data without passwords.
"""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import craft
from craft.disk import replacing
from craft.plugins import LOADED, added_rows
from craft.tasks.metrics import METRICS
from craft.words import format_bytes
from orchestrator.plan.plan import Plan
from orchestrator.plan.ways import usable_gpus
from orchestrator.record.events import SessionStarted
from orchestrator.record.folder import SweepFolder
from orchestrator.sweepfile.settings import SEARCHERS
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.secrets import redact, redacted

TRAINING = ("torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "numpy", "scipy", "scikit-learn")
METRIC_FIELDS = ("kind", "percent", "signed", "one_class", "by_token")
SEARCHER_FIELDS = ("samples", "adaptive")
PACKAGES = (*TRAINING, "ray", "mlflow", "optuna", "pydantic", "bitsandbytes")


def origin(file: Path | None) -> dict[str, str]:
    """Returns user, sweep file and the git commit of its folder, by the tags that MLflow's page shows as user and source."""
    tags: dict[str, str] = {}
    with suppress(OSError, KeyError):  # a user id without a name
        tags["mlflow.user"] = getpass.getuser()
    if file is not None:
        tags |= {"mlflow.source.name": str(file.absolute()), "mlflow.source.type": "LOCAL"}
        state = source_state(file.absolute().parent)
        tags |= {"mlflow.source.git.commit": state["commit"]} if state else {}
    return tags


@cache
def versions(packages: tuple[str, ...]) -> Mapping[str, str]:
    """Returns versions by package; a package that is not installed is left out. They are read once in a process."""
    installed = {}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def source_state(folder: Path) -> dict[str, Any]:
    """Returns the git commit of `folder` and the files that differ from it; empty if the folder is no git checkout."""
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        return {}
    changed = _output(["git", "-C", str(folder), "status", "--porcelain"]) or ""
    return {"commit": commit, "modified": [line[3:] for line in changed.splitlines()]}


def hardware() -> dict[str, Any]:
    import psutil

    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [f"{gpu.name}, {format_bytes(gpu.bytes)}" for gpu in usable_gpus()],
    }


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, check=False, encoding="utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None


HEADING = "# The effective sweep file: what {name} runs with, defaults written out.\n"


def describe_session(
    plan: Plan, fingerprints: Mapping[str, str] | None = None, file: Path | None = None, again: str = ""
) -> SessionStarted:
    manifest = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "craft_sweeps": craft.__version__,
        "source": source_state(Path(craft.__file__).resolve().parent.parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {**versions(PACKAGES)},
        "hardware": hardware(),
        "seeds": sorted(set(plan.sweep.reported_seeds)),
        "data": dict(fingerprints or {}),
        "plugins": {name: plugin.record for name, plugin in LOADED.items()},
        "added": {"metrics": added_rows(METRICS, METRIC_FIELDS), "searchers": added_rows(SEARCHERS, SEARCHER_FIELDS)},
    }
    return SessionStarted(**describe_plan(plan), again=again, origin=origin(file), manifest=dict(redacted(manifest)))


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Returns the effective file of a plan, and the most configurations and trainings that it has."""
    configurations = plan.wanted if plan.adaptive else len(plan.configurations)
    return {"sweep": plan.sweep.model_dump(mode="json"), "configurations": configurations, "trainings": plan.most_jobs}


def record_in(plan: Plan, uri: str) -> Plan:
    """Returns the plan with the store at `uri` in its effective file, without a password."""
    tracking = plan.sweep.tracking.model_copy(update={"uri": redact(uri)})
    return replace(plan, sweep=plan.sweep.model_copy(update={"tracking": tracking}))


def effective_text(sweep: Sweep) -> str:
    return HEADING.format(name=sweep.name) + sweep.to_yaml()


def write_effective(folder: SweepFolder, sweep: Sweep) -> None:
    with replacing(folder.effective) as aside:
        aside.write_text(effective_text(sweep), encoding="utf-8")
