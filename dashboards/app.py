"""The live page: a few read-only routes on loopback, and a thread that keeps looking for what changed.

Every answer carries an ETag made of the sweeps' revisions, so a page that polls gets "nothing new" for a few bytes. A sweep is
refreshed only while some page asks for it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Sequence

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles

from dashboards.content import safe_spec, state_of, view_of
from dashboards.feed import Feed
from dashboards.page import LIVE_POLICY, STATIC, as_json, live_page, plotly_packed, plotly_script
from dashboards.panels import PANELS, View
from dashboards.store import DashboardError, Store, SweepEntry

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
REST = 20
"""Between two looks pass at least so many times what the last one took: many running trials must not keep a store busy."""
FORGET_AFTER_S = 60.0  # a sweep that no page has asked for in this time is not refreshed any more
SHOWN = Query(default=[], alias="sweep", description="names of the sweeps to show")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class Watcher:
    """Refreshes the feeds that pages look at, and keeps the specs computed for each revision."""

    def __init__(self, store: Store, every_s: float = LOOK_EVERY_S) -> None:
        self.store = store
        self._every_s = every_s
        self._asked: dict[str, float] = {}
        self._entries: list[SweepEntry] = []
        self._listed = 0.0
        self._views: dict[tuple[str, ...], tuple[str, View]] = {}
        self._specs: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Starts the thread. It reads the newest sweep first, because a page most likely asks for that one."""
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._wake.set()
        self._thread.join(timeout=10)

    def entries(self) -> list[SweepEntry]:
        """Returns the sweeps in the store, at most a few seconds old."""
        with self._listing:
            if time.monotonic() - self._listed > 2 * self.wait_s:
                self._entries, self._listed = self.store.sweeps(), time.monotonic()
            return self._entries

    def feeds(self, names: Sequence[str]) -> list[Feed]:
        """Returns the feeds of the named sweeps, or of the newest sweep if none is named; they are refreshed from now on.

        Waits for a new feed's first rows, so that a page's first answer has something to draw.
        """
        chosen = list(dict.fromkeys(names)) or [entry.name for entry in self.entries()[:1]]
        feeds = [self.store.feed(name) for name in chosen]
        self._asked.update(dict.fromkeys(chosen, time.monotonic()))
        if any(not feed.revision for feed in feeds):
            self._wake.set()
            deadline = time.monotonic() + 20
            while any(not (feed.revision or feed.trouble) for feed in feeds) and time.monotonic() < deadline:
                time.sleep(0.02)
        return feeds

    def view(self, feeds: Sequence[Feed]) -> tuple[str, View]:
        """Returns the feeds' revision and their tables side by side; the tables are joined once for each revision."""
        key = tuple(feed.name for feed in feeds)
        with self._lock:
            view = self._views.get(key)
            revision = ",".join(f"{feed.experiment_id}:{feed.revision}" for feed in feeds)
            if view is None or view[0] != revision:
                self._views[key] = view_of(self.store, feeds)
            return self._views[key]

    @property
    def wait_s(self) -> float:
        """Seconds between two looks for changes, as things are."""
        return max(self._every_s, REST * sum(self.store.feed(name).look_cost for name in list(self._asked)))

    def pace(self) -> str:
        """Returns how often the page looks, for people. It is rounded: a page is sent again whenever this text changes."""
        if self.wait_s <= 2 * LOOK_EVERY_S:
            return "read every few seconds"
        return f"read about every {5 * math.ceil(self.wait_s / 5)} s, because reading it takes so long"

    def spec(self, name: str, revision: str, view: View) -> str:
        """Returns a panel's spec as JSON; the last revision of each is kept."""
        key = (name, ",".join(view.names))
        spec = self._specs.get(key, "")
        if not spec.startswith(revision + "\n"):
            spec = f"{revision}\n{as_json(safe_spec(PANELS[name], view))}"
            self._specs[key] = spec
        return spec.split("\n", 1)[1]

    def _prepare(self) -> None:
        """Reads the newest sweep before anybody asks, and puts together what the page draws first."""
        plotly_packed()
        newest = self.entries()[:1]
        if not newest:
            return
        feed = self.store.feed(newest[0].name)
        feed.refresh()
        revision, view = self.view([feed])
        for name, panel in PANELS.items():
            if panel.section == "front":
                self.spec(name, revision, view)

    def _look(self, feed: Feed) -> None:
        try:
            feed.refresh()
        except Exception as error:  # a store that is away now may be back at the next look
            reason, cause = self.store.hide(error), f"The tracking store cannot be read: {type(error).__name__}"
            feed.trouble = reason if isinstance(error, ValueError) else f"{cause}: {reason}"  # a ValueError is a sentence
            log.warning("%s", feed.trouble)

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception as error:  # nobody has asked yet; a page that asks gets the error
            log.debug("the newest sweep cannot be read: %s", self.store.hide(error))
        while not self._over.is_set():
            for name, request_time in list(self._asked.items()):
                if time.monotonic() - request_time > FORGET_AFTER_S:
                    self._asked.pop(name, None)
                    continue
                self._look(self.store.feed(name))
            self._wake.wait(self.wait_s)
            self._wake.clear()


