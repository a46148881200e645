"""Ways to train nested ranks beside one training a rank, from recorded sweeps: one Markdown table a task.

    python -m tests.benchmarks.nested_ranks runs/nested-toy [runs/nested-sst2 docs/measurements/records/nested_stsb.csv ...]

Each side's learning rate is the one that the search split chooses with the first seed: of separate trainings one for
each rank, of a nested training one for all its ranks, by the mean over them. "SVD of R" is the separate training of rank R,
cut to the parameters of the smaller ones (`orchestrator.adapters --slice parameters:N`). A cell holds the mean reported score
over seeds, the half width of its 95 % interval and, but for separate trainings, the paired difference from them with its own.
`steps` counts batches that go through the model for the whole front, as a multiple of the largest rank's own training.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from orchestrator.results.intervals import Interval, compare, interval
from orchestrator.results.summary import Entry
from tests.benchmarks.recorded import finished_trials

SEPARATE, SVD = "separate", "SVD"


@dataclass(frozen=True)
class Front:
    """The chosen trials of one way: by rank and seed."""

    way: str
    rates: str
    trials: Mapping[int, Mapping[int, Entry]]

    def scores(self, rank: int) -> dict[tuple[str, int], float]:
        return {(one.task, seed): _value(one, "score") for seed, one in self.trials[rank].items()}

    def area(self) -> float:
        means = [interval(self.scores(rank).values()).mean for rank in sorted(self.trials)]
        counts = (
            one.result.counts for rank in sorted(self.trials) for one in list(self.trials[rank].values())[:1] if one.result
        )
        sizes = [count["trainable_parameters"] for count in counts]
        return area(sizes, means)


def area(parameters: Any, scores: Any, between: tuple[float, float] | None = None) -> float:
    """The mean of a curve over log2 of the parameters, linear between its points: its area over its width."""
    at, score = np.log2(np.asarray(parameters, dtype=float)), np.asarray(scores, dtype=float)
    low, high = (at[0], at[-1]) if between is None else np.log2(between)
    inside = (at > low) & (at < high)
    ends = np.interp([low, high], at, score)
    curve = np.concatenate([ends[:1], score[inside], ends[1:]])
    return float(np.trapezoid(curve, np.concatenate([[low], at[inside], [high]])) / (high - low))


def fronts(entries: Sequence[Entry]) -> list[Front]:
    """The front of each way, the separate one first."""
    found: dict[str, dict[int, dict[float, dict[int, Entry]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    cuts = [one for one in entries if "cut_to" in one.parameters]
    for one in entries:
        if one not in cuts:
            way = one.parameters.get("nested_training") or SEPARATE
            found[way][int(one.parameters["r2"])][float(one.parameters["learning_rate"])][one.seed] = one
    separate = _chosen(SEPARATE, found.pop(SEPARATE))
    origins = sorted({int(one.parameters["r2"]) for one in cuts})
    nested = [_chosen(way, by_rank) for way, by_rank in found.items()]
    return [separate, *(_cut(origin, cuts, separate) for origin in origins), *nested]


def _cut(origin: int, cuts: Sequence[Entry], separate: Front) -> Front:
    """What was cut from the separate training of one rank, by the ranks that have as many parameters, and that training."""
    by_rank = {origin: separate.trials[origin]}
    for rank in (rank for rank in separate.trials if rank < origin):
        result = next(iter(separate.trials[rank].values())).result
        assert result is not None
        size = f"parameters:{result.counts['trainable_parameters']:.0f}"
        trials = {one.seed: one for one in cuts if int(one.parameters["r2"]) == origin and one.parameters["cut_to"] == size}
        by_rank |= {rank: trials} if trials else {}
    rates = {f"{float(one.parameters['learning_rate']):g}" for one in by_rank[origin].values()}
    return Front(f"{SVD} of {origin}", ", ".join(rates), by_rank)


def _chosen(way: str, by_rank: Mapping[int, Mapping[float, Mapping[int, Entry]]]) -> Front:
    searched = {
        rank: {rate: _value(seeds[min(seeds)], "search_score") for rate, seeds in rates.items()}
        for rank, rates in by_rank.items()
    }
    if way == SEPARATE:
        rates = {rank: max(scores, key=scores.__getitem__) for rank, scores in searched.items()}
    else:
        every = set.intersection(*(set(scores) for scores in searched.values()))
        best = max(every, key=lambda rate: fmean(scores[rate] for scores in searched.values()))
        rates = dict.fromkeys(by_rank, best)
    said = ", ".join(f"{rates[rank]:g}" for rank in sorted(rates)) if way == SEPARATE else f"{max(rates.values()):g}"
    return Front(way, said, {rank: by_rank[rank][rates[rank]] for rank in by_rank})


def _value(one: Entry, metric: str) -> float:
    assert one.result is not None
    return one.result.metrics.get(metric, math.nan)


def table(made: Sequence[Front]) -> str:
    separate = made[0]
    ranks = sorted(separate.trials)
    lines = [f"| trained | rate | steps | {' | '.join(map(str, ranks))} | AURAC |", "| --- " * (len(ranks) + 4) + "|"]
    for front in made:
        cells = [_cell(front, separate, rank) for rank in ranks]
        # An area over fewer sizes would not stand beside the others.
        area = f"{front.area():.1f}" if len(front.trials) == len(ranks) else ""
        lines.append(f"| {front.way} | {front.rates} | {_steps(front, separate):.1f} | {' | '.join(cells)} | {area} |")
    return "\n".join(lines)


def _cell(front: Front, separate: Front, rank: int) -> str:
    if rank not in front.trials:
        return ""
    cell = _shown(interval(front.scores(rank).values()))
    if front.trials[rank] is separate.trials[rank]:
        return cell
    return f"{cell}; {_shown(compare(front.scores(rank), separate.scores(rank)).difference, sign='+')}"


def _shown(value: Interval, sign: str = "") -> str:
    half = "" if math.isnan(value.half) else f" ± {value.half:.1f}"
    return f"{value.mean:{sign}.1f}{half}"


def _steps(front: Front, separate: Front) -> float:
    largest = max(separate.trials)
    one = fmean(_result_steps(entry) for entry in separate.trials[largest].values())
    if front is separate:
        return sum(fmean(_result_steps(entry) for entry in seeds.values()) for seeds in front.trials.values()) / one
    own = fmean(_result_steps(entry) for entry in front.trials[max(front.trials)].values())
    return own * {"drawn": 2, "all": len(front.trials)}.get(front.way, 1) / one


def _result_steps(entry: Entry) -> int:
    assert entry.result is not None
    return entry.result.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="sweeps' folders, or CSV files of trials")
    for task, entries in finished_trials(parser.parse_args().records).items():
        print(f"\n{task}\n\n{table(fronts(entries))}")


if __name__ == "__main__":
    main()
