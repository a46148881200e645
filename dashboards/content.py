"""The content of the page, live or exported: the state of the sweeps and the spec of each panel.

A live page asks for the state, which is small, every two seconds. It asks for a panel's spec only when the state's revision has
grown and the panel is on the screen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dashboards.frames import Frames
from dashboards.panels import PANELS, SECTIONS, Panel, View, spec_of
from dashboards.store import Feed, Store, SweepEntry
from orchestrator.review.progress import describe_running, is_recent
from orchestrator.review.run_table import read_table
from orchestrator.sweepfile.settings import default_uri

log = logging.getLogger(__name__)


def view_of(store: Store, feeds: Sequence[Feed]) -> View:
    uri = store.uri if store.uri != default_uri() and store.shown_uri == store.uri else ""
    return View([feed.frames for feed in feeds], store.run_link, store.predictions, uri)


def state_of(entries: Sequence[SweepEntry], view: View, troubles: Sequence[str] = (), foot: str = "") -> dict[str, Any]:
    """Returns the list of sweeps, which of them are shown, their progress, and the panels of the page. `troubles` says why
    sweeps cannot be read."""
    reports = [frame.progress() for frame in view.sweeps]
    parts = [", ".join([now.counts, *(now.times if now.phase == "running" else [])]) for now in reports]
    if len(parts) > 1:
        parts = [f"{name}: {part}" for name, part in zip(view.names, parts, strict=True)]
    return {
        "sweeps": [{"name": entry.name, "status": entry.status, "shown": entry.name in view.names} for entry in entries],
        "running": any(now.phase == "running" for now in reports),
        "status": " · ".join([*filter(None, troubles)] or parts),
        "answers": [
            {"sweep": frame.name, "text": text, "folder": frame.folder} for frame in view.sweeps if (text := answer_text(frame))
        ],
        "sections": SECTIONS,
        "panels": [
            {key: getattr(row, key) for key in ("name", "title", "section", "about", "wide")} for row in PANELS.values()
        ],
        "foot": foot,
    }


def answer_text(frame: Frames) -> str:
    """Returns a sweep's answer, if it has one, and why trials were added."""
    added = [f"Added: {decision.why}" for decision in frame.state.decisions]
    answer, now = frame.answer, time.time()
    if answer is not None and is_recent(frame.state, now):
        answer = answer.running(describe_running(frame.state, now))
    return "\n".join([*([answer.text] if answer is not None else []), *added])


def safe_spec(panel: Panel, view: View) -> dict[str, Any]:
    """Returns a panel's spec; if a panel raises an error, its place shows that, and the other panels are not affected."""
    try:
        return spec_of(panel, view)
    except Exception as error:  # whatever a store holds, the rest of the page must stand
        log.exception("the panel %s cannot be drawn", panel.name)
        return {"empty": f"This panel could not be drawn: {type(error).__name__}: {error}"}


def everything(store: Store, name: str) -> dict[str, Any]:
    entry = next(iter(store.sweeps(name)), SweepEntry(name, ""))
    feed = store.feed(entry.name, entry.run)
    feed.refresh()
    return _exported(entry, view_of(store, [feed]), "from the tracking store")


def everything_in(file: Path) -> dict[str, Any]:
    """Returns the data of one exported file on somebody's table of trainings."""
    view = View([Frames(file.name, read_table(file).record.state)])
    return _exported(SweepEntry(file.name, "finished"), view, f"from {file}")


def _exported(entry: SweepEntry, view: View, source: str) -> dict[str, Any]:
    moment = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    state = state_of([entry], view, [], f"Exported {moment} {source}. This file needs no network.")
    state["status"] = f"{entry.status} · {state['status']}"
    return {"state": state, "specs": {row.name: safe_spec(row, view) for row in PANELS.values()}}
