"""A sweep of nested ranks with a stand-in for its training, for the tests of what the orchestrator makes of one."""

from __future__ import annotations

from pathlib import Path

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Train, TrialSpec
from orchestrator.sweepfile.load import load_sweep

NESTED = "{nested: [[all, 2, 2], [all, 4, 4], [all, 8, 8]]}"
STEPS = 3


def size_of(run: RunSpec) -> int:
    """The last of a run's ranks."""
    return int(run.parameters["ranks"][-1])


def nested_plan(
    folder: Path, ranks: str = NESTED, block: str = "", more: str = "", seeds: str = "[0]", name: str = "t"
) -> Plan:
    """The plan of a sweep with one block of CRAFT; 10 parameters for each of a configuration's ranks."""
    file = folder / "sweep.yaml"
    file.write_text(
        f"name: {name}\nmodel: m\ntasks: [toy/acceptability]\nseeds: {seeds}\n"
        f"space:\n  - method: craft\n    ranks: {ranks}\n    {block}\nstorage: {folder}\n{more}"
    )
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, lambda run: Counts(10 * size_of(run), 2, 100, 40), lambda run: 1000))


def training_of(plan: Plan, number: int = 0) -> tuple[TrialSpec, list[TrialSpec]]:
    """One of the plan's trainings, and its slices, ascending."""
    training = plan.trainings[number]
    return training, plan.trained_by(training)[:-1]


def nested_stand_in(log: str, behaviour: dict[int, str]) -> Train:
    """A training of STEPS steps that scores 50 + rank at its end; `behaviour` by seed says how it goes wrong.

    Everything it needs is inside, because workers get it by value.
    """
    total = STEPS

    def train(spec, directory, *, report, resume_from, on_step):
        import json
        import os
        from pathlib import Path

        from craft.results import Counts, Progress, RunFailed, RunResult, SliceResult
        from craft.trainer.checkpoint import write_folder

        runs = {one.key: one.parameters["ranks"][-1] for one in spec.slices}
        own = spec.parameters["ranks"][-1]
        assert spec.key == spec.training_key
        first = json.loads((resume_from / "state.json").read_text())["step"] if resume_from else 0
        with Path(log).open("a") as file:
            file.write(f"start {own} {spec.seed} {first}\n")
        how = behaviour.get(spec.seed, "well")
        if how == "nan":
            raise RunFailed("training diverged: the loss is nan at step 1")
        for step in range(first + 1, total + 1):
            if how == "dies once" and first == 0 and step == 3:
                os.kill(os.getpid(), 9)
            on_step(step, total)

            def fill(folder, step=step):
                (folder / "state.json").write_text(json.dumps({"step": step}))

            scores = {key: {"search_score": float(10 * step + rank)} for key, rank in runs.items() if key != spec.key}
            points = [{"step": step, "train_loss": 1.0}]
            folder = write_folder(directory / f"checkpoint-{step}", fill)
            report(Progress(step, total, float(step), {"search_score": float(10 * step + own)}, points, folder, scores))

        def adapter(rank, place):
            def fill(folder):
                (folder / "run.json").write_text(json.dumps({"rank": rank}))

            place.mkdir(parents=True)
            return write_folder(place / "adapter", fill)

        def metrics(rank):
            return {"score": 50.0 + rank, "search_score": 30.0 + rank}

        slices = {
            key: SliceResult(metrics(rank), Counts(10 * rank, 2, 100, 40), adapter(rank, directory / "slices" / key), total)
            for key, rank in runs.items()
            if key != spec.key
        }
        kept = adapter(own, directory / "own")
        return RunResult(metrics(own), Counts(10 * own, 2, 100, 40), kept, total, total, 5.0, slices=slices)

    return train
