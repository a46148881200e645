"""Views of sweeps that never saw a store, as the panels are given them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dashboards.frames import Frames
from dashboards.panels import PANELS, View
from dashboards.store import Feed, Store
from orchestrator.plan.trial import Why
from orchestrator.record.folder import SweepFolder
from orchestrator.record.state import State, fold
from tests.dashboards.synthetic import FakeRun, FakeSession, FakeTrial, configuration, events_of, grid
from tests.orchestrator.recorded import write_log

LOGS, NUMBERS = tempfile.TemporaryDirectory(), itertools.count()


def frames_of(name: str, runs: Sequence[FakeRun]) -> Frames:
    """Tables of runs that never saw a store."""
    if not runs:
        return Frames(name, State(), "1")
    write_log(folder := Path(LOGS.name) / str(next(NUMBERS)), *events_of(name, runs))
    return Frames(name, fold(events_of(name, runs)), "1", SweepFolder(folder).record)


def read_feed(store: Store, name: str) -> Feed:
    feed = store.feed(name)
    feed.refresh()
    return feed


def view_of(*sweeps: tuple[str, Sequence[FakeRun]]) -> View:
    return View([frames_of(name, runs) for name, runs in sweeps])


def full_view() -> View:
    runs: list[FakeRun] = [FakeSession(planned=80), *grid(tasks=("mrpc", "rte"))]
    runs += configuration("failed0000", states={("toy", 0): "failed"})
    runs += configuration("partial000", scores={"mrpc": [80.0, 1.0]}, states={("mrpc", 1): "running"})
    return view_of(("ranks", runs))


def candidate(identity: str, tunes: str, **given: Any) -> list[FakeTrial]:
    """A configuration whose trials only choose settings for another one."""
    runs = configuration(identity, **given)
    for run in runs:
        run.trial = replace(run.trial, why=Why("candidate", tunes))
    return runs


VIEWS: dict[str, Callable[[], View]] = {
    "nothing yet": lambda: view_of(("ranks", [])),
    "only started": lambda: view_of(("ranks", [FakeSession(planned=3)])),
    "one trial running": lambda: view_of(("ranks", configuration("a", states={("toy", 0): "running"}))),
    "only tuning": lambda: view_of(("ranks", candidate("candidate0", "tuned00000"))),
    "one done": lambda: view_of(("ranks", configuration("a"))),
    "all failed": lambda: view_of(("ranks", configuration("a", states={("toy", 0): "failed"}))),
    "equal scores": lambda: view_of(("ranks", [run for i in range(6) for run in configuration(str(i), params={"rank": i})])),
    "full": full_view,
    "two sweeps": lambda: view_of(("ranks", grid()), ("again", grid(tasks=("mrpc", "rte")))),
}


def draw(panel: str, view: View) -> Any:
    """What a panel draws: its table, its pairs, or the whole spec of a figure."""
    spec = PANELS[panel].draw(view)
    return spec.get("table") or spec.get("pairs") or spec


def rows_of(panel: str, view: View) -> list[list[Any]]:
    """The rows of a panel that is a plain table."""
    return [list(row) for row in zip(*(column["values"] for column in draw(panel, view)["columns"]), strict=True)]


@cache
def see(name: str) -> View:
    """One of VIEWS, made once: panels only read."""
    return VIEWS[name]()
