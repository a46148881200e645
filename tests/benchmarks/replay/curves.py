"""Recorded learning curves: the scores of a sweep's trials at every evaluation, in one CSV that can be replayed.

    python -m tests.benchmarks.replay.curves runs/NAME FILE.csv.gz      writes the curves of a finished sweep

A line is one evaluation with its trial's columns repeated, parameters and counts under `parameter.NAME` and `count.NAME`.
Trials are found by their content: model, data folder and protocol are not compared.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from craft.methods import shown_method
from craft.results import Counts
from craft.settings import content_hash
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters, flatten
from orchestrator.record.folder import SweepFolder
from orchestrator.state.events import Reported
from orchestrator.state.log import read_events
from orchestrator.state.state import State

NOT_ASKED = ("model", "revision", "protocol", "task", "seed")
"""Parameters of a run by which no curve is searched; task and seed have columns of their own."""
BEFOREHAND = ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "optimizer_bytes")
"""Counts that a sweep knows before it trains; a replay may use no others."""


class MissingCurve(LookupError):
    """A record does not hold the curve or count that was asked for; nothing is made up in its place."""


@dataclass(frozen=True)
class Curve:
    """One finished trial. `evaluations` are (epoch, search score) in order; `seconds` its whole time."""

    label: str
    parameters: dict[str, Any]
    task: str
    seed: int
    evaluations: list[tuple[float, float]]
    search_score: float
    score: float
    seconds: float
    counts: dict[str, float]

    @property
    def name(self) -> str:
        return _name(self.parameters, self.task, self.seed)


class RecordedCurves:
    """Curves by the content of their trials."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        self.curves = list(curves)
        self._by_name = {curve.name: curve for curve in self.curves}
        self._counts: dict[str, Counts] = {}

    @property
    def unnamed(self) -> dict[str, Any]:
        """The training settings of the recording that its curves do not name."""
        named = {name for curve in self.curves for name in curve.parameters}
        settings = {"head_start": "random", "head_learning_rate": None}
        return {name: value for name, value in settings.items() if name not in named}

    def curve(self, run: RunSpec) -> Curve:
        """The curve of a run. Raises MissingCurve."""
        groups = self._by_name.get(_name(asked(flat_parameters(run)), run.task, run.seed))
        if groups is None:
            raise MissingCurve(f"no curve of {run.method} with {flatten(run.parameters)} on {run.task} with seed {run.seed}")
        return groups

    def counts(self, run: RunSpec) -> Counts:
        """The costs of the run's method, from any curve of equal method parameters. Raises MissingCurve."""
        own = {"method": shown_method(run.method, run.parameters), **flatten(run.parameters)}
        key = content_hash(own, 16)
        if key not in self._counts:
            groups = next((part for part in self.curves if own.items() <= part.parameters.items()), None)
            if groups is None:
                raise MissingCurve(f"no trial with {own}")
            self._counts[key] = Counts(**{name: int(value) for name, value in groups.counts.items() if name in BEFOREHAND})
        return self._counts[key]


def read_record(path: Path) -> RecordedCurves:
    """The record in a .csv or .csv.gz file."""
    groups: dict[str, Curve] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
            parameters = {
                k.removeprefix("parameter."): json.loads(v) for k, v in row.items() if k.startswith("parameter.") and v
            }
            counts = {k.removeprefix("count."): float(v) for k, v in row.items() if k.startswith("count.") and v}
            name = _name(parameters, row["task"], int(row["seed"]))
            if name not in groups:
                search, score, seconds = (float(row[column]) for column in ("search_score", "score", "seconds"))
                groups[name] = Curve(
                    row["label"], parameters, row["task"], int(row["seed"]), [], search, score, seconds, counts
                )
            groups[name].evaluations.append((float(row["epoch"]), float(row["evaluation"])))
    return RecordedCurves(groups.values())


def write_record(curves: Iterable[Curve], path: Path) -> None:
    rows = [
        {
            **{f"parameter.{name}": json.dumps(value) for name, value in curve.parameters.items()},
            **{f"count.{name}": value for name, value in curve.counts.items()},
            **{name: getattr(curve, name) for name in ("label", "task", "seed", "search_score", "score", "seconds")},
            "epoch": epoch,
            "evaluation": score,
        }
        for curve in curves
        for epoch, score in curve.evaluations
    ]
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def record_sweep(folder: Path) -> list[Curve]:
    """The finished trials of a sweep's folder, from its log."""
    state, points = State(), dict[str, dict[float, float]]()
    for event, _ in read_events(SweepFolder(folder).record):
        state = state.after(event)
        if isinstance(event, Reported) and "search_score" in event.rows[-1]:
            points.setdefault(event.key, {})[event.epoch] = event.rows[-1]["search_score"]
    return [
        Curve(
            entry.label,
            asked(entry.parameters),
            entry.task,
            entry.seed,
            sorted(points[key].items()),
            result.metrics["search_score"],
            result.metrics["score"],
            result.seconds,
            result.counts,
        )
        for key, entry in state.entries.items()
        if key in points and (result := entry.finished) is not None
    ]


def asked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The flat parameters of a run by which its curve is found."""
    return {name: value for name, value in flat.items() if name not in NOT_ASKED}


def _name(parameters: Mapping[str, Any], task: str, seed: int) -> str:
    return content_hash([sorted(parameters.items()), task, seed], 16)


def main(arguments: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("folder", type=Path)
    flags.add_argument("file", type=Path)
    options = flags.parse_args(arguments)
    write_record(record_sweep(options.folder), options.file)


if __name__ == "__main__":
    main()
