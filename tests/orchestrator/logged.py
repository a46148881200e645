"""Logs of sweeps, written event by event, and what the tracking store has of such a sweep."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from orchestrator.plan.trial import Trial, TrialResult, Why
from orchestrator.record.events import (
    Ended,
    Event,
    Filed,
    Interrupted,
    Opened,
    Paused,
    Refused,
    Reported,
    SessionEnded,
    SessionStarted,
    Started,
    Underway,
    Wanted,
)
from orchestrator.record.log import Log
from orchestrator.record.state import Entry
from orchestrator.review.mirror import Mirror

FILE: dict[str, Any] = {
    "name": "demo",
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "tasks": ["toy/sentiment"],
    "space": [{"method": "craft", "ranks": ["all", 8, 8]}],
}
TASKS = ["toy/sentiment", "toy/paraphrase"]


def started(
    again: str = "",
    trainings: int = 2,
    manifest: Mapping[str, Any] | None = None,
    origin: Mapping[str, str] | None = None,
    **file: Any,
) -> dict[str, Any]:
    """The fields of a `SessionStarted` of a sweep whose file has these keys."""
    manifest = {"python": "3.11"} if manifest is None else dict(manifest)
    about = {"again": again, "manifest": manifest, "origin": dict(origin or {})}
    return {"sweep": FILE | file, "configurations": 2, "trainings": trainings, **about}


def entry(
    rank: int = 8,
    seed: int = 0,
    task: str = "toy/sentiment",
    label: str | None = None,
    why: Why | None = None,
    parameters: Mapping[str, Any] | None = None,
    planned: Mapping[str, float] | None = None,
) -> Entry:
    flat = {
        "method": "craft",
        "task": task,
        "seed": seed,
        "ranks": f"all,{rank},{rank}",
        "projections": "q,v",
        "learning_rate": 3e-4,
        **(parameters or {}),
    }
    key = f"{rank:x}-{seed}-{task.replace('/', '-')}"
    label = label or f"6·{rank}·{rank} qv lr 3e-4"
    planned = planned or {"trainable_parameters": 2.0 * rank * rank}
    return Entry(Trial(key, f"{rank:010x}", label, "craft", task, seed, "honest", flat, why or Why(), planned))


def finished(trial: Entry, score: float = 80.0, steps: int = 30, **fields: Any) -> TrialResult:
    fields = {
        "metrics": {"score": score, "accuracy": score, "search_score": score - 1},
        "counts": {"trainable_parameters": trial.trial.planned["trainable_parameters"], "head_parameters": 770.0},
        "facts": {"data_fingerprint": "ab" * 32, "device": "cpu"},
    } | fields
    return TrialResult(trial.key, "finished", steps=steps, seconds=12.5, **fields)


class SweepLog:
    """Writes the log of the sweep `demo`; each event comes a second after the one before."""

    def __init__(self, folder: Path, sweep: str = "demo", sweep_id: str = "5" * 32) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log = Log(folder / "log.jsonl")
        self._clock = itertools.count(1.79e9)
        self.add(Opened, sweep=sweep, sweep_id=sweep_id)

    def add(self, kind: type[Event], **fields: Any) -> None:
        assert self._log.append(kind(time=next(self._clock), **fields))

    def start(self, *entries: Entry, **fields: Any) -> None:
        self.add(SessionStarted, **started(**fields))
        if entries:
            self.add(Wanted, keys=[trial.key for trial in entries], trials=[entry.trial for entry in entries])

    def run(self, *entries: Entry) -> None:
        self.add(Started, keys=[trial.key for trial in entries])

    def begin(self, *entries: Entry, **fields: Any) -> None:
        self.start(*entries, **fields)
        self.run(*entries)

    def report(self, trial: Entry, step: int, **metrics: float) -> None:
        rows = [{"step": step - 5, "train_loss": 1.0 / step}, {"step": step, **(metrics or {"search_score": 50.0 + step})}]
        self.add(Reported, key=trial.key, rows=rows, epoch=step / 10, total_steps=30)

    def finish(self, trial: Entry, score: float = 80.0, adapter: str | None = None, **fields: Any) -> None:
        self.add(Ended, result=finished(trial, score, **fields), adapter=adapter)

    def end(self, trial: Entry, status: Any, **fields: Any) -> None:
        self.add(Ended, result=TrialResult(trial.key, status, **fields))

    def close(self, status: str = "finished") -> None:
        self.add(SessionEnded, status=status, seconds=60.0)

    def train(self, *entries: Entry, scores: Mapping[str, float] | None = None) -> None:
        """Runs trials of three evaluations each, from their starts to their ends."""
        for trial in entries:
            self.run(trial)
            for step in (10, 20, 30):
                self.report(trial, step)
            self.finish(trial, (scores or {}).get(trial.key, 80.0))


def story(folder: Path) -> Iterator[SweepLog]:
    """Writes a sweep in which much happens, and stops after each part: two tasks, a cut, candidates, failures, a pause, a lost
    driver, further seeds, files."""
    small, other = entry(8), entry(8, task="toy/paraphrase")
    large = entry(16)
    cut = entry(4, label="cut", why=Why("cut", large.key), parameters={"cut_from": large.key, "cut_to": 32})
    candidate = entry(99, why=Why("candidate", f"{16:010x}"))
    broken = entry(32)
    adapter = folder / "ray" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 40)
    (adapter.parent / "predictions").mkdir()
    (adapter.parent / "predictions" / "boolq.jsonl").write_text('{"answer": "true"}\n')
    sweep = SweepLog(folder)
    sweep.start(small, other, large, cut, candidate, broken, tasks=TASKS)
    counts = {"trainable_parameters": 1e6}
    names = {"configuration": "f" * 10, "label": "too large", "method": "craft", "protocol": "honest"}
    sweep.add(Refused, **names, parameters={"rank": 1}, counts=counts, reason="trainable_parameters is above max 40,000")
    sweep.run(small, other)
    sweep.report(small, 10)
    sweep.add(Underway, left=30.0, doing="training")
    yield sweep
    sweep.add(Paused, keys=[small.key])
    sweep.train(candidate)
    sweep.run(broken)
    sweep.end(broken, "failed", error="cuda is gone", retryable=True, steps=3)
    yield sweep
    sweep.run(small)
    sweep.report(small, 20, search_score=float("nan"), search_loss=float("inf"))
    sweep.add(Interrupted, keys=[other.key])
    sweep.run(other, large, cut)
    sweep.report(large, 10)
    sweep.start(small, other, large, cut, candidate, broken, tasks=TASKS)  # the driver was killed
    yield sweep
    sweep.run(small, other, large, cut)
    sweep.report(small, 20)
    sweep.report(small, 30)
    sweep.finish(small, 70.0, adapter="ray/adapter")
    sweep.train(other)
    sweep.finish(large, 90.0)
    sweep.finish(cut, 85.0)
    sweep.run(broken)
    sweep.end(broken, "stopped", metrics={"search_score": 40.0}, steps=10, notes=["never among the best"])
    yield sweep
    (folder / "front.csv").write_text("configuration,score\n")
    (folder / "front.png").write_bytes(b"png")
    for name in ("front.csv", "front.png"):
        sweep.add(Filed, path=name)
    sweep.close()
    yield sweep
    more = [entry(16, seed=seed) for seed in (1, 2)]
    sweep.start(small, other, large, cut, candidate, broken, *more, seeds=[0, 1, 2], tasks=TASKS)
    yield sweep
    sweep.train(*more, scores={more[0].key: 92.0})
    (folder / "front.csv").write_text("configuration,score\nb,1\n")
    sweep.add(Filed, path="front.csv")
    sweep.close()
    yield sweep


def mirror(folder: Path, uri: str, **options: Any) -> Mirror:
    """Returns a mirror that has taken a step."""
    copy = Mirror(folder, uri, **options)
    copy.step()
    return copy


def step_until_equal(copy: Mirror, folder: Path) -> None:
    """Takes steps as the process does, which waits after an error."""
    for _ in range(60):
        with suppress(Exception):
            copy.step()
        if copy.offset == (folder / "log.jsonl").stat().st_size:
            return
    raise AssertionError("it never becomes equal")


def runs(uri: str, experiment: str = "demo") -> dict[tuple[str, str], Run]:
    """Returns every run of the experiment by kind and key; two of one kind and key are an error."""
    client = MlflowClient(uri)
    stored = client.search_runs([client.get_experiment_by_name(experiment).experiment_id], run_view_type=ViewType.ACTIVE_ONLY)
    table = {(run.data.tags["craft.kind"], run.data.tags["craft.key"]): run for run in stored}
    assert len(table) == len(stored), "a run was made twice"
    return table


def history(uri: str, run: Run, metric: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run.info.run_id, metric)]


def contents(uri: str) -> dict[str, Any]:
    """Returns everything that the store has of the sweep, with keys in place of MLflow's ids, as plain data."""
    client, table = MlflowClient(uri), runs(uri)
    keys = {run.info.run_id: "/".join(place) for place, run in table.items()}
    plain = {}
    for place, run in table.items():
        tags = {name: keys.get(value, value.replace(run.info.run_id, "ID")) for name, value in run.data.tags.items() if value}
        files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
        # What trials report; other metrics are summed up: their last values count.
        points = {
            name: sorted(
                {(point.step, point.timestamp, point.value) for point in client.get_metric_history(run.info.run_id, name)}
            )
            for name in ({"search_score", "train_loss", "epoch"} & run.data.metrics.keys() if place[0] == "trial" else ())
        }
        times = [run.info.status, run.info.start_time, run.info.end_time if run.info.status != "RUNNING" else None]
        data = [dataset.dataset.digest for dataset in run.inputs.dataset_inputs]
        plain["/".join(place)] = [times, tags, dict(run.data.params), dict(run.data.metrics), points, files, data]
    return dict(json.loads(json.dumps(plain).replace(uri, "URI")))
