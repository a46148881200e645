"""What the luck of choosing a learning rate changes in the front of docs/measurements/fair.md, from the record of its sweep.

    python -m tests.benchmarks.chosen docs/measurements/records/fair.csv

The record has no credits of rows, so the rows that chose are drawn again with binomial errors of search scores, of which COMMON
is the same for all rates. The variance of the chosen rates' reported scores, less what these scores vary by their own rows, is
the luck. A sweep that keeps credits has it in its table (`orchestrator.results.tuning`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from orchestrator.judging.front import mark_front
from orchestrator.results.metrics import P_ENOUGH, P_FRONT
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks.recorded_front import summaries_of
from tests.benchmarks.tuned import RATE, SCORE, SEARCH, tried_rates

COMMON = 0.62
"""The part of a row's luck that all rates share, as in the worlds of `tests.benchmarks.answer`."""
DRAWS = 4000


def lucks(trials: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Returns the variance of a tuned configuration's score on each task by the choice, in squared points, by its name."""
    found = dict[str, dict[str, float]]()
    for (name, task), rows in tried_rates(trials).groupby(["name", "task"]):
        rows = rows.sort_values(RATE)
        chosen = _choose(rows[SEARCH].to_numpy(), rows["fact.search_examples"].to_numpy())
        shares = np.bincount(chosen, minlength=len(rows)) / DRAWS
        errors = _errors(rows[SCORE].to_numpy(), rows["fact.reported_examples"].to_numpy())
        noise = float((errors**2).mean()) * (1 - float(shares @ shares))
        found.setdefault(str(name), {})[str(task)] = max(0.0, float(rows[SCORE].to_numpy()[chosen].var()) - noise)
    return found


def _choose(search: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the places of the candidates that so many draws of the search rows choose."""
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(search)))
    return np.asarray(np.argmax(search + _errors(search, rows) * noise, axis=1))


def _errors(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the standard errors of scores over rows that no other rate shares, in points."""
    share = np.clip(scores, 0, 100) / 100
    return 100 * np.sqrt((1 - COMMON) * share * (1 - share) / rows)


def with_lucks(summaries: Sequence[Summary], trials: pd.DataFrame) -> list[Summary]:
    """Returns the configurations, judged again with the luck of their choice."""
    found = lucks(trials)
    judged = []
    for summary in summaries:
        by_task = found.get(summary.label.partition(", cut")[0], {})
        if summary.tuning is not None and by_task:
            summary = replace(summary, tuning=replace(summary.tuning, lucks=by_task))
        judged.append(summary)
    return mark_front(judged, DEFAULT_OBJECTIVES)


def changes(summaries: Sequence[Summary], trials: pd.DataFrame) -> Iterable[str]:
    """The chances of each configuration without and with the luck of its choice."""
    yield "| configuration | luck of the choice | 95 % interval | P(front) without | with | P(enough) without | with |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    rows = zip(summaries, with_lucks(summaries, trials), strict=True)
    for before, after in sorted(rows, key=lambda pair: pair[0].value("trainable_parameters")):
        luck = 0.0 if after.tuning is None else after.tuning.luck**0.5
        pairs = [f"{row.counts[name]:.2f}" for name in (P_FRONT, P_ENOUGH) for row in (before, after)]
        yield f"| {before.label} | {luck:.2f} | ± {before.score.half:.1f}, {after.score.half:.1f} | {' | '.join(pairs)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the CSV file of the sweep's trials")
    record = parser.parse_args().record
    print("\n".join(changes(summaries_of([record]), pd.read_csv(record))))


if __name__ == "__main__":
    main()
