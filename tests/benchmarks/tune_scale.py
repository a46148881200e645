"""What a trial costs the driver: thousands of trials that do nothing, on real Ray with a real tracking store, beside bare Tune.

    python -m tests.benchmarks.tune_scale [--trials 5000] [--at-once 2]

A sweep runs with a training that does nothing, and with everything that a sweep records: its log, and a process that follows
it and writes to an SQLite store of MLflow's. Beside it, in a process of its own, the same number of
trials runs on Tune alone: same Ray, same number at once, actors reused, and the same two reports with one checkpoint of one
file. A process each, so that neither has the other's memory.

For the first and the last 500 trials: wall time; the time that the driver did not wait for its workers; processor time of the
thread that drives Tune, and of the whole driver, without the process that follows; the driver's memory after those. Afterwards:
how far the store is behind, and how long it takes to catch up.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from craft.results import Counts
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Train
from orchestrator.record.events import Ended, Event, SessionEnded
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import hardware
from orchestrator.record.options import Options
from orchestrator.tracking.follower import Follower
from tests.orchestrator.plans import toy_plan

SEEDS = 5
WINDOW = 500
CATCH_UP_S = 3600.0


COLUMNS = ("wall", "not waiting for workers", "driving thread's processor", "whole driver's processor")


@dataclass
class Clock:
    """Notes the times of this thread and of the process whenever a trial has ended."""

    waited: float = 0.0
    notes: list[tuple[float, float, float, float]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def watch_waits(self) -> None:
        """Adds up the time that Tune spends waiting for a worker's answer."""
        import ray

        wait = ray.wait

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return wait(*arguments, **named)
            finally:
                self.waited += time.perf_counter() - began

        ray.wait = timed

    def note(self) -> None:
        now = time.perf_counter()
        self.notes.append((now, now - self.waited, time.thread_time(), time.process_time()))
        self.memory.append(resident_mb())

    def content(self) -> dict[str, Any]:
        window = min(WINDOW, len(self.notes) // 2)
        found: dict[str, Any] = {}
        for name, part in (("first", self.notes[: window + 1]), ("last", self.notes[-window - 1 :])):
            spent = (1000 * (end - begin) / (len(part) - 1) for begin, end in zip(part[0], part[-1], strict=True))
            found[name] = dict(zip(COLUMNS, spent, strict=True))
        found["first"]["memory"], found["last"]["memory"] = self.memory[window], self.memory[-1]
        return found


def nothing() -> Train:
    """A training that reports one evaluation and leaves an adapter of one file. It travels to workers by value."""

    def train(spec, directory, *, report, resume_from, on_step):
        from craft.results import Progress, RunResult

        report(Progress(1, 1, 1.0, {"search_score": 50.0}, [{"step": 1, "train_loss": 1.0}], None))
        adapter = directory / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text("nothing")
        return RunResult({"score": 60.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 0.0)

    return train


def plan_of(folder: Path, trials: int) -> Plan:
    ranks = list(range(1, trials // SEEDS + 1))
    space = f"seeds: {list(range(SEEDS))}\nspace: [{{method: lora, rank: {{values: {ranks}}}}}]\n"
    return toy_plan(folder, f"name: scale\n{space}resources: {{cpu: 1}}\nstorage: {folder}\n")


def sweep(folder: Path, trials: int, at_once: int) -> dict[str, Any]:
    from orchestrator.commands.session import drive, open_session

    plan, clock = plan_of(folder, trials), Clock()
    clock.watch_waits()
    with open_session(plan, SweepFolder(folder / "scale"), Options(cpus=at_once, verbosity="quiet")) as (driver, stop):
        driver.begin()
        record = driver.record

        def timed(*events: Event) -> None:
            record(*events)
            for _ in (event for event in events if isinstance(event, Ended)):
                clock.note()

        driver.record = timed  # type: ignore[method-assign]
        follower = Follower(folder / "scale", f"sqlite:///{folder / 'mlflow.db'}")
        try:
            outcome = drive(driver, stop, nothing(), None, watch=follower.look)
            assert len(outcome.ended("finished")) == trials, outcome.trouble
            record(SessionEnded(status="finished", seconds=outcome.seconds))
            began, behind = time.perf_counter(), follower.wait(0.0)
            left = follower.wait(CATCH_UP_S)
            waited = time.perf_counter() - began
        finally:
            follower.stop()
    return clock.content() | {"behind": behind, "left": left, "catching up": waited, "peak": peak_mb()}


def bare(folder: Path, trials: int, at_once: int) -> dict[str, Any]:
    from ray import tune

    from orchestrator.tune.cluster import joined

    clock = Clock()
    clock.watch_waits()

    class Noting(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            clock.note()

    def trial(config: dict[str, Any]) -> None:
        tune.report({"score": 50.0})
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / "adapter_model.safetensors").write_text("nothing")
            tune.report({"score": 60.0}, checkpoint=tune.Checkpoint.from_directory(made))

    with joined(None, at_once):
        tune.Tuner(
            tune.with_resources(trial, tune.PlacementGroupFactory([{"CPU": 1}])),
            param_space={"number": tune.grid_search(list(range(trials)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(name="bare", storage_path=str(folder), callbacks=[Noting()], verbose=0),
        ).fit()
    assert len(clock.notes) == trials
    return clock.content() | {"peak": peak_mb()}


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def in_a_process(what: str, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of `sweep` or `bare`, run by a fresh interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.tune_scale", "--only", what, "--folder", folder]
        command += ["--trials", str(given.trials), "--at-once", str(given.at_once)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(done.stdout[-5000:])
        return dict(json.loads((Path(folder) / "found.json").read_text()))


def shown(found: dict[str, Any]) -> Table:
    table = Table("ms a trial", "bare Tune, first", "last", "sweep, first", "last", "ratio, first", "last")
    for name in (*COLUMNS, "memory"):
        figures = [found[what][part][name] for what in ("bare", "sweep") for part in ("first", "last")]
        ratios = [figures[2] / figures[0], figures[3] / figures[1]]
        table.add_row(
            f"{name} {' (MB)' if name == 'memory' else ''}",
            *[f"{one:.1f}" for one in figures],
            *[f"{one:.2f}" for one in ratios],
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--only", choices=("sweep", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        one = {"bare": bare, "sweep": sweep}[given.only](given.folder, given.trials, given.at_once)
        (given.folder / "found.json").write_text(json.dumps(one))
        return
    found = {what: in_a_process(what, given) for what in ("bare", "sweep")}
    facts = hardware()
    console = Console(width=130)
    console.print(f"{given.trials} trials that do nothing, {given.at_once} at once")
    console.print(f"{facts['processor']}, {facts['cpus']} cores, Python {platform.python_version()}")
    console.print(shown(found))
    told = found["sweep"]
    console.print(
        f"when the last trial had ended the store was {told['behind']} events behind, for {told['catching up']:.0f} s"
    )
    console.print(f"peak memory of the driver: sweep {told['peak']:.0f} MB, bare Tune {found['bare']['peak']:.0f} MB")


if __name__ == "__main__":
    main()
