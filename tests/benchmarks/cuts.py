"""Cuts next to trainings of their own, from the record of sweeps/glue/sizes.yaml: docs/taking-it-home.md.

    python -m tests.benchmarks.cuts docs/measurements/records/sizes.csv

The training of its own is the one of the cut's method whose number of parameters is nearest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from tests.benchmarks.means import PARAMETERS, means
from tests.benchmarks.trials import print_tables

CUT_FROM = "parameter.cut_from"
CONSTANT = {"glue/qqp": 63.2, "glue/sst2": 50.9, "glue/stsb": 0.0}
"""Scores of the most frequent answer, or of any one number."""
SHARE, ORDERS = 0.95, 500


def main() -> None:
    print_tables(__doc__, TABLES)


def differences(trials: pd.DataFrame) -> Iterable[str]:
    """Mean scores of each cut less those of the training of the most similar size, in pairs of seeds, with 95 % intervals."""
    cuts, trained = trials[trials[CUT_FROM].notna()], trials[trials[CUT_FROM].isna()]
    tasks = sorted(trials.task.unique())
    yield f"| cut | trained | mean of {', '.join(task.rpartition('/')[2] for task in tasks)} |"
    yield "| --- | --- | --- |"
    groups = [rows for _, rows in cuts.groupby("configuration")]
    for rows in sorted(groups, key=lambda rows: (rows.method.iloc[0], -rows[PARAMETERS].max())):
        same_method = trained[trained.method == rows.method.iloc[0]]
        ratio = np.log(same_method[PARAMETERS] / rows[PARAMETERS].max()).abs()
        own = same_method[same_method.configuration == same_method.configuration[ratio.idxmin()]]
        gaps = (_by_seed(rows) - _by_seed(own))[tasks].mean(axis=1)
        width = stdtrit(len(gaps) - 1, 0.975) * gaps.sem()
        names = (f"{group.label.iloc[0]}: {group[PARAMETERS].max():,}" for group in (rows, own))
        yield f"| {' | '.join(names)} | {gaps.mean():+.1f} ± {width:.1f} |"


def seconds_until_front(trials: pd.DataFrame) -> Iterable[str]:
    """Seconds of one worker until it has 95 % of the area under the front of the trainings of their own, for each seed.

    The mean over random orders of these trainings, and of those that are cut, each with its cuts. The area is that of the
    scores above the most frequent answer's over the logarithm of parameters.
    """
    yield "| task | trainings of their own | trainings with cuts | ratio |"
    yield "| --- | --- | --- | --- |"
    for task in sorted(trials.task.unique()):
        seeds = [_seconds_of_seed(rows, CONSTANT[task]) for _, rows in trials[trials.task == task].groupby("seed")]
        ratios = sorted(cuts / alone for alone, cuts in seeds)
        sides = (", ".join(f"{seconds:.0f}" for seconds in side) for side in zip(*seeds, strict=True))
        cells = (task.rpartition("/")[2], *sides, f"{ratios[0]:.2f} to {ratios[-1]:.2f}")
        yield f"| {' | '.join(cells)} |".replace("inf", "never")


def _seconds_of_seed(rows: pd.DataFrame, constant: float) -> tuple[float, float]:
    """Returns the seconds with trainings of their own, and with trainings that are cut."""
    adapters = pd.DataFrame(
        {
            "job": rows[CUT_FROM].fillna(rows.key),
            "seconds": rows.seconds,
            "size": np.log(rows[PARAMETERS] / rows[PARAMETERS].max()),
            "gain": np.clip(rows["metric.score"] - constant, 0, None),
        }
    )
    alone = adapters[rows[CUT_FROM].isna()]
    with_cuts = adapters.groupby("job").filter(lambda job: len(job) > 1)
    target = SHARE * _area(alone[["size", "gain"]].to_numpy())
    return _mean_seconds(alone, target), _mean_seconds(with_cuts, target)


def _mean_seconds(adapters: pd.DataFrame, target: float) -> float:
    """Returns the mean seconds until the adapters of trainings in random order cover `target`."""
    jobs = [(job.seconds.sum(), job[["size", "gain"]].to_numpy()) for _, job in adapters.groupby("job")]
    random, seconds = Random(0), []
    for _ in range(ORDERS):
        order = random.sample(range(len(jobs)), len(jobs))
        covered = (_area(np.concatenate([jobs[i][1] for i in order[: count + 1]])) >= target for count in range(len(order)))
        count = next((count for count, enough in enumerate(covered, 1) if enough), None)
        seconds.append(math.inf if count is None else sum(jobs[i][0] for i in order[:count]))
    return float(np.mean(seconds))


def _area(points: np.ndarray) -> float:
    """Returns the area under the front of (logarithm of parameters below the largest, gain)."""
    ordered = points[np.argsort(points[:, 0])]
    return float(np.maximum.accumulate(ordered[:, 1]) @ np.diff(np.append(ordered[:, 0], 0.0)))


def _by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns scores, a row for each seed, a column for each task."""
    return rows.pivot(index="seed", columns="task", values="metric.score")


TABLES = (means, differences, seconds_until_front)


if __name__ == "__main__":
    main()
