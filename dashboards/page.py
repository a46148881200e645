"""The page: its content (the state of the sweeps, and the spec of each panel), and its text, live or exported.

A live page asks for the state, which is small, every two seconds. It asks for a panel's spec only when the state's revision has
grown and the panel is on the screen. Both pages are the same template, style and scripts. The exported file holds its data and
plotly's script compressed (plotly.min.js alone is 4.8 MB) and unpacks them in the browser. Its content security policy allows
nothing but the very scripts it was written with: no request can leave it, wherever it is opened.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import logging
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dashboards.frames import Frames
from dashboards.panels import PANELS, SECTIONS, Panel, View
from dashboards.store import Feed, Store, SweepEntry
from orchestrator.review.progress import PHASES, describe_running, is_running
from orchestrator.review.run_columns import Unclear
from orchestrator.review.run_table import read_table
from orchestrator.tools.secrets import redact

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("figure.js", "table.js", "page.js")
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def view_of(store: Store, feeds: Sequence[Feed]) -> View:
    uri = "" if store.is_default or store.shown_uri != store.uri else store.uri
    return View([feed.frames for feed in feeds], store.run_link, store.predictions, uri)


def state_of(entries: Sequence[SweepEntry], view: View, troubles: Sequence[str] = (), foot: str = "") -> dict[str, Any]:
    """Returns the list of sweeps, which of them are shown, their progress, and the panels of the page. `troubles` says why
    sweeps cannot be read."""
    reports = [frame.progress() for frame in view.sweeps]
    parts = [", ".join([now.counts, *{"running": now.times, "lost": [PHASES["lost"]]}.get(now.phase, [])]) for now in reports]
    if len(parts) > 1:
        parts = [f"{name}: {part}" for name, part in zip(view.names, parts, strict=True)]
    lost = {frame.name for frame in view.sweeps if frame.is_lost}
    statuses = {entry.name: "interrupted" if entry.name in lost else entry.status for entry in entries}
    return {
        "sweeps": [{"name": name, "status": status, "shown": name in view.names} for name, status in statuses.items()],
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
    if answer is not None and is_running(frame.state, now):
        answer = answer.running(describe_running(frame.state, now))
    return "\n".join([*([answer.text] if answer is not None else []), *added])


def safe_spec(panel: Panel, view: View) -> dict[str, Any]:
    """Returns a panel's spec; if a panel raises an error, its place shows that, and the other panels are not affected."""
    try:
        return panel.draw(view)
    except Exception as error:  # whatever a store holds, the rest of the page must stand
        return explain(panel, error)


def explain(panel: Panel, error: Exception) -> dict[str, Any]:
    """Returns the spec in place of a panel that raised an error."""
    reason = redact(f"{type(error).__name__}: {error}")
    log.warning("the panel %s cannot be drawn: %s", panel.name, reason)
    return {"empty": f"This panel could not be drawn: {reason}"}


def everything(store: Store, name: str) -> dict[str, Any]:
    entry = next(iter(store.sweeps(name)), SweepEntry(name, ""))
    feed = store.feed(entry.name, entry.run)
    feed.refresh()
    return _exported(entry, view_of(store, [feed]), "from the tracking store")


def everything_in(file: Path) -> dict[str, Any]:
    """Returns the data of one exported file on somebody's table of trainings."""
    try:
        table = read_table(file)
    except Unclear as error:
        raise ValueError(f"{error}\n`page` has no options for that: rename the columns, until `judge` needs none") from error
    view = View([Frames(file.name, table.record.state)])
    return _exported(SweepEntry(file.name, "finished"), view, f"from {file}")


def _exported(entry: SweepEntry, view: View, source: str) -> dict[str, Any]:
    moment = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    state = state_of([entry], view, [], f"Exported {moment} {source}. This file needs no network.")
    state["status"] = f"{state['sweeps'][0]['status']} · {state['status']}"
    return {"state": state, "specs": {row.name: safe_spec(row, view) for row in PANELS.values()}}


def as_json(value: Any) -> str:
    """Returns compact JSON. Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@cache
def plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def live_page() -> str:
    """Returns the page that a server serves with `static/` and `plotly.js`."""
    # a browser may keep the script until its version changes
    address = f'<link rel="preload" as="script" id="plotly-address" href="plotly.js?v={version("plotly")}">'
    scripts = "".join(f'<script src="static/{name}" defer></script>\n' for name in SCRIPTS)
    return _template() % {
        "csp": "",
        "title": "CRAFT sweeps",
        "style": f'{address}\n<link rel="stylesheet" href="static/app.css">',
        "scripts": scripts,
    }


def export_page(title: str, payload: Mapping[str, Any]) -> str:
    # the HTML parser turns every newline into \n, and the hashes must match the text that it leaves
    plotly = plotly_script().replace("\r\n", "\n")
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy = (
        # plotly writes style elements
        f"default-src 'none'; script-src {_hash(script)} {_hash(plotly)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template() % {
        "csp": f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n',
        "title": html.escape(title),
        "style": f"<style>{(STATIC / 'app.css').read_text(encoding='utf-8')}</style>",
        "scripts": "".join(
            [
                f'<script type="text/plain" id="content">{_packed(as_json(payload))}</script>\n',
                f'<script type="text/plain" id="plotly">{_packed(plotly)}</script>\n',
                f"<script>{script}</script>",
            ]
        ),
    }


def _template() -> str:
    return (STATIC / "page.html").read_text(encoding="utf-8")


def _packed(text: str) -> str:
    # without the time, so that the same content gives the same file
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
