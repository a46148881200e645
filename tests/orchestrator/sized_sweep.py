"""A sweep with sizes and a stand-in for its training, for the tests of what the orchestrator makes of one."""

from __future__ import annotations

from pathlib import Path

from craft.results import Counts
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Train, Trial
from tests.orchestrator.plans import toy_plan

STEPS = 3


def sized_plan(folder: Path, block: str = "sizes: [20, 40]", more: str = "", seeds: str = "[0]") -> Plan:
    """The plan of a sweep with one block of CRAFT, whose whole adapter has 10 parameters for each of its last rank, 8."""
    space = f"seeds: {seeds}\nspace:\n  - {{method: craft, ranks: [all, 8, 8], {block}}}\n"
    return toy_plan(folder, f"{space}storage: {folder}\n{more}", lambda run: 10 * run.parameters["ranks"][-1])


def size_of(trial: Trial) -> int:
    """The most parameters of an output."""
    return int(trial.run.cut_from.to.split(":")[1]) if trial.run.cut_from else 80


def stand_in(log: str, behaviour: dict[int, str]) -> Train:
    """A training of STEPS steps. Each output scores its size; `behaviour` by seed says how the training goes wrong.

    Everything it needs is inside, because workers get it by value.
    """
    total = STEPS

    def train(spec, directory, *, report, resume_from, on_step, cuts=()):
        import json
        import os
        from pathlib import Path

        from craft.results import Progress, RunFailed, RunResult
        from craft.trainer.checkpoint import write_folder

        first = json.loads((resume_from / "state.json").read_text())["step"] if resume_from else 0
        with Path(log).open("a") as file:
            file.write(f"start {spec.seed} {first}\n")
        how = behaviour.get(spec.seed, "well")
        if how == "nan":
            raise RunFailed("training diverged: the loss is nan at step 1")
        for step in range(first + 1, total + 1):
            on_step(step, total)

            def fill(folder, step=step):
                (folder / "state.json").write_text(json.dumps({"step": step}))

            folder = write_folder(directory / f"checkpoint-{step}", fill)
            report(Progress(step, total, float(step), {"search_score": float(10 * step)}, [], folder))

        def adapter(size):
            def fill(folder):
                (folder / "run.json").write_text(json.dumps({"size": size}))

            place = directory / str(size)
            place.mkdir(parents=True)
            return write_folder(place / "adapter", fill)

        def metrics(size):
            return {"score": float(size), "search_score": float(size)}

        results = []
        for size in cuts:
            if how == "dies cutting" and results and not Path(f"{log}-died").exists():
                Path(f"{log}-died").touch()
                os.kill(os.getpid(), 9)
            results.append(RunResult(metrics(size), Counts(size - 1, 2, 100, 40), adapter(size), 0, 0, 1.0))
        return RunResult(metrics(80), Counts(80, 2, 100, 40), adapter(80), total, total, 5.0, cuts=results)

    return train
