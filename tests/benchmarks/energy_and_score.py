"""Does the energy that CRAFT's ranks keep say how well they train? Rank correlations over recorded trainings, as Markdown.

    python -m tests.benchmarks.energy_and_score docs/measurements/records/energy.csv [RECORDS ...]

A row for each record, model and task. "Energy" and "parameters" are Spearman's correlations with the reported score over
configurations. A configuration has the mean over its seeds, and of those that differ in the learning rate only, the one that
the search split prefers takes part. "Energy at equal parameters" is the partial correlation: that of what is left of the ranks
of energy and score after a straight line in the ranks of the parameters. Brackets hold the ends of a 95 % interval: percentiles
of 10,000 bootstrap samples of configurations. "Pairs" counts the pairs of configurations with equal numbers of parameters in
which the one that keeps more energy has the higher score; equal scores are left out, and so are cut and nested adapters, whose
ranks did not train alone. Then each record has a table of the configurations themselves, under each group its scores.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from orchestrator.plan.trial import TrialResult
from orchestrator.results.summary import Entry
from tests.benchmarks.recorded import finished_trials

SAMPLES = 10_000

Floats = NDArray[np.float64]


class Point(NamedTuple):
    """A configuration of CRAFT."""

    energy: float
    parameters: float
    score: float
    label: str = ""


def points(entries: Sequence[Entry]) -> list[Point]:
    """The configurations of CRAFT that trained alone, each at its best learning rate."""
    found: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for one in entries:
        alone = one.nested_in is None and not {"nested", "cut_to"} & one.parameters.keys()
        if alone and "energy_kept" in _result(one).metrics:
            same = " ".join(str(one.parameters.get(name)) for name in ("ranks", "projections", "rate_scaling"))
            found[same][one.configuration].append(one)
    chosen = (max(rates.values(), key=lambda trials: _mean(trials, "search_score")) for rates in found.values())
    return [
        Point(
            energy=_mean(trials, "energy_kept"),
            parameters=_result(trials[0]).counts["trainable_parameters"],
            score=_mean(trials, "score"),
            label=trials[0].label,
        )
        for trials in chosen
    ]


def _result(one: Entry) -> TrialResult:
    assert one.result is not None
    return one.result


def _mean(trials: Sequence[Entry], metric: str) -> float:
    return fmean(_result(one).metrics[metric] for one in trials)


def correlations(values: Floats) -> Floats:
    """Of samples `(..., n, 3)` of points: energy with score, parameters with score, energy with score at equal parameters."""
    ranks = rankdata(values, axis=-2)
    energy, size, score = np.moveaxis(ranks - ranks.mean(-2, keepdims=True), -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):

        def correlation(first: Floats, second: Floats) -> Floats:
            result: Floats = (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
            return result

        by_energy, by_size, both = correlation(energy, score), correlation(size, score), correlation(energy, size)
        partial = (by_energy - by_size * both) / np.sqrt((1 - by_size**2) * (1 - both**2))
    return np.stack([by_energy, by_size, partial], axis=-1)


def pairs(found: Sequence[Point]) -> tuple[int, int]:
    """How often more energy at equal parameters went with a higher score, and among how many pairs."""
    compared = [
        (first.energy > second.energy) == (first.score > second.score)
        for first, second in combinations(found, 2)
        if first.parameters == second.parameters and first.energy != second.energy and first.score != second.score
    ]
    return sum(compared), len(compared)


def table(groups: Sequence[tuple[str, list[Point]]]) -> str:
    heads = ("model and task", "configurations", "energy", "parameters", "energy at equal parameters", "pairs")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name, found in groups:
        agreed, compared = pairs(found)
        draws = np.random.default_rng(0).integers(len(found), size=(SAMPLES, len(found)))
        # Where every size has one energy, nothing is left of it at equal parameters.
        columns = 3 if compared else 2
        values = np.array([point[:3] for point in found])
        low, high = np.nanpercentile(correlations(values[draws])[:, :columns], [2.5, 97.5], axis=0)
        cells = [_shown(*ends) for ends in zip(correlations(values)[:columns], low, high, strict=True)]
        cells += [""] * (3 - columns) + [f"{agreed} of {compared}" if compared else ""]
        lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def configurations(groups: Sequence[tuple[str, list[Point]]]) -> str:
    heads = ("configuration", "parameters", "energy kept, %", *(name for name, _ in groups))
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    scores = [{point.label: point.score for point in found} for _, found in groups]
    every = {point.label: point for _, found in groups for point in found}
    for label, point in sorted(every.items(), key=lambda item: (item[1].parameters, item[1].energy)):
        cells = [f"{score[label]:.1f}" if label in score else "" for score in scores]
        lines.append(f"| {label} | {point.parameters:,.0f} | {100 * point.energy:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(value: float, low: float, high: float) -> str:
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def groups_of(records: Iterable[Path]) -> list[tuple[str, list[Point]]]:
    """The configurations of each record by model and task, with the group's name; of groups with four or more."""
    found: list[tuple[str, list[Point]]] = []
    for record in records:
        by_model: dict[str, list[Entry]] = defaultdict(list)
        for task, entries in finished_trials([record]).items():
            for one in entries:
                by_model[f"{Path(str(one.parameters['model'])).name}, {task}"].append(one)
        found += [(name, points(entries)) for name, entries in by_model.items()]
    return [(name, group) for name, group in found if len(group) >= 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="sweeps' folders, or CSV files of trials")
    records = parser.parse_args().records
    print(table(groups_of(records)), *(configurations(groups_of([record])) for record in records), sep="\n\n")


if __name__ == "__main__":
    main()
