"""What a trial costs the driver: thousands of trials that do nothing, on real Ray with a real tracking store, beside bare Tune.

    python -m tests.benchmarks.tune_scale [--trials 5000] [--at-once 2]

A sweep runs with a training that does nothing, and with everything that a sweep records: its log, and a process that follows
it and writes to an SQLite store of MLflow's. Beside it, in a process of its own, the same number of
trials runs on Tune alone: same Ray, same number at once, actors reused, and the same two reports with one checkpoint of one
file. A process each, so that neither has the other's memory.

The wall time of a trial is the mean over the first and over the last 500; the memory is the most that the driver had.
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
from pathlib import Path
from typing import Any

from craft.results import Counts, Train
from orchestrator.record.events import Ended, Event, SessionEnded
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import hardware
from orchestrator.record.options import Options
from orchestrator.tracking.follower import Follower
from tests.orchestrator.plans import toy_plan

SEEDS = 5
WINDOW = 500


def figures(ends: list[float]) -> dict[str, float]:
    """Returns the milliseconds of one of the first and of one of the last trials, and the driver's peak memory in MB."""
    window = min(WINDOW, len(ends) // 2)
    first, last = (1000 * (part[-1] - part[0]) / (len(part) - 1) for part in (ends[: window + 1], ends[-window - 1 :]))
    return {"first": first, "last": last, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


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


def sweep(folder: Path, trials: int, at_once: int) -> dict[str, float]:
    from orchestrator.commands.session import drive, open_session

    ranks = list(range(1, trials // SEEDS + 1))
    space = f"seeds: {list(range(SEEDS))}\nspace: [{{method: lora, rank: {{values: {ranks}}}}}]\n"
    plan, ends = toy_plan(folder, f"name: scale\n{space}resources: {{cpu: 1}}\nstorage: {folder}\n"), list[float]()
    with open_session(plan, SweepFolder(folder / "scale"), Options(cpus=at_once, quiet=True)) as (driver, stop):
        driver.begin()
        record = driver.record

        def timed(*events: Event) -> None:
            record(*events)
            ends.extend(time.perf_counter() for event in events if isinstance(event, Ended))

        driver.record = timed  # type: ignore[method-assign]
        follower = Follower(folder / "scale", f"sqlite:///{folder / 'mlflow.db'}")
        driver.watchers.append(follower.look)
        try:
            outcome = drive(driver, stop, nothing())
            assert len(outcome.ended("finished")) == trials, outcome.trouble
            record(SessionEnded(status="finished", seconds=outcome.seconds))
        finally:
            follower.stop()
    return figures(ends)


def bare(folder: Path, trials: int, at_once: int) -> dict[str, float]:
    from ray import tune

    from orchestrator.tune.cluster import joined

    ends = list[float]()

    class Noting(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            ends.append(time.perf_counter())

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
    assert len(ends) == trials
    return figures(ends)


def in_a_process(what: str, given: argparse.Namespace) -> dict[str, float]:
    """The figures of `sweep` or `bare`, run by a fresh interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.tune_scale", "--only", what, "--folder", folder]
        command += ["--trials", str(given.trials), "--at-once", str(given.at_once)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(done.stdout[-5000:])
        return dict(json.loads((Path(folder) / "found.json").read_text()))


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
    facts = hardware()
    print(f"{given.trials} trials that do nothing, {given.at_once} at once")
    print(f"{facts['processor']}, {facts['cpus']} cores, Python {platform.python_version()}")
    for what, title in {"bare": "bare Tune", "sweep": "a sweep"}.items():
        found = in_a_process(what, given)
        print(f"{title}: {found['first']:.1f} ms a trial, {found['last']:.1f} of the last; driver {found['peak']:.0f} MB")


if __name__ == "__main__":
    main()
