"""The live page: a few read-only routes on loopback.

Every answer carries an ETag made of the sweeps' revisions, so a page that polls gets "nothing new" for a few bytes. A sweep is
read when a page asks for it, at most every few seconds.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles

from dashboards.page import LIVE_POLICY, STATIC, as_json, explain, live_page, plotly_script, state_of, view_of
from dashboards.panels import PANELS, View
from dashboards.store import Feed, Store, SweepEntry

LOOK_EVERY_S = 2.0
SHOWN = Query(default=[], alias="sweep", description="names of the sweeps to show")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class Sweeps:
    """The sweeps that pages ask for, refreshed when they are asked for, at most every `every_s` seconds; and what is computed
    of their last revisions."""

    def __init__(self, store: Store, every_s: float = LOOK_EVERY_S) -> None:
        self.store, self.every_s = store, every_s
        self._entries: list[SweepEntry] = []
        self._listed = float("-inf")
        self._lock = threading.Lock()
        self._view = lru_cache(maxsize=4)(lambda revision, feeds: view_of(store, feeds))
        self.spec = lru_cache(maxsize=4 * len(PANELS))(lambda name, view: as_json(PANELS[name].draw(view)))

    def entries(self) -> list[SweepEntry]:
        """Returns the sweeps in the store, at most a few seconds old."""
        with self._lock:
            if time.monotonic() - self._listed > 2 * self.every_s:
                self._entries, self._listed = self.store.sweeps(), time.monotonic()
            return self._entries

    def view(self, names: Sequence[str]) -> tuple[tuple[Feed, ...], str, View]:
        """Returns the feeds of the named sweeps that are there, or else of the newest one, their revision and their rows."""
        runs = {entry.name: entry.run for entry in self.entries()}
        chosen = [name for name in dict.fromkeys(names) if name in runs] or [*runs][:1]
        feeds = tuple(self.store.feed(name, runs[name]) for name in chosen)
        for feed in feeds:
            feed.look(self.every_s)
        with self._lock:
            revision = ",".join(f"{feed.run.info.run_id}:{feed.revision}:{feed.frames.is_lost}" for feed in feeds)
            return feeds, revision, self._view(revision, feeds)

    def pace(self, feeds: Sequence[Feed]) -> str:
        """Returns how often the page looks. It is rounded: a page is sent again whenever this text changes."""
        return f"read at least every {5 * math.ceil(max(feed.wait_s(self.every_s) for feed in feeds) / 5)} s"


def make_app(store: Store, *, hosts: Sequence[str] = LOOPBACK, every_s: float = LOOK_EVERY_S) -> FastAPI:
    """Makes the application that serves the page.

    Args:
        hosts: host names that the page answers to; it refuses others, so that no foreign site can read it by pointing a name
            of its own at this machine. `["*"]` allows all.
    """
    sweeps = Sweeps(store, every_s)
    app = FastAPI(title="CRAFT sweeps", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(ValueError)
    def refuse(request: Request, error: ValueError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=404)

    @app.middleware("http")
    async def guard(request: Request, call_next):  # type: ignore[no-untyped-def]
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = LIVE_POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers.setdefault("Cache-Control", "no-cache")
        return response

    @app.get("/")
    def page() -> Response:
        return Response(live_page(), media_type="text/html")

    @app.get("/plotly.js")
    def plotly() -> Response:
        # Its address names its version, so a browser may keep it.
        keep = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(plotly_script(), media_type="text/javascript", headers=keep)

    @app.get("/api/state")
    def state(request: Request, names: list[str] = SHOWN) -> Response:
        entries = sweeps.entries()
        if not entries:
            message = f"The tracking store {store.shown_uri!r} holds no sweep yet. The first appears here as it starts."
            return _answer(request, ["none"], lambda: as_json({"sweeps": [], "message": message}))
        feeds, revision, view = sweeps.view(names)
        foot = f"Tracking store: {store.shown_uri} · {sweeps.pace(feeds)}"
        text = as_json(state_of(entries, view, [feed.trouble for feed in feeds], foot) | {"revision": revision})
        return _answer(request, [text], lambda: text)

    @app.get("/api/panel/{name}")
    def panel(request: Request, name: str, names: list[str] = SHOWN) -> Response:
        if name not in PANELS:
            raise ValueError(f"there is no panel {name!r}; there are {', '.join(PANELS)}")
        _, revision, view = sweeps.view(names)
        try:
            return _answer(request, [revision, *view.names], lambda: sweeps.spec(name, view))
        except Exception as error:  # not kept, and without an ETag: the store may be back when the panel is asked for again
            return Response(as_json(explain(PANELS[name], error)), media_type="application/json")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])
    return app


def _answer(request: Request, version: Sequence[str], render: Callable[[], str]) -> Response:
    """Answers with JSON, or with "nothing new" to a page that has this version."""
    etag = hashlib.sha256("\n".join(version).encode()).hexdigest()[:20].join('""')
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(render(), media_type="application/json", headers={"ETag": etag})
