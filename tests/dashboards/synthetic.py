"""Sweeps in a real SQLite store: `write_sweep` goes through MLflow's client, `write_many` fills the same tables by SQL."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

START = int(time.time() - 4 * 3600) * 1000


@dataclass
class FakeRun:
    """One run to write: its kind, tags without the `craft.` prefix, parameters, last metrics, metrics by step."""

    kind: str
    tags: dict[str, str]
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    curve: dict[str, list[float]] = field(default_factory=dict)
    status: str = "FINISHED"
    started: int = START
    ended: int | None = START + 60_000
    name: str = ""


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
    summarize: bool = True,
    extra: dict[str, float] | None = None,
    reason: str = "NaN loss at step 3",
) -> list[FakeRun]:
    """A configuration with its trials: `scores` maps a task to its scores over seeds 0, 1, ..."""
    scores = {"toy": [80.0]} if scores is None else scores
    params = {"model": "sentence-transformers/all-MiniLM-L6-v2", "method": method, **(params or {})}
    label = label or f"{method} {identity}"
    counts = {
        "trainable_parameters": float(parameters),
        "adapter_bytes": 4.0 * parameters,
        "head_parameters": 770.0,
        **(extra or {}),
    }
    common = {"sweep": sweep, "configuration": identity, "method": method, "protocol": "honest", "label": label}
    runs: list[FakeRun] = []
    fine: dict[str, list[float]] = {}
    clock = at
    for task, values in scores.items():
        for seed, score in enumerate(values):
            state = (states or {}).get((task, seed), "finished")
            tags = {**common, "key": f"{identity}-{task}-{seed}", "task": task, "seed": str(seed), "status": state}
            tags |= {"error": reason} if state == "failed" else {}
            metrics = {**counts, "seconds": 50.0, "step_seconds": 0.01 + parameters / 1e7, "learning_rate": 0.0}
            metrics |= {"score": score} if state == "finished" else {}
            curve = {"search_score": [score - 6, score - 2, score][: 3 if state == "finished" else 2]}
            over = state != "running"
            status = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "running": "RUNNING"}[state]
            trial_params = {**params, "task": task, "seed": seed}
            ended = clock + 50_000 if over else None
            runs.append(
                FakeRun("trial", tags, trial_params, metrics, curve, status, clock, ended, f"{label} {task} seed {seed}")
            )
            clock += 50_000
            if state == "finished":
                fine.setdefault(task, []).append(score)
    if summarize and fine:
        means = [float(np.mean(values)) for values in fine.values()]
        score = float(np.mean(means))
        summary = {
            **counts,
            "score": score,
            "trials_done": float(sum(map(len, fine.values()))),
            "step_seconds": 0.01 + parameters / 1e7,
        }
        if min(map(len, fine.values())) > 1:
            summary |= {"score_low": score - 0.7, "score_high": score + 0.7}
        if len(fine) > 1:
            summary |= {f"score/{task}": mean for task, mean in zip(fine, means, strict=True)}
        runs.append(
            FakeRun("configuration", {**common, "status": "finished"}, params, summary, {}, "FINISHED", at, clock, label)
        )
    return runs


def sweep_run(name: str, *, planned: int = 0, status: str = "running", at: int = START) -> FakeRun:
    over = status != "running"
    tags = {"sweep": name, "status": status} | ({"trials": str(planned)} if planned else {})
    return FakeRun("sweep", tags, {}, {}, {}, "FINISHED" if over else "RUNNING", at, at + 10**6 if over else None, name)


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


def experiment_of(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return found.experiment_id if found else client.create_experiment(name)


def write_sweep(client: MlflowClient, name: str, runs: Iterable[FakeRun]) -> list[str]:
    """Writes runs through MLflow's client, as a sweep does; returns their run ids."""
    experiment = experiment_of(client, name)
    written = []
    for fake in runs:
        run = client.create_run(experiment, start_time=fake.started, run_name=fake.name or None)
        tags = [RunTag(f"craft.{key}", value) for key, value in {"kind": fake.kind, **fake.tags}.items()]
        metrics = [Metric(key, value, fake.started, 0) for key, value in fake.metrics.items()]
        for key, values in fake.curve.items():
            metrics += [Metric(key, value, fake.started + step, step) for step, value in enumerate(values)]
        client.log_batch(
            run.info.run_id, metrics=metrics, params=[Param(key, str(value)) for key, value in fake.params.items()], tags=tags
        )
        if fake.status != "RUNNING":
            client.set_terminated(run.info.run_id, fake.status, end_time=fake.ended)
        written.append(run.info.run_id)
    return written


def write_many(path: Path, experiment: str, runs: Iterable[FakeRun]) -> None:
    """Writes runs straight into the tables of an SQLite store that MLflow has made."""
    tables: dict[str, list[tuple[Any, ...]]] = {"runs": [], "params": [], "tags": [], "latest_metrics": [], "metrics": []}
    for fake in runs:
        run = uuid.uuid4().hex
        tables["runs"].append(
            (run, fake.name, "UNKNOWN", "", "", "test", fake.status, fake.started, fake.ended, "", "active", "", experiment)
        )
        tables["params"] += [(key, str(value), run) for key, value in fake.params.items()]
        tags = {f"craft.{key}": value for key, value in {"kind": fake.kind, **fake.tags}.items()} | {
            "mlflow.runName": fake.name
        }
        tables["tags"] += [(key, value, run) for key, value in tags.items()]
        points = [(key, value, fake.started, 0) for key, value in fake.metrics.items()]
        points += [
            (key, value, fake.started + step, step) for key, values in fake.curve.items() for step, value in enumerate(values)
        ]
        last = {key: (key, value, moment, step) for key, value, moment, step in points}
        tables["latest_metrics"] += [(key, value, moment, step, 0, run) for key, value, moment, step in last.values()]
        tables["metrics"] += [(key, value, moment, run, step, 0) for key, value, moment, step in points]
    columns = {
        "runs": "run_uuid,name,source_type,source_name,entry_point_name,user_id,status,start_time,end_time,source_version,"
        "lifecycle_stage,artifact_uri,experiment_id",
        "params": "key,value,run_uuid",
        "tags": "key,value,run_uuid",
        "latest_metrics": "key,value,timestamp,step,is_nan,run_uuid",
        "metrics": "key,value,timestamp,run_uuid,step,is_nan",
    }
    with sqlite3.connect(path) as connection:
        for table, rows in tables.items():
            marks = ",".join("?" * len(columns[table].split(",")))
            connection.executemany(f"insert into {table} ({columns[table]}) values ({marks})", rows)
