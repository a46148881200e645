"""A thousand trials at once, as the record and the page see them: does the tracking store keep up, and what does a look cost?

    python -m tests.benchmarks.running_trials [--trials 1000] [--every 60] [--minutes 5] [--store postgres] [--browser]

No process trains. The events are those that running trials send: all start at once; then each reports an evaluation every
`--every` seconds, spread evenly, with twelve training points and six samples of its machine. They go through the real tracker
and its journal into a real store: an SQLite file, a server of MLflow's on such a file, or one on PostgreSQL.

Told: what a report costs the driver, how far the store is behind (events, and seconds of reports), how long it takes to catch
up, and what the page needs to read and draw it when half of the time has gone. With `--browser` headless Chromium then opens
the page: its first plot, for which some configurations have ended before, and a few interactions.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from craft.settings import TrainingSettings
from craft.spec import RunSpec
from dashboards.app import LOOK_EVERY_S, REST
from dashboards.content import view_of
from dashboards.panels import PANELS, spec_of
from dashboards.store import Store
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.manifest import hardware
from orchestrator.record.tracker import Tracker
from tests.benchmarks.dashboard import browse
from tests.mlflow_server import Server
from tests.postgres import postgres

SEEDS = 4
POINTS, SAMPLES = 12, 6
READINGS = ("cpu_utilization_percentage", "system_memory_usage_percentage", "process_cpu_percentage",
            "process_memory_megabytes", "gpu_0_utilization_percentage", "gpu_0_memory_usage_megabytes")  # fmt: skip
CATCH_UP_S = 3600.0
ENDED = 100  # trials that have ended before, so that the page has a front to draw


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[str]:
    """The address of an empty store."""
    with ExitStack() as stack:
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        if kind == "postgres":
            uri, _ = stack.enter_context(postgres())
        if kind != "sqlite":
            server = Server(uri, folder)
            stack.callback(server.kill)
            server.start()
            uri = server.uri
        yield uri


def trials_of(count: int) -> list[TrialSpec]:
    def trial(number: int) -> TrialSpec:
        rank = 1 + number // SEEDS
        run = RunSpec(
            model="m",
            task="toy/acceptability",
            method="lora",
            parameters={"rank": rank},
            training=TrainingSettings(learning_rate=3e-4),
            seed=number % SEEDS,
        )
        return TrialSpec(run, f"{rank:010x}", f"r {rank} qv lr 3e-4")

    return [trial(number) for number in range(count)]


def report(number: int, every: float) -> dict[str, object]:
    """The number-th evaluation of a trial, from 1, with what happened since the one before it."""
    now, first = time.time(), 100 * (number - 1)
    points: list[dict[str, float]] = [
        {"step": first + 8 * (one + 1), "train_loss": 1.0 / number, "learning_rate": 1e-4} for one in range(POINTS)
    ]
    for one in range(SAMPLES):
        at = {"step": first + 16 * (one + 1), "time": now - every * (SAMPLES - 1 - one) / SAMPLES}
        points.append(at | {f"system/{name}": 10.0 * one + 1 for name in READINGS})
    metrics = {"search_score": 50.0 + number}
    return {
        "step": 100 * number,
        "total_steps": 10**5,
        "epoch": 0.1 * number,
        "metrics": metrics,
        "points": points,
        "time": now,
    }


def measure(given: argparse.Namespace, folder: Path, uri: str) -> dict[str, str]:
    tracker = Tracker(uri, "running", folder / "running", own_process=True)
    trials, found = trials_of(given.trials), {}
    try:
        tracker.sweep_started(
            {"trials": len(trials), "objectives": '{"score": "maximize", "trainable_parameters": "minimize"}'}
        )
        ended(tracker)
        began = time.perf_counter()
        for trial in trials:
            tracker.trial_started(trial, flat_parameters(trial.run))
        found["all started: ms a trial for the driver"] = f"{1000 * (time.perf_counter() - began) / len(trials):.2f}"
        looked: dict[str, str] = {}
        look = threading.Timer(30 * given.minutes, lambda: looked.update(page(uri, folder if given.browser else None)))
        look.start()
        costs, behind = reports(tracker, trials, given.every, 60 * given.minutes)
        found["reports sent, and how many a second"] = f"{len(costs)}, {len(trials) / given.every:.1f}"
        found["a report for the driver: median, 99 %, ms"] = (
            f"{1000 * statistics.median(costs):.2f}, {1000 * statistics.quantiles(costs, n=100)[98]:.2f}"
        )
        found["behind, events: after a quarter, half, three quarters, all"] = ", ".join(
            str(behind[len(behind) * part // 4 - 1]) for part in range(1, 5)
        )
        began = time.perf_counter()
        left = tracker.flush(CATCH_UP_S)
        found["caught up after the last report, s"] = f"{time.perf_counter() - began:.0f}" + (f", {left} left" if left else "")
        look.join()
        found |= looked
    finally:
        tracker.close(0.0)
    return found


def ended(tracker: Tracker) -> None:
    """Trials and configurations that have ended: a front of 25 sizes."""
    for trial in trials_of(ENDED + 1000 * SEEDS)[-ENDED:]:
        size = int(trial.run.parameters["rank"])
        tracker.trial_started(trial, flat_parameters(trial.run))
        tracker.trial_ended(TrialResult(trial.key, "finished", {"score": size / 20}, {"trainable_parameters": size}, 100, 9.0))
        if trial.run.seed == SEEDS - 1:
            counts = {"trials_planned": SEEDS, "trials_done": SEEDS, "trials_failed": 0, "trials_stopped": 0}
            content = {"score": size / 20, "score_low": size / 21, "score_high": size / 19, "trainable_parameters": size}
            whole = counts | content | {"seeds_done": SEEDS, "complete": True, "status": "finished", "method": "lora"}
            tracker.configuration_ended(trial.configuration, trial.label, flat_parameters(trial.run), whole)


def reports(tracker: Tracker, trials: list[TrialSpec], every: float, seconds: float) -> tuple[list[float], list[int]]:
    """Sends reports at their times; returns what each cost the driver in seconds, and how many events waited then."""
    costs: list[float] = []
    behind: list[int] = []
    began = time.perf_counter()
    for number in range(int(len(trials) * seconds / every)):
        time.sleep(max(0.0, began + number * every / len(trials) - time.perf_counter()))
        content, at = report(1 + number // len(trials), every), time.perf_counter()
        tracker.trial_progress(trials[number % len(trials)].key, content)
        costs.append(time.perf_counter() - at)
        behind.append(tracker.waiting)
    return costs, behind


def page(uri: str, folder: Path | None) -> dict[str, str]:
    """What the page needs, while all trials run and the tracker goes on shipping; in a browser too if it gets a folder."""
    store = Store(uri)
    feed = store.feed("running")
    began = time.perf_counter()
    feed.refresh()
    read = time.perf_counter() - began
    time.sleep(1.0)  # the tracker writes, so that there is something to look for
    feed.refresh()
    began = time.perf_counter()
    _, view = view_of(store, [feed])
    tables = time.perf_counter() - began
    began = time.perf_counter()
    for name in ("front", "table", "progress"):
        spec_of(PANELS[name], view)
    drawn = time.perf_counter() - began
    pause = max(LOOK_EVERY_S, REST * feed.look_cost)
    found = {
        "the page: all runs read, s": f"{read:.2f} ({len(view.trials)} trials)",
        "the page: a look for changes, s, and how often": f"{feed.look_cost:.2f}, every {pause:.0f} s",
        "the page: tables; front, table and progress, s": f"{tables:.2f}; {drawn:.2f}",
    }
    if folder:
        seen = browse(Store(uri), folder / "browser", "in Chromium", 7)
        found |= {
            f"the page: {name}": f"{value:.2f}" if name.endswith(" s") else f"{value:.0f}" for name, value in seen.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two reports of a trial")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--store", choices=("sqlite", "server", "postgres"), default="sqlite")
    parser.add_argument("--browser", action="store_true", help="open the page in headless Chromium too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, store_of(given.store, Path(folder)) as uri:
        found = measure(given, Path(folder), uri)
    facts = hardware()
    console, table = Console(width=130), Table("", given.store)
    for name, value in found.items():
        table.add_row(name, value)
    console.print(f"{given.trials} trials, each reporting every {given.every:g} s for {given.minutes:g} min")
    console.print(f"{facts['processor']}, {facts['cpus']} cores, Python {platform.python_version()}")
    console.print(table)


if __name__ == "__main__":
    main()
