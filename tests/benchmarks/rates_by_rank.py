"""Score over learning rate at each rank of CRAFT, with one rate for all of J and with `rate_scaling: rank`.

    python -m tests.benchmarks.rates_by_rank docs/measurements/records/rates.csv

One Markdown table a task and scaling: a row a rank, a column a rate, in the cells the search split's score, the best of a row
in bold. "Apart" is the largest of the rows' best rates over the smallest. "Lowest above" is the lowest score at the rates from
a row's best one to ten times it: the method has collapsed there if that is the task's chance. At the reference rank both
scalings are the same training, so a record needs it once. "One rate for all" is the one with the best mean over ranks, among
those that every rank has, beside the mean of the rows' best scores.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from craft.methods.craft_tucker import REFERENCE_RANK
from orchestrator.results.summary import Entry
from tests.benchmarks.recorded import finished_trials

DECADE = 10.0
SCALINGS = ("none", "rank")

Scores = Mapping[int, Mapping[float, float]]
"""The score by rank and learning rate."""


def scores_of(entries: Sequence[Entry], scaling: str) -> Scores:
    found: dict[int, dict[float, float]] = {}
    for one in entries:
        rank = int(one.parameters["r2"])
        assert one.result is not None
        if one.parameters.get("rate_scaling", "none") == scaling or rank == REFERENCE_RANK:
            rates = found.setdefault(rank, {})
            rates[float(one.parameters["learning_rate"])] = one.result.metrics["search_score"]
    return dict(sorted(found.items()))


def best_rate(scores: Mapping[float, float]) -> float:
    """The rate of the best score; among equals the lowest."""
    return max(sorted(scores), key=scores.__getitem__)


def apart(found: Scores) -> float:
    rates = [best_rate(scores) for scores in found.values()]
    return max(rates) / min(rates)


def lowest_above(scores: Mapping[float, float]) -> float:
    best = best_rate(scores)
    return min(score for rate, score in scores.items() if best <= rate <= DECADE * best)


def common_rate(found: Scores) -> tuple[float, float]:
    """The rate with the best mean score over ranks, among those that all ranks have, and that mean."""
    shared = set.intersection(*(set(scores) for scores in found.values()))
    means = {rate: fmean(scores[rate] for scores in found.values()) for rate in shared}
    best = best_rate(means)
    return best, means[best]


def summary(found: Scores) -> str:
    """The figures that one table says as a whole."""
    rate, mean = common_rate(found)
    each = fmean(max(scores.values()) for scores in found.values())
    return f"best rates {apart(found):g} apart; one rate for all, {rate:g}: mean {mean:.1f}; each rank at its best: {each:.1f}"


def table(found: Scores) -> str:
    rates = sorted({rate for scores in found.values() for rate in scores})
    lines = [f"| rank | {' | '.join(f'{rate:g}' for rate in rates)} | lowest above |", "| --- " * (len(rates) + 2) + "|"]
    for rank, scores in found.items():
        best = max(scores.values())
        shown = [_shown(scores.get(rate), best) for rate in rates]
        lines.append(f"| {rank} | {' | '.join(shown)} | {lowest_above(scores):.1f} |")
    return "\n".join(lines)


def _shown(score: float | None, best: float) -> str:
    if score is None:
        return ""
    return f"**{score:.1f}**" if score == best else f"{score:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="sweeps' folders, or CSV files of trials")
    for task, entries in finished_trials(parser.parse_args().records).items():
        for scaling in SCALINGS:
            found = scores_of(entries, scaling)
            print(f"\n{task}, rate_scaling: {scaling}: {summary(found)}\n\n{table(found)}")


if __name__ == "__main__":
    main()
