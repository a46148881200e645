"""Sweeps whose training is a stand-in that goes wrong as it is told, and drivers of them to be killed.

It writes a line for each start and each step to a log, so that a test can see what ran and from where; everything else (Ray,
checkpoints, ledger, folders, with `session` also the tracking store and the command line's end) is real.

    python -m tests.orchestrator.stand_in FOLDER        runs, or goes on with, the sweep that FOLDER/driver.json describes
"""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from craft.results import Counts
from orchestrator.ledger import Ledger
from orchestrator.options import RunOptions
from orchestrator.plan import Plan, Planner, make_plan
from orchestrator.sweep import load_sweep
from orchestrator.trial import Train

ROOT = Path(__file__).parent.parent.parent
STEPS = 3


def stand_in(log: str, behaviour: dict[tuple[int, int], str], seconds: float = 0.0) -> Train:
    """A `train_run` that does STEPS steps, each with a checkpoint; `behaviour` of (rank, seed) says how it goes wrong.

    Everything it needs is inside, because workers get it by value.
    """

    total = STEPS

    def train(spec, directory, *, report, resume_from, on_step):
        import json
        import os
        import time
        from pathlib import Path

        from craft.checkpoint import write_folder
        from craft.results import Counts, Progress, RunFailed, RunResult

        def write(text):
            with Path(log).open("a") as file:
                file.write(text + "\n")

        rank, seed = spec.parameters["rank"], spec.seed
        how = behaviour.get((rank, seed), "well")
        first = json.loads((resume_from / "state.json").read_text())["step"] if resume_from else 0
        write(f"start {rank} {seed} {first} {os.getpid()}")
        if how == "nan":
            raise RunFailed("training diverged: the loss is nan at step 1")
        if how == "no disk":
            raise OSError(28, "No space left on device")
        for step in range(first + 1, total + 1):
            if (how == "dies once" and first == 0 and step == 3) or (how == "dies" and step == 2):
                os.write(2, b"Fatal Python error: something native\n")
                os.kill(os.getpid(), 9)
            if how == "eats" and step == 2:
                eaten = []
                while True:
                    eaten.append(bytearray(64 * 2**20))
            if how == "hangs" and step == 2:
                time.sleep(600)
            time.sleep(seconds)
            write(f"step {rank} {seed} {step}")
            on_step(step, total)

            def fill(folder, step=step):
                (folder / "state.json").write_text(json.dumps({"step": step}))

            folder = write_folder(directory / f"checkpoint-{step}", fill)
            points = [{"step": step, "train_loss": 1.0}]
            report(Progress(step, total, step / total, {"search_score": 50.0 + step}, points, folder))
        adapter = directory / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text(f"{rank} {seed}")
        return RunResult({"score": 60.0 + rank + seed}, Counts(10 * rank, 2, 100, 40), adapter, total, total, 1.0)

    return train


def plan_of(
    folder: Path, seeds: str = "[0]", ranks: str = "[1, 2]", resources: str = "{cpu: 1}", storage: str = "runs"
) -> Plan:
    file = folder / "sweep.yaml"
    space = f"[{{method: lora, rank: {{values: {ranks}}}}}]"
    file.write_text(
        f"name: test\nmodel: m\ntasks: [toy/acceptability]\nseeds: {seeds}\nspace: {space}\n"
        f"resources: {resources}\nstorage: {storage}\n"
    )
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, lambda run: Counts(10, 2, 100, 40), lambda run: 1000))


def steps(log: Path) -> Counter[tuple[int, int, int]]:
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("step")]
    return Counter((int(rank), int(seed), int(step)) for _, rank, seed, step in lines)


def starts(log: Path) -> list[tuple[int, int, int]]:
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("start")]
    return [(int(line[1]), int(line[2]), int(line[3])) for line in lines]


