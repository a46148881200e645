"""Sweeps whose training is a stand-in that fails as asked and logs each step; all else is real.

python -m tests.orchestrator.stand_in FOLDER        runs, or goes on with, the sweep that FOLDER/driver.json describes
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from craft.results import Counts, Train
from craft.spec import RunSpec
from orchestrator.commands import session
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended, SessionEnded
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from orchestrator.record.options import Options
from orchestrator.worker.preparation import Shared
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.recorded import results_of

ROOT = Path(__file__).parent.parent.parent
STEPS = 3


def stand_in(
    log: str,
    behaviour: dict[tuple[int, int], str],
    seconds: float = 0.0,
    evaluate: Callable[[RunSpec, int], float] = lambda spec, step: 50.0 + step,
    finish: Callable[[RunSpec], dict[str, float]] = lambda spec: {"score": 60.0 + spec.parameters["rank"] + spec.seed},
) -> Train:
    """A `train_run` that does STEPS steps, each with a checkpoint; `behaviour` of (rank, seed) says how it goes wrong.

    The rank of CRAFT is its last one. What is cut has its size as score. Workers get it by value, so it imports what it needs.

    Args:
        evaluate: the search score at a step.
        finish: the metrics at the end.
    """
    total = STEPS

    def train(spec, directory, *, report, resume_from, on_step, cuts=()):
        import json
        import os
        import time
        from pathlib import Path

        from craft.results import Progress, RunFailed, RunPrevented, RunResult
        from craft.trainer.checkpoint import write_folder

        def write(text):
            with Path(log).open("a") as file:
                file.write(text + "\n")

        rank, seed = spec.parameters["rank"] if "rank" in spec.parameters else spec.parameters["ranks"][-1], spec.seed
        how = behaviour.get((rank, seed), "well")
        first = json.loads((resume_from / "state.json").read_text())["step"] if resume_from else 0
        write(f"start {rank} {seed} {first} {os.getpid()}")
        if how == "nan":
            raise RunFailed("training diverged: the loss is nan at step 1")
        if how == "no model":
            raise RunPrevented(f"model 'nobody/nothing' in /scratch/{os.getpid()}: the hub did not give it")
        if how == "no disk":
            raise OSError(28, "No space left on device")
        if how == "maps":
            from safetensors.torch import load_file

            size = 5 * 2**28
            head = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
            with (directory / "model.safetensors").open("wb") as file:
                file.write(len(head).to_bytes(8, "little") + head)
                file.truncate(8 + len(head) + size)
            mapped = load_file(directory / "model.safetensors")
            assert int(mapped["w"][-1]) == 0
        for step in range(first + 1, total + 1):
            if (how == "dies once" and first == 0 and step == 3) or (how == "dies" and step == 2):
                os.write(2, b"Fatal Python error: something native\n")
                os.kill(os.getpid(), 9)
            if how == "asserts once" and first == 0 and step == 3:
                raise RuntimeError("CUDA error: device-side assert triggered")
            if how == "eats" and step == 2:
                eaten = []
                while True:
                    eaten.append(bytearray(64 * 2**20))
            if how == "stops once" and first == 0 and step == 2:
                os.kill(os.getpid(), 19)
            if how == "hangs" and step == 2:
                time.sleep(600)
            time.sleep(seconds)
            write(f"step {rank} {seed} {step} {spec.key}")
            on_step(step, total)

            def fill(folder, step=step):
                (folder / "state.json").write_text(json.dumps({"step": step}))

            folder = write_folder(directory / f"checkpoint-{step}", fill)
            points = [{"step": step, "train_loss": 1.0}]
            report(Progress(step, total, float(step), {"search_score": evaluate(spec, step)}, points, folder))

        def adapter(text):
            place = directory / text
            place.mkdir()
            return write_folder(place / "adapter", lambda folder: (folder / "adapter_model.safetensors").write_text(text))

        metrics, results = finish(spec), []
        for size in cuts:
            if how == "dies cutting" and results and not Path(f"{log}-died").exists():
                Path(f"{log}-died").touch()
                os.kill(os.getpid(), 9)
            scores = dict.fromkeys(metrics, float(size))
            results.append(RunResult(scores, Counts(size - 1, 2, 100, 40), adapter(f"{size}"), 0, 0, 1.0))
        counts = Counts(10 * rank, 2, 100, 40)
        return RunResult(metrics, counts, adapter(f"{rank} {seed}"), total, total, 1.0, cuts=results)

    return train


def plan_of(
    folder: Path, seeds: str = "[0]", ranks: str = "[1, 2]", resources: str = "{cpu: 1}", storage: str = "runs"
) -> Plan:
    space = f"[{{method: lora, rank: {{values: {ranks}}}}}]"
    return toy_plan(folder, f"name: test\nseeds: {seeds}\nspace: {space}\nresources: {resources}\nstorage: {storage}\n")


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 240) -> Any:
    """Waits until the condition holds, and returns what it gives; a driver that ends before is an error."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, f"the driver ended early: {process.communicate()}"
        assert time.monotonic() < until
        time.sleep(0.05)
    return value