def make_app(store: Store, *, hosts: Sequence[str] = LOOPBACK, every_s: float = LOOK_EVERY_S) -> FastAPI:
    """Makes the application that serves the page.

    Args:
        store: where the sweeps are read from.
        hosts: host names that the page answers to; it refuses others, so that no foreign site can read it by pointing a name
            of its own at this machine. `["*"]` allows all.
        every_s: seconds between two looks for changes, at least.
    """
    watcher = Watcher(store, every_s)
    app = FastAPI(title="CRAFT sweeps", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.watcher = watcher
    watcher.start()

    @app.exception_handler(DashboardError)
    def explain(request: Request, error: DashboardError) -> JSONResponse:
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
    def plotly(request: Request) -> Response:
        return _plotly("gzip" in request.headers.get("accept-encoding", ""))

    @app.get("/api/state")
    def state(request: Request, names: list[str] = SHOWN) -> Response:
        entries = watcher.entries()
        if not entries:
            empty = {
                "sweeps": [],
                "message": f"The tracking store {store.shown_uri!r} holds no sweep yet. The first appears here as it starts.",
            }
            return _answer(request, _etag("none"), lambda: as_json(empty), "application/json")
        feeds = watcher.feeds(names)
        revision, view = watcher.view(feeds)
        foot = f"Tracking store: {store.shown_uri} · {watcher.pace()}"
        text = as_json(state_of(entries, feeds, view, foot) | {"revision": revision})
        return _answer(request, _etag(text), lambda: text, "application/json")

    @app.get("/api/panel/{name}")
    def panel(request: Request, name: str, names: list[str] = SHOWN) -> Response:
        if name not in PANELS:
            raise DashboardError(f"there is no panel {name!r}; there are {', '.join(PANELS)}")
        revision, view = watcher.view(watcher.feeds(names))
        return _answer(request, _etag(revision, *view.names), lambda: watcher.spec(name, revision, view), "application/json")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])
    return app


def _plotly(packed: bool) -> Response:
    # Its address names its version, so a browser may keep it.
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if packed:
        return Response(plotly_packed(), media_type="text/javascript", headers=headers | {"Content-Encoding": "gzip"})
    return Response(plotly_script(), media_type="text/javascript", headers=headers)


def _etag(*parts: str) -> str:
    return '"' + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20] + '"'


def _answer(request: Request, etag: str, render, media_type: str) -> Response:  # type: ignore[no-untyped-def]
    etags = request.headers.get("if-none-match", "")
    if etag in [tag.strip().removeprefix("W/") for tag in etags.split(",")]:
        return Response(status_code=304, headers={"ETag": etag})
    return Response(render(), media_type=media_type, headers={"ETag": etag})
