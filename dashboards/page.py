"""The page as text: the live one, which asks the server for its data, and the exported one, which carries everything.

Both are the same template, style and scripts. The exported file holds its data and plotly's script compressed (plotly.min.js
alone is 4.8 MB) and unpacks them in the browser. Its content security policy allows nothing but the very scripts it was written
with: no request can leave it, wherever it is opened.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("figure.js", "table.js", "page.js")
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


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
