"""Recorded learning curves: the scores of a sweep's trials at every evaluation, in one small file that can be replayed.

A row is a finished trial: its parameters (flat, as the tracker shows them), task and seed, its curve of (epoch, search score),
its final scores and its costs. JSON lines hold one trial each; CSV holds one evaluation a line with the trial's columns
repeated, parameters and counts under `parameter.NAME` and `count.NAME`. Trials are found by their content, wherever the record
was made: model, data folder and protocol are not compared.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from craft.methods import shown_method
from craft.results import Counts
from craft.settings import OLDER, content_hash
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters, flatten
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.tools.journal import read

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
    """Curves by the content of their trials. Raises ValueError if two of them are the same trial."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        self.curves = list(curves)
        self._by_name = {curve.name: curve for curve in self.curves}
        if len(self._by_name) < len(self.curves):
            raise ValueError(f"the record holds {len(self.curves) - len(self._by_name)} trials twice")
        self._counts: dict[str, Counts] = {}

    @property
    def older(self) -> dict[str, dict[str, Any]]:
        """The training settings that no curve names, with what they meant then (`craft.settings.OLDER`)."""
        named = {name for curve in self.curves for name in curve.parameters}
        return {"training": {name: meant for name, meant in OLDER["training"].items() if name not in named}}

    def curve(self, run: RunSpec) -> Curve:
        """The curve of a run. Raises MissingCurve."""
        found = self._by_name.get(_name(asked(flat_parameters(run)), run.task, run.seed))
        if found is None:
            shown = ", ".join(f"{name} {value}" for name, value in flatten(run.parameters).items())
            near = sorted({(curve.task, curve.seed) for curve in self.curves})[:6]
            raise MissingCurve(
                f"the record has no curve of {run.method} ({shown}) at learning_rate {run.training.learning_rate:g} on "
                f"{run.task} with seed {run.seed}. It has {len(self.curves)} curves; tasks and seeds: {near}. Every training "
                "setting must be as recorded, too."
            )
        return found

    def counts(self, run: RunSpec) -> Counts:
        """The costs of the run's method, from any curve of equal method parameters. Raises MissingCurve."""
        own = {"method": shown_method(run.method, run.parameters), **flatten(run.parameters)}
        key = content_hash(own, 16)
        if key not in self._counts:
            found = next((one for one in self.curves if own.items() <= one.parameters.items()), None)
            if found is None:
                shown = ", ".join(f"{name} {value}" for name, value in own.items())
                raise MissingCurve(f"the record has no trial with {shown}: simulate a space whose every point was recorded")
            self._counts[key] = Counts(**{name: int(value) for name, value in found.counts.items() if name in BEFOREHAND})
        return self._counts[key]


def read_record(path: Path) -> RecordedCurves:
    """The record in a .jsonl or .csv file.

    Raises:
        ValueError: it cannot be read, or is no record; with the line.
    """
    try:
        if path.suffix == ".csv":
            return RecordedCurves(_from_csv(path))
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        curves = []
        for number, line in enumerate(lines, start=1):
            try:
                content = json.loads(line)
                content["evaluations"] = [(float(epoch), float(score)) for epoch, score in content["evaluations"]]
                curves.append(Curve(**content))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}:{number}: no recorded trial ({error})") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    if not curves:
        raise ValueError(f"{path} holds no recorded trial")
    return RecordedCurves(curves)


def write_record(curves: Iterable[Curve], path: Path) -> None:
    """Writes .jsonl or .csv, by the name's ending."""
    if path.suffix != ".csv":
        path.write_text("".join(f"{json.dumps(asdict(curve))}\n" for curve in curves), encoding="utf-8")
        return
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
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def record_sweep(folder: Path) -> tuple[list[Curve], int]:
    """The finished trials of a sweep's folder, from its journal and ledger, and how many others are left out.

    A trial that a scheduler stopped has only the beginning of a curve, so it cannot be replayed.
    """
    started: dict[str, dict[str, Any]] = {}
    points: dict[str, dict[float, float]] = {}
    for event, _ in read(SweepFolder(folder).journal):
        if event.get("kind") == "trial_started":
            started[event["key"]] = event
        elif event.get("kind") == "trial_progress":
            for row in event.get("rows", ()):
                if "epoch" in row and "search_score" in row:
                    points.setdefault(event["key"], {})[row["epoch"]] = row["search_score"]
    if not started:
        raise ValueError(f"{folder} holds no sweep's journal with trials: give a folder such as runs/NAME")
    curves, left_out = [], 0
    results = Ledger(folder).results()
    for key, event in started.items():
        result = results.get(key)
        if result is None or result.status != "finished" or key not in points:
            left_out += 1
            continue
        search = result.metrics.get("search_score", max(points[key].values()))
        curves.append(
            Curve(
                label=event["label"],
                parameters=asked(event["params"]),
                task=event["task"],
                seed=event["seed"],
                evaluations=sorted(points[key].items()),
                search_score=search,
                score=result.metrics["score"],
                seconds=result.seconds,
                counts=result.counts,
            )
        )
    return curves, left_out


def _from_csv(path: Path) -> list[Curve]:
    found: dict[str, Curve] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                parameters = {
                    k.removeprefix("parameter."): json.loads(v) for k, v in row.items() if k.startswith("parameter.") and v
                }
                counts = {k.removeprefix("count."): float(v) for k, v in row.items() if k.startswith("count.") and v}
                name = _name(parameters, row["task"], int(row["seed"]))
                if name not in found:
                    search, score, seconds = (float(row[column]) for column in ("search_score", "score", "seconds"))
                    found[name] = Curve(
                        row["label"], parameters, row["task"], int(row["seed"]), [], search, score, seconds, counts
                    )
                found[name].evaluations.append((float(row["epoch"]), float(row["evaluation"])))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}: a line is no recorded evaluation ({error})") from None
    return list(found.values())


def asked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The flat parameters of a run by which its curve is found."""
    return {name: value for name, value in flat.items() if name not in NOT_ASKED}


def _name(parameters: Mapping[str, Any], task: str, seed: int) -> str:
    return content_hash([sorted(parameters.items()), task, seed], 16)