def ended(process: subprocess.Popen[str], status: int = 0, seconds: float = 400) -> str:
    """What a driver has printed that has ended with this status."""
    out, screen = process.communicate(timeout=seconds)
    assert process.returncode == status, out + screen
    return out + screen


def scores_of(sweep: Path) -> list[float]:
    """The scores of the trials in a sweep's folder, lowest first."""
    return sorted(result.metrics["score"] for result in results_of(sweep).values())


def lines_of(log: Path, kind: str) -> list[tuple[int, int, int]]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(int(line[1]), int(line[2]), int(line[3])) for line in lines if line[0] == kind]


def steps(log: Path) -> Counter[tuple[int, int, int]]:
    return Counter(lines_of(log, "step"))


def starts(log: Path) -> list[tuple[int, int, int]]:
    return lines_of(log, "start")


@contextmanager
def ray_cluster(*nodes: dict[str, Any], **head: Any) -> Iterator[Any]:
    """A cluster of Ray nodes on this machine; what is not said of the head is that it has no cores."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0} | head)
    try:
        for node in nodes:
            cluster.add_node(**node)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_sweep(
    plan: Plan, folder: Path, *, train: Train | None = None, shared: Shared | None = None, **options: Any
) -> SweepOutcome:
    """Runs what remains of a plan in `folder`; see `drive` and `Options`."""
    with session.open_session(plan, SweepFolder(folder.absolute()), Options(**options)) as (driver, stop):
        driver.begin()
        outcome = session.drive(driver, stop, train, shared)
        driver.record(SessionEnded(status=outcome.status, seconds=outcome.seconds))
    return outcome


DRIVER_SETTINGS: dict[str, Any] = {
    **{"seeds": [0], "ranks": [], "seconds": 0.0, "behaviour": {}, "resources": "{cpu: 1}", "options": {}, "session": False},
    **dict.fromkeys(("storage", "address", "tracking")),
}
"""What a driver gets, with `options` of `run_sweep`. With `session` it runs all that the command line runs after reading
its file: with checkpoints in `storage`, if not next to all else, at `address`, and with the tracking store `tracking`, if not a
SQLite file."""


def start_driver(folder: Path, **settings: Any) -> subprocess.Popen[str]:
    """A driver in a process group of its own; see DRIVER_SETTINGS."""
    assert settings.keys() <= DRIVER_SETTINGS.keys()
    settings["behaviour"] = [[*key, how] for key, how in settings.get("behaviour", {}).items()]
    (folder / "driver.json").write_text(json.dumps(DRIVER_SETTINGS | settings))
    command = [sys.executable, "-m", "tests.orchestrator.stand_in", str(folder)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def drive(folder: Path) -> int:
    settings = json.loads((folder / "driver.json").read_text())
    plan = plan_of(folder, json.dumps(settings["seeds"]), json.dumps(settings["ranks"]), settings["resources"], str(folder))
    behaviour = {(rank, seed): how for rank, seed, how in settings["behaviour"]}
    train = stand_in(str(folder / "log"), behaviour, settings["seconds"])
    with (folder / "log").open("a") as log:
        log.write("driver\n")
    if settings["session"]:
        return _drive_session(folder, plan, train, settings)
    options = {"cpus": 2, "resume": True, "quiet": True, **settings["options"]}
    outcome = run_sweep(plan, folder / "test", train=train, **options)
    left = outcome.left
    begun = sum(entry.begun for entry in left)
    print(len(outcome.ended("finished")), begun, len(left) - begun, len(outcome.ended("failed")), outcome.trouble or "")
    return 0


def _drive_session(folder: Path, plan: Plan, train: Train, settings: dict[str, Any]) -> int:
    from orchestrator.commands import run
    from orchestrator.commands.start import run_plan
    from orchestrator.run import main

    session._prepare = lambda *_: None
    Options.restart = ["-m", "tests.orchestrator.stand_in", str(folder)]  # type: ignore[assignment,misc]
    session.drive = functools.partial(session.drive, train=train)
    arguments = [str(folder / "sweep.yaml"), "--tracking-uri", settings["tracking"] or f"sqlite:///{folder}/mlflow.db"]
    arguments += ["--address", settings["address"]] if settings["address"] else ["--cpus", "2"]
    arguments += ["--storage", settings["storage"]] if settings["storage"] else []
    run.run_file = lambda options, console: run_plan(plan, dataclasses.replace(options, resume=True), console)
    return main(arguments)


def kill_at_random(folder: Path, times: int, draw: random.Random) -> Iterator[str]:
    """Kills the driver of a 12-trial sweep with -9 at random moments, resuming each time, and then lets it end.

    Asserts that no result ever disappears, nothing that finished starts again, scores are those of a quiet run, and the
    tracking store has one run for each trial. Yields a line for each kill.
    """
    # Steps so long that there is work left at the last of twenty kills.
    settings: dict[str, Any] = {"ranks": [1, 2, 4, 8], "seeds": [0, 1, 2], "seconds": min(6.0, 0.6 * times), "session": True}
    log, trials = folder / "log", plan_of(folder, "[0, 1, 2]", "[1, 2, 4, 8]", storage=str(folder)).trials

    def finished() -> dict[str, TrialResult]:
        return {key: result for key, result in results_of(folder / "test").items() if result.settled}

    pairs = {trial.key: (trial.run.parameters["rank"], trial.run.seed) for trial in trials}
    known = finished()
    for kill in range(times):
        before = len(starts(log))
        process = start_driver(folder, **settings)
        # A third of them while it starts, wherever that is; the others once it is at work.
        when = "it started" if kill % 3 == 0 else "its first trial began"
        moment = draw.uniform(1.0, 20.0) if kill % 3 == 0 else draw.uniform(0.0, 12.0)
        if kill % 3:
            while process.poll() is None and len(starts(log)) == before:
                time.sleep(0.05)
        try:
            process.wait(moment)
            how = "had ended"
        except subprocess.TimeoutExpired:
            process.kill()
            how = "killed"
        process.communicate()
        now = finished()
        assert known.items() <= now.items(), "a result is gone or has changed"
        again = {start[:2] for start in starts(log)[before:]} & {pairs[key] for key in known}
        assert not again, "a trial that had finished started again"
        known = now
        yield f"{kill + 1}: {how} {moment:.1f} s after {when}, {len(now)} of 12 trials done"
    process = start_driver(folder, **settings)
    ended(process)
    scores = {key: {"score": 60.0 + rank + seed} for key, (rank, seed) in pairs.items()}
    assert {key: result.metrics for key, result in finished().items()} == scores
    events = [event for event, _ in read_events(SweepFolder(folder / "test").record)]
    keys = [event.result.key for event in events if isinstance(event, Ended) and event.result.status == "finished"]
    assert len(keys) == len(set(keys)) == 12, "a trial finished twice"
    # A trial that the driver knew to be done never started again: the last step is repeated only where it had not heard of it.
    assert len(starts(log)) <= 12 + 2 * len([line for line in log.read_text().splitlines() if line.startswith("driver")])
    check_runs(f"sqlite:///{folder}/mlflow.db", set(keys))
    repeated = sum(n - 1 for n in steps(log).values())
    yield f"12 of 12 trials done, each once and with one run; {len(starts(log))} starts, {repeated} of 36 steps done again"


def check_runs(uri: str, keys: set[str], configurations: int = 4) -> None:
    """One run for each trial, finished, with each evaluation once; one for each configuration; one for the sweep."""
    from mlflow import MlflowClient

    from tests.orchestrator.logged import history, runs

    table = runs(uri, "test")
    kinds = Counter(kind for kind, _ in table)
    assert kinds == {"sweep": 1, "configuration": configurations, "trial": len(keys)}, kinds
    assert {run.info.status for run in table.values()} == {"FINISHED"}
    assert {key for kind, key in table if kind == "trial"} == keys
    for run in (table["trial", key] for key in keys):
        assert history(uri, run, "search_score") == [(step, 50.0 + step) for step in range(1, STEPS + 1)]
        files = [file.path for file in MlflowClient(uri).list_artifacts(run.info.run_id, "adapter")]
        assert "adapter/adapter_model.safetensors" in files


if __name__ == "__main__":
    sys.exit(drive(Path(sys.argv[1])))
