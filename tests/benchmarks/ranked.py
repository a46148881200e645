"""Tables of docs/craft.md from the record of sweeps/rates.yaml: what one learning rate for all ranks costs.

    python -m tests.benchmarks.ranked docs/measurements/records/rates.csv

Rank 64 is the same under both scalings. A rank's best rate is the best of all that it tried; one rate for all ranks is among
those that every rank tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from tests.benchmarks.trials import print_tables

RANK, RATE, SCALING, SCORE = "parameter.r2", "parameter.learning_rate", "parameter.rate_scaling", "metric.score"
SCALINGS = ("none", "rank")


def main() -> None:
    print_tables(__doc__, TABLES)


def rates(trials: pd.DataFrame) -> Iterable[str]:
    """Scores of each rank at each rate."""
    for title, grid in _grids(trials):
        yield f"| {title}: rank | {' | '.join(f'{rate:g}' for rate in grid.columns)} | best rate |"
        yield "| --- |" + " --- |" * (len(grid.columns) + 1)
        for rank, scores in grid.iterrows():
            cells = ["" if np.isnan(score) else f"{score:.1f}" for score in scores]
            yield f"| {rank} | {' | '.join(cells)} | {scores.idxmax():g} |"
        yield ""


def one_rate(trials: pd.DataFrame) -> Iterable[str]:
    """Points below the best rate of each rank: the mean over ranks, and the most that a rank loses."""
    yield "| | any rate | tuned at the smallest rank | at the middle one | at the largest | the best for all |"
    yield "| --- |" + " --- |" * 5
    for title, grid in _grids(trials):
        shared = grid.dropna(axis=1)
        losses = -shared.sub(grid.max(axis=1), axis=0) + 0.0
        ranks = sorted(grid.index)
        tuned = [shared.loc[rank].idxmax() for rank in (ranks[0], ranks[len(ranks) // 2], ranks[-1])]
        cells = [f"{loss.mean():.1f}, {loss.max():.1f}" for loss in (losses[rate] for rate in (*tuned, losses.mean().idxmin()))]
        yield f"| {title} | {np.mean(losses):.1f}, {np.max(losses):.1f} | {' | '.join(cells)} |"


def _grids(trials: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the scores of each task and scaling: a row for each rank, a column for each rate that a rank tried."""
    for task in sorted(trials.task.unique()):
        for scaling in SCALINGS:
            rows = trials[(trials.task == task) & ((trials[SCALING] == scaling) | (trials[RANK] == 64))]
            grid = rows.pivot(index=RANK, columns=RATE, values=SCORE)
            yield f"{task.rpartition('/')[2]}, `{scaling}`", grid


TABLES = (rates, one_rate)


if __name__ == "__main__":
    main()