def start_driver(
    folder: Path,
    *,
    ranks: Sequence[int],
    seeds: Sequence[int] = (0,),
    seconds: float = 0.0,
    behaviour: dict[tuple[int, int], str] | None = None,
    resources: str = "{cpu: 1}",
    session: bool = False,
    options: dict[str, Any] | None = None,
) -> subprocess.Popen[str]:
    """A driver in a process group of its own.

    Args:
        session: run all that the command line runs after reading its file, with a tracking store, not `run_sweep` alone.
        options: of `RunOptions`.
    """
    told = {"ranks": list(ranks), "seeds": list(seeds), "seconds": seconds, "resources": resources, "session": session}
    told |= {"behaviour": [[*key, how] for key, how in (behaviour or {}).items()], "options": options or {}}
    (folder / "driver.json").write_text(json.dumps(told))
    command = [sys.executable, "-m", "tests.orchestrator.stand_in", str(folder)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def drive(folder: Path) -> int:
    told = json.loads((folder / "driver.json").read_text())
    plan = plan_of(folder, json.dumps(told["seeds"]), json.dumps(told["ranks"]), told["resources"], str(folder))
    behaviour = {(rank, seed): how for rank, seed, how in told["behaviour"]}
    train = stand_in(str(folder / "log"), behaviour, told["seconds"])
    if told["session"]:
        return _drive_session(folder, plan, train)
    from orchestrator.runner import run_sweep

    options = RunOptions(**{"folder": folder / "test", "cpus": 2, "resume": True, "verbosity": "quiet", **told["options"]})
    outcome = run_sweep(plan, options, train=train)
    print(len(outcome.finished), len(outcome.interrupted), len(outcome.missing), len(outcome.failed), outcome.trouble or "")
    return 0


def _drive_session(folder: Path, plan: Plan, train: Train) -> int:
    from orchestrator import run, session

    session._prepare = lambda *_: {}
    session.run_sweep = functools.partial(session.run_sweep, train=train)
    arguments = [str(folder / "sweep.yaml"), "--cpus", "2", "--tracking-uri", f"sqlite:///{folder}/mlflow.db"]
    given = run.parser().parse_args(arguments)
    return run._run(given, plan, folder / "test", True, Console(file=sys.stdout, highlight=False), run._again(arguments))


def undisturbed(plan: Plan) -> dict[str, dict[str, float]]:
    """The metrics each trial has when nothing happens to it."""
    return {trial.key: {"score": 60.0 + trial.run.parameters["rank"] + trial.run.seed} for trial in plan.trials}


def kill_at_random(folder: Path, times: int, draw: random.Random) -> list[str]:
    """Kills the driver of a 12-trial sweep with -9 at random moments, resuming each time, and then lets it end.

    Asserts that no result ever disappears, nothing that finished starts again, and the scores are those of a quiet run. Returns
    a line for each kill.
    """
    told: dict[str, Any] = {"ranks": [1, 2, 4, 8], "seeds": [0, 1, 2], "seconds": 0.3}
    ledger, log, lines = Ledger(folder / "test"), folder / "log", []
    known: dict[str, Any] = {}
    for kill in range(times):
        process = start_driver(folder, **told)
        try:
            moment = draw.uniform(2.0, 25.0)
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        now = ledger.finished()
        assert known.items() <= now.items(), "a result is gone or has changed"
        known = now
        lines.append(f"kill {kill + 1} after {moment:.1f} s: {len(now)} of 12 trials done")
    process = start_driver(folder, **told)
    said, screen = process.communicate(timeout=400)
    assert said.split()[:4] == ["12", "0", "0", "0"], said + screen
    plan = plan_of(folder, str(told["seeds"]), str(told["ranks"]))
    results = ledger.results()
    assert {key: result.metrics for key, result in results.items()} == undisturbed(plan)
    ended = [
        json.loads(line)["key"] for line in ledger.path.read_text().splitlines() if json.loads(line)["status"] == "finished"
    ]
    assert len(ended) == len(set(ended)) == 12, "a trial finished twice"
    # The last step of a trial is done again only where the driver died before it heard of the result.
    assert len(starts(log)) <= 12 + 2 * times
    return lines


if __name__ == "__main__":
    sys.exit(drive(Path(sys.argv[1])))
