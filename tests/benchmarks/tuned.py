"""Tables from the record of twelve methods: what they gain, and what the choice of their rates loses.

    python -m tests.benchmarks.tuned docs/measurements/records/fair-sst2.csv

The tuning seed has trainings at several rates of each configuration. The search split chooses; the reported split judges.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tests.benchmarks.trials import print_tables

TUNING_SEED = 1000
RATE, SCORE = "parameter.learning_rate", "metric.score"


def main() -> None:
    print_tables(__doc__, TABLES)


def gains(trials: pd.DataFrame) -> Iterable[str]:
    """The least and the most that a configuration's mean score is above the head alone, in points."""
    reported = trials[trials.seed != TUNING_SEED]
    means = reported.groupby(["method", "configuration", "task"])[SCORE].mean().unstack()
    above = means.drop("head") - means.loc["head"].iloc[0]
    yield f"| above the head alone | {' | '.join(task.removeprefix('glue/') for task in above)} |"
    yield "| --- |" + " --- |" * len(above.columns)
    for name, points in (("least", above.min()), ("most", above.max())):
        yield f"| {name} | {' | '.join(f'{value:.1f}' for value in points)} |"


def hindsight(trials: pd.DataFrame) -> Iterable[str]:
    """The mean reported score of the tuning seed over configurations and tasks, at the chosen rates and at the best tried."""
    trained = trials[trials["parameter.cut_from"].isna()]
    trained = trained.assign(name=trained.label.str.partition(", lr")[0])  # that of the configuration without its rate
    tried = trained[(trained.seed == TUNING_SEED) & trained.tunes.notna()]
    chosen = trained[trained.seed != TUNING_SEED].groupby(["name", "task"])[RATE].first()
    taken = tried[[rate == chosen[name, task] for name, task, rate in zip(tried.name, tried.task, tried[RATE], strict=True)]]
    best = tried.groupby(["name", "task"])[SCORE].max()
    yield "| the rate | mean |"
    yield "| --- | --- |"
    yield f"| chosen | {taken[SCORE].mean():.2f} |"
    yield f"| the best in hindsight | {best.mean():.2f} |"


TABLES = (gains, hindsight)


if __name__ == "__main__":
    main()
