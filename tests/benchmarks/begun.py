"""What it costs to begin at each method's own learning rate instead of looking for one: docs/measurements/trust.md.

    python -m tests.benchmarks.begun docs/measurements/records/starting-trec.csv ...

Each record has a task's trainings at three rates of each method: its own (`craft.methods.method.starting_rate`), a third and
three times it. A rule chooses a rate for a method on a task; its loss is how far the mean reported score of that rate is below
that of the best of the three in hindsight. A rule that reads search scores chooses by those of one seed and is judged by the
other seeds, each seed in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from craft.scoring.predictions import SEARCH_CREDITS, read_credits
from orchestrator.results.summary import Entry
from tests.benchmarks.trials import read_trials

FEW = 0.3
"""The share of the search rows that the rule of few rows reads: 300 of 1,000."""
DRAWS = 4000
Choice = Callable[[pd.DataFrame, pd.DataFrame], pd.Series]
"""From the trainings of the seed that chooses, and the mean scores of the others, to a place by task and method."""


def trainings(entries: Iterable[Entry]) -> pd.DataFrame:
    """Returns a row for each training of a method at one of its three rates, which are the places -1, 0 and 1."""
    rows = []
    for entry in entries:
        if entry.trial.method == "head" or entry.result is None or entry.result.status != "finished":
            continue
        metrics, credits = entry.result.metrics, read_credits(entry.result.facts[SEARCH_CREDITS])
        few = metrics["search_score"] + credits[: round(FEW * len(credits))].mean()
        rate = entry.trial.parameters["learning_rate"]
        rows.append(
            (entry.trial.task, entry.trial.method, entry.trial.seed, rate, metrics["score"], metrics["search_score"], few)
        )
    table = pd.DataFrame(rows, columns=["task", "method", "seed", "rate", "score", "search", "few"])
    table["place"] = table.groupby(["task", "method"]).rate.rank("dense").astype(int) - 2
    return table


def _loss(table: pd.DataFrame, choose: Choice) -> pd.Series:
    """Returns the loss of a rule by task and method, the mean over the seeds of the task by which it chooses."""
    losses = []
    for seed in sorted(table.seed.unique()):
        means = table[table.seed != seed].groupby(["task", "method", "place"]).score.mean().unstack()
        tuning = table[table.seed == seed].set_index(["task", "method", "place"])
        places, tuned = choose(tuning, means), tuning.index.droplevel("place").unique()
        losses.append(means.max(axis=1)[tuned] - pd.Series([means.loc[key, places[key]] for key in tuned], tuned))
    return pd.concat(losses).groupby(level=["task", "method"]).mean()


def _place(place: int) -> Choice:
    return lambda tuning, means: pd.Series(place, means.index)


def _best_by(column: str) -> Choice:
    return lambda tuning, means: tuning[column].unstack().idxmax(axis=1)


def _carried(tuning: pd.DataFrame, means: pd.DataFrame) -> pd.Series:
    """Chooses the place that is the best for the method on the other tasks, by the mean of scores."""
    places = {}
    for task, method in means.index:
        elsewhere = means.xs(method, level="method").drop(task)
        places[task, method] = elsewhere.mean().idxmax() if len(elsewhere) else 0
    return pd.Series(places)


TUNED = "the best of 1,000 search rows"
RULES: dict[str, Choice] = {
    "its own rate": _place(0),
    "a third of it": _place(-1),
    "three times it": _place(1),
    "the best on the other tasks": _carried,
    "the best of 300 search rows": _best_by("few"),
    TUNED: _best_by("search"),
}


def interval(values: pd.Series) -> tuple[float, float]:
    """Returns the 95 % interval of the mean over tasks and methods, both drawn again."""
    grid, draw = values.unstack().to_numpy(), np.random.default_rng(0)
    tasks, methods = (draw.integers(size, size=(DRAWS, size)) for size in grid.shape)
    drawn = np.ma.masked_invalid(grid[tasks[:, :, None], methods[:, None, :]])  # not each method ran on each task
    low, high = np.quantile(drawn.mean(axis=(1, 2)).compressed(), [0.025, 0.975])
    return float(low), float(high)


def table_of(trained: pd.DataFrame) -> Iterable[str]:
    """Yields the table: the mean loss of each rule in points, its difference from 1,000 search rows, and by task."""
    losses = {name: _loss(trained, choose) for name, choose in RULES.items()}
    tuned, tasks = losses[TUNED], sorted(trained.task.unique())
    yield f"| the rate | loss | above tuning on 1,000 rows | {' | '.join(task.rpartition('/')[2] for task in tasks)} |"
    yield "| --- | --- | --- |" + " --- |" * len(tasks)
    for name, loss in losses.items():
        low, high = interval(loss - tuned)
        cells = [f"{loss[task].mean():.2f}" for task in tasks]
        above = "" if loss is tuned else f"{(loss - tuned).mean():+.2f} ({low:+.2f} to {high:+.2f})"
        yield f"| {name} | {loss.mean():.2f} | {above} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="CSV files of `craft-sweeps export`, one for each task")
    entries = [entry for record in parser.parse_args().records for entry in read_trials(record)]
    print("\n".join(table_of(trainings(entries))))


if __name__ == "__main__":
    main()
