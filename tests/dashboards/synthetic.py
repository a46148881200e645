"""Sweeps of one's own choosing, as trials with their results; their logs, and such a log in a real store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.store import Store
from orchestrator.plan.trial import Trial, TrialResult
from orchestrator.record.events import Ended, Event, Opened, Reported, SessionEnded, SessionStarted, Started, Underway, Wanted
from tests.orchestrator.logged import mirror
from tests.orchestrator.recorded import write_log

START = time.time() - 4 * 3600
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass
class FakeTrial:
    """A trial that began at `started`, in seconds, and after 50 s has a result unless it waits or runs; its metrics by step."""

    trial: Trial
    status: Any
    score: float
    curve: dict[str, list[float]]
    started: float
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def events(self) -> Iterator[Event]:
        key, steps = self.trial.key, max(map(len, self.curve.values()), default=0)
        if self.status == "waiting":
            return
        yield Started(time=self.started, keys=[key])
        for step in range(steps):
            row = {name: values[step] for name, values in self.curve.items() if step < len(values)}
            at = {"time": self.started + step, "epoch": float(step)}
            yield Reported(key=key, rows=[{"step": step, **row}], total_steps=steps, **at)
        if self.status != "running":
            metrics = {name: values[-1] for name, values in self.curve.items()}
            metrics |= {"score": self.score} if self.status == "finished" else {}
            counts = {name: value for name, value in self.trial.planned.items() if name != "seconds"}
            took = {"steps": steps, "seconds": self.trial.planned.get("seconds", 50.0)}
            result = TrialResult(key, self.status, metrics, counts, **took, error=self.error, facts=self.facts)
            yield Ended(time=self.started + 50, result=result)


@dataclass
class FakeSession:
    """What a sweep's driver writes down: how many trainings it plans, how it ended, what it reported last."""

    planned: int = 0
    status: str = "running"
    underway: Underway | None = None


FakeRun = FakeTrial | FakeSession
StoreAt = Callable[[str, Sequence[FakeRun]], Store]


def configuration(
    identity: str,
    *,
    method: str = "craft",
    label: str = "",
    params: dict[str, Any] | None = None,
    scores: dict[str, list[float]] | None = None,
    parameters: int = 1000,
    states: dict[tuple[str, int], str] | None = None,
    extra: dict[str, float] | None = None,
    facts: dict[str, Any] | None = None,
    reason: str = "NaN loss at step 3",
) -> list[FakeTrial]:
    """The trials of a configuration: `scores` maps a task to its scores over seeds 0, 1, ..."""
    flat = {"model": MODEL, "method": method, **(params or {})}
    counts = {"trainable_parameters": float(parameters), "adapter_bytes": 4.0 * parameters, "head_parameters": 770.0}
    counts |= {"step_seconds": 0.01 + parameters / 1e7, **(extra or {})}
    names = (identity, label or f"{method} {identity}", method)
    trials: list[FakeTrial] = []
    for task, values in ({"toy": [80.0]} if scores is None else scores).items():
        for seed, score in enumerate(values):
            state = (states or {}).get((task, seed), "finished")
            trial = Trial(f"{identity}-{task}-{seed}", *names, task, seed, "honest", flat | {"task": task, "seed": seed},
                          planned=counts)  # fmt: skip
            curve = {"search_score": [score - 6, score - 2, score][: 3 if state == "finished" else 2]}
            error = reason if state == "failed" else None
            trials.append(FakeTrial(trial, state, score, curve, START + 50 * len(trials), error, {**(facts or {})}))
    return trials


def grid(seeds: int = 3, tasks: tuple[str, ...] = ("toy",)) -> list[FakeTrial]:
    """A sweep that looks like the default one: craft over ranks, projections and learning rates, and LoRA."""
    rng, runs = np.random.default_rng(0), list[FakeTrial]()

    def add(method: str, label: str, base: float, size: int, params: dict[str, Any], extra: dict[str, float]) -> None:
        scores = {task: list(base - 2 * index + rng.normal(0, 0.6, seeds)) for index, task in enumerate(tasks)}
        shown = {"method": method, "label": label, "params": params, "extra": extra}
        runs.extend(configuration(sweep_id(label)[:10], scores=scores, parameters=size, **shown))

    for rank, projections, rate in product((16, 32, 64, 128), ("q,v", "q,k,v,o"), (1e-3, 3e-3)):
        size = len(projections.split(",")) * (36 + 2 * rank * rank)
        base = 70 + 3.2 * np.log2(rank) - (2.5 if rate < 2e-3 else 0) + (0.8 if "k" in projections else 0)
        params = {"ranks": f"all,{rank},{rank}", "r1": 6, "r2": rank, "r3": rank}
        extra = {"energy_kept": 0.1 + 0.1 * np.log2(rank / 8), "peak_memory_bytes": 5e8 + 300.0 * size}
        label = f"craft 6·{rank}·{rank} {projections.replace(',', '')} lr {rate:g}"
        add("craft", label, base, size, params | {"projections": projections, "learning_rate": rate}, extra)
    for rank, rate in product((1, 4, 8), (3e-4, 1e-3)):
        params = {"rank": rank, "projections": "q,v", "learning_rate": rate}
        add("lora", f"lora r {rank} qv lr {rate:g}", 79 + 1.6 * rank**0.5, 9216 * rank, params, {"peak_memory_bytes": 6e8})
    return runs


def events_of(name: str, runs: Sequence[FakeRun]) -> list[Event]:
    """The log of a sweep with these trials."""
    fakes = [run for run in runs if isinstance(run, FakeTrial)]
    own = next((run for run in runs if isinstance(run, FakeSession)), FakeSession())
    trials = {fake.trial.key: fake.trial for fake in fakes}
    tasks = [*dict.fromkeys(trial.task for trial in trials.values())] or ["toy"]
    model = next((trial.parameters["model"] for trial in trials.values()), MODEL)
    file = {"name": name, "model": model, "tasks": tasks, "space": [{"method": "craft"}]}
    began, planned = min([fake.started for fake in fakes], default=START), own.planned or len(fakes)
    opened = time.time() if own.status == "running" and own.underway is None else began  # from the driver, which lives
    log: list[Event] = [
        Opened(time=opened, sweep=name, sweep_id=sweep_id(name)),
        SessionStarted(time=began, sweep=file, configurations=1, trainings=planned, manifest={"folder": "/home/me"}),
        Wanted(time=began, keys=[*trials], trials=[*trials.values()]),
        *(event for fake in fakes for event in fake.events()),
        *([own.underway] if own.underway else []),
    ]
    if own.status != "running":
        log.append(SessionEnded(time=began + 1000, status=own.status, seconds=1000.0))
    return log


def send(uri: str, folder: Path, *events: Event) -> None:
    """Adds events to the log in a folder, and makes the store equal to it."""
    write_log(folder, *events)
    mirror(folder, uri)


def sweep_id(name: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, name).hex
