"""Cuts next to trainings of their own, from the record of sweeps/glue/sizes.yaml: docs/sizes.md has the tables.

    python -m tests.benchmarks.cuts docs/measurements/records/sizes.csv

The training of its own is the one of the cut's method whose number of parameters is nearest.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from tests.benchmarks.means import PARAMETERS, means
from tests.benchmarks.trials import print_tables


def main() -> None:
    print_tables(__doc__, TABLES)


def differences(trials: pd.DataFrame) -> Iterable[str]:
    """Scores of each cut less those of the training of the most similar size, in pairs of seeds, with one standard error."""
    cuts, trained = trials[trials["parameter.cut_from"].notna()], trials[trials["parameter.cut_from"].isna()]
    tasks = sorted(trials.task.unique())
    yield f"| cut | trained | {' | '.join(task.rpartition('/')[2] for task in tasks)} | mean |"
    yield "| --- | --- |" + " --- |" * (len(tasks) + 1)
    groups = [rows for _, rows in cuts.groupby("configuration")]
    for rows in sorted(groups, key=lambda rows: (rows.method.iloc[0], -rows[PARAMETERS].max())):
        same_method = trained[trained.method == rows.method.iloc[0]]
        ratio = np.log(same_method[PARAMETERS] / rows[PARAMETERS].max()).abs()
        own = same_method[same_method.configuration == same_method.configuration[ratio.idxmin()]]
        gaps = (_by_seed(rows) - _by_seed(own))[tasks]
        cells = [f"{gap.mean():+.1f} ± {gap.sem():.1f}" for gap in (*(gaps[task] for task in tasks), gaps.mean(axis=1))]
        names = (f"{group.label.iloc[0]}: {group[PARAMETERS].max():,}" for group in (rows, own))
        yield f"| {' | '.join(names)} | {' | '.join(cells)} |"


def _by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns scores, a row for each seed, a column for each task."""
    return rows.pivot(index="seed", columns="task", values="metric.score")


TABLES = (means, differences)


if __name__ == "__main__":
    main()
