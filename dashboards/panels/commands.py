"""The commands that the page shows for a configuration, and for two. The page runs none of them: a reader copies them."""

from __future__ import annotations

import shlex

from craft.methods import METHODS
from dashboards.panels.base import View
from orchestrator.results.summary import Summary

TAKE = "craft-sweeps take {sweep} --pick {configuration} --to {folder}{store}"
CUT = "craft-sweeps cut {sweep} --pick {configuration} --size parameters:{half} --to {folder}-cut{store}"
MORE = "craft-sweeps more {sweep}"
COMPARE = "craft-sweeps compare {first} {second} --configuration-a {a} --configuration-b {b}"
"""The page fills its fields from `sides`."""


def commands_of(view: View, sweep: str, summary: Summary) -> list[tuple[str, str]]:
    """Returns the commands for a configuration, each with its purpose; none while it has no adapter, or if it never has one, as
    in somebody's table of trainings."""
    if not summary.finished or not view.by_name[sweep].state.sweep_id:
        return []
    size, name = summary.value("trainable_parameters"), summary.configuration
    row = METHODS.get(summary.method)
    rows = [("Take its adapter", TAKE)]
    rows += [("Cut it to half its parameters", CUT)] if size >= 2 and row is not None and row.cutting is not None else []
    rows += [("Run what would settle it", MORE)]
    fields = {
        "sweep": shlex.quote(sweep),
        "configuration": shlex.quote(name),
        "folder": shlex.quote(f"adapters/{name}") if name.isalnum() else "adapter",
        "half": f"{size / 2:.0f}",
        "store": store_of(view),
    }
    return [(purpose, template.format(**fields)) for purpose, template in rows]


def sides(names: dict[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the sweep and the configuration of each id as words of a command line."""
    return {identity: [shlex.quote(part) for part in pair] for identity, pair in names.items()}


def store_of(view: View) -> str:
    """Returns the option that names the tracking store; empty for the default one, and for one with a password."""
    return f" --tracking-uri {shlex.quote(view.uri)}" if view.uri else ""
