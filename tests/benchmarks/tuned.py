"""What the methods of a tuned record gain.

python -m tests.benchmarks.tuned docs/measurements/records/fair-sst2.csv
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tests.benchmarks.trials import print_tables

TUNING_SEED = 1000
SCORE = "metric.score"


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


TABLES = (gains,)


if __name__ == "__main__":
    main()
