r"""Means over seeds of what a recorded sweep measured, a row for each configuration.

    python -m tests.benchmarks.means docs/measurements/records/smollm2-commonsense.csv \
      score accuracy_piqa accuracy_arc_easy accuracy_openbookqa forgetting

Without metrics the columns are the scores of the tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

PARAMETERS = "count.trainable_parameters"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the CSV of the sweep's trials")
    parser.add_argument("metrics", nargs="*", help="metrics of its trials")
    chosen = parser.parse_args(arguments)
    print("\n".join(means(pd.read_csv(chosen.record), chosen.metrics)))


def means(trials: pd.DataFrame, metrics: Sequence[str] = ()) -> Iterable[str]:
    """The lines of the table, from few parameters to many; without candidates whose tuned configuration is there."""
    trials = trials[~trials.tunes.isin(trials.configuration)]
    tasks = sorted(trials.task.unique())
    columns = [(task, metric) for task in tasks for metric in (metrics or ["score"])]
    names = [metric.removeprefix("accuracy_") if metrics else task.rpartition("/")[2] for task, metric in columns]
    yield f"| configuration | parameters | {' | '.join(names)} |"
    yield "| --- | --- |" + " --- |" * len(names)
    groups = [rows for _, rows in trials.groupby("configuration")]
    for rows in sorted(groups, key=lambda rows: rows[PARAMETERS].max()):
        cells = [_mean(rows[rows.task == task][f"metric.{metric}"], metric) for task, metric in columns]
        yield f"| {rows.label.iloc[0]} | {rows[PARAMETERS].max():,} | {' | '.join(cells)} |"


def _mean(values: pd.Series, metric: str) -> str:
    return f"{values.mean():.{1 if values.abs().max() >= 1 or metric == 'score' else 3}f}"


if __name__ == "__main__":
    main()
