"""Sweeps of one's own choosing, as trials with their results; their logs, and such a log in a real store."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient

from orchestrator.plan.trial import Trial, TrialResult, Why
from orchestrator.record.events import (
    Ended,
    Event,
    Opened,
    Reported,
    SessionEnded,
    SessionStarted,
    Started,
    Underway,
    Wanted,
)
from orchestrator.record.log import Log
from orchestrator.tracking.artifacts import LogPieces

START = int(time.time() - 4 * 3600) * 1000


@dataclass
class FakeRun:
    """A trial, or a sweep: its tags, parameters, last metrics, metrics by step. `started` and `ended` are in milliseconds."""

    tags: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    curve: dict[str, list[float]] = field(default_factory=dict)
    started: int = START
    ended: int | None = START + 60_000


def configuration(
    identity: str,
    *,
    sweep: str = "ranks",
    method: str = "craft",
    label: str = "",
    params: dict[str, Any] | None = None,
    scores: dict[str, list[float]] | None = None,
    parameters: int = 1000,
    at: int = START,
    states: dict[tuple[str, int], str] | None = None,
    extra: dict[str, float] | None = None,
    reason: str = "NaN loss at step 3",
) -> list[FakeRun]:
    """The trials of a configuration: `scores` maps a task to its scores over seeds 0, 1, ..."""
    params = {"model": "sentence-transformers/all-MiniLM-L6-v2", "method": method, **(params or {})}
    label = label or f"{method} {identity}"
    counts = {"trainable_parameters": float(parameters), "adapter_bytes": 4.0 * parameters, "head_parameters": 770.0}
    counts |= {"step_seconds": 0.01 + parameters / 1e7, **(extra or {})}
    common = {"sweep": sweep, "configuration": identity, "method": method, "protocol": "honest", "label": label}
    runs: list[FakeRun] = []
    for task, values in ({"toy": [80.0]} if scores is None else scores).items():
        for seed, score in enumerate(values):
            state, started = (states or {}).get((task, seed), "finished"), at + 50_000 * len(runs)
            tags = {**common, "key": f"{identity}-{task}-{seed}", "task": task, "seed": str(seed), "status": state}
            tags |= {"error": reason} if state == "failed" else {}
            metrics = {"seconds": 50.0, "learning_rate": 0.0, **counts} | ({"score": score} if state == "finished" else {})
            curve = {"search_score": [score - 6, score - 2, score][: 3 if state == "finished" else 2]}
            ended = None if state in ("running", "waiting") else started + 50_000
            runs.append(FakeRun(tags, {**params, "task": task, "seed": seed}, metrics, curve, started, ended))
    return runs


def sweep_run(name: str, *, planned: int = 0, status: str = "running") -> FakeRun:
    return FakeRun({"sweep": name, "status": status} | ({"trials": str(planned)} if planned else {}))


def grid(sweep: str = "ranks", seeds: int = 3, tasks: tuple[str, ...] = ("toy",)) -> list[FakeRun]:
    """A sweep that looks like the default one: craft over ranks, projections and learning rates, and LoRA."""
    rng = np.random.default_rng(0)
    runs: list[FakeRun] = []
    at = START
    for rank in (16, 32, 64, 128):
        for projections in ("q,v", "q,k,v,o"):
            for rate in (1e-3, 3e-3):
                count = len(projections.split(",")) * (36 + 2 * rank * rank)
                base = 70 + 3.2 * np.log2(rank) - (2.5 if rate < 2e-3 else 0) + (0.8 if "k" in projections else 0)
                params = {
                    "ranks": f"all,{rank},{rank}",
                    "r1": 6,
                    "r2": rank,
                    "r3": rank,
                    "projections": projections,
                    "learning_rate": rate,
                }
                scores = {task: list(base - 2 * index + rng.normal(0, 0.6, seeds)) for index, task in enumerate(tasks)}
                label = f"craft 6·{rank}·{rank} {projections.replace(',', '')} lr {rate:g}"
                identity = uuid.uuid5(uuid.NAMESPACE_URL, label).hex[:10]
                extra = {"energy_kept": 0.1 + 0.1 * np.log2(rank / 8), "peak_memory_bytes": 5e8 + 300.0 * count}
                runs += configuration(
                    identity, sweep=sweep, params=params, scores=scores, parameters=count, at=at, label=label, extra=extra
                )
                at += 40_000
    for rank in (1, 4, 8):
        for rate in (3e-4, 1e-3):
            scores = {
                task: list(79 + 1.6 * rank**0.5 - 2 * index + rng.normal(0, 0.6, seeds)) for index, task in enumerate(tasks)
            }
            label = f"lora r {rank} qv lr {rate:g}"
            params = {"rank": rank, "projections": "q,v", "learning_rate": rate}
            extra = {"peak_memory_bytes": 6e8}
            identity = uuid.uuid5(uuid.NAMESPACE_URL, label).hex[:10]
            kind = {"sweep": sweep, "method": "lora", "at": at, "label": label, "parameters": 9216 * rank}
            runs += configuration(identity, params=params, scores=scores, extra=extra, **kind)
            at += 40_000
    return runs


def events_of(name: str, runs: Iterable[FakeRun]) -> list[Event]:
    """The log of a sweep with these trials."""
    runs = [*runs]
    trials = [run for run in runs if "key" in run.tags]
    own = next((run.tags for run in runs if "key" not in run.tags), {"status": "running"})
    described = {run.tags["key"]: _trial(run) for run in trials}
    tasks = [*dict.fromkeys(run.tags["task"] for run in trials)] or ["toy"]
    model = next((run.params["model"] for run in trials), "sentence-transformers/all-MiniLM-L6-v2")
    file = {"name": name, "model": model, "tasks": tasks, "space": [{"method": "craft"}]}
    began, planned = min([run.started for run in runs], default=START) / 1000, int(own.get("trials", len(trials)))
    log: list[Event] = [
        Opened(time=began, sweep=name, sweep_id=sweep_id(name)),
        SessionStarted(time=began, sweep=file, configurations=1, trainings=planned, manifest={"folder": "/home/me"}),
        Wanted(time=began, keys=[*described], trials=[*described.values()]),
        *(event for run in trials for event in _life(run)),
    ]
    if "underway" in own:
        report = json.loads(own["underway"])
        log.append(Underway(time=report["time"] / 1000, left=report["left"], doing=report["doing"]))
    if own["status"] != "running":
        log.append(SessionEnded(time=began + 1000, status=own["status"], seconds=1000.0))
    return log


def _trial(run: FakeRun) -> Trial:
    tags = run.tags
    names = (tags[name] for name in ("key", "configuration", "label", "method", "task"))
    why = Why("candidate", tags["tunes"]) if "tunes" in tags else Why()
    return Trial(*names, int(tags["seed"]), tags["protocol"], run.params, why, _counts(run))


def _counts(run: FakeRun) -> dict[str, float]:
    return {name: value for name, value in run.metrics.items() if name not in ("seconds", "score", "learning_rate")}


def _life(run: FakeRun) -> Iterator[Event]:
    key, status, started = run.tags["key"], run.tags["status"], run.started / 1000
    if status == "waiting":
        return
    steps = max(map(len, run.curve.values()), default=0)
    yield Started(time=started, keys=[key])
    for step in range(steps):
        row = {name: values[step] for name, values in run.curve.items() if step < len(values)}
        yield Reported(time=started + step, key=key, rows=[{"step": step, **row}], epoch=float(step), total_steps=steps)
    if run.ended is not None:
        metrics = {name: values[-1] for name, values in run.curve.items()}
        metrics |= {"score": run.metrics["score"]} if "score" in run.metrics else {}
        facts = {name.removeprefix("fact."): value for name, value in run.tags.items() if name.startswith("fact.")}
        rest = {"seconds": run.metrics.get("seconds", 0.0), "error": run.tags.get("error"), "facts": facts}
        result = TrialResult(key, status, metrics, _counts(run), steps=steps, **rest)  # type: ignore[arg-type]
        yield Ended(time=run.ended / 1000, result=result)


def write_sweep(client: MlflowClient, name: str, events: Iterable[Event], folder: Path) -> str:
    """Adds events to the log in `folder`, and gives the store the sweep's run with the log, as a sweep does; returns its id."""
    events, log = [*events], Log(folder / "log.jsonl")
    log.append(*events)
    log.close()
    experiment = client.get_experiment_by_name(name)
    place = experiment.experiment_id if experiment else client.create_experiment(name, (folder / "artifacts").as_uri())
    runs = client.search_runs([place], "tags.`craft.kind` = 'sweep'")
    if not runs:
        tags = {"craft.kind": "sweep", "craft.key": name, "craft.sweep": name, "craft.sweep_id": sweep_id(name)}
        runs = [client.create_run(place, int(1000 * events[0].time), {**tags, "craft.status": "running"}, run_name=name)]
    run = str(runs[0].info.run_id)
    if isinstance(events[-1], SessionEnded):
        client.set_tag(run, "craft.status", events[-1].status)
    LogPieces(log.path).send(client, run, log.path.stat().st_size)
    return run


def sweep_id(name: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, name).hex
