"""The recorded scores on GLUE against the published ones of RoBERTa-base, for the methods that both have.

    python -m tests.benchmarks.against_published docs/measurements/records/paper.csv

Published: whole training sets, many epochs, and the best epoch on the dev set that is reported.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from dashboards.panels.front import published_rows
from tests.benchmarks.trials import print_tables

METHODS = {"full": "full fine-tuning", "bitfit": "BitFit", "lora": "LoRA", "vera": "VeRA", "craft": "CRAFT"}
"""Names of the published table, by method."""
TRAINABLE = "count.trainable_parameters"


def compared(trials: pd.DataFrame) -> Iterable[str]:
    """Yields the lines of the table: means over the reported seeds, lowest to highest, and the published score."""
    table = (row for row in published_rows() if (row["model"], row["suite"]) == ("RoBERTa-base", "glue"))
    published = {row["method"]: row["values"] for row in table}
    reported = trials[trials.tunes.isna() & trials["parameter.cut_to"].isna()]
    tasks = list(reported.task.drop_duplicates())
    names = [task.rpartition("/")[2] for task in tasks]
    yield f"| method | parameters | {' | '.join(names)} | RoBERTa-base: parameters | {' | '.join(names)} |"
    yield f"|{' --- |' * (3 + 2 * len(tasks))}"
    for method, name in METHODS.items():
        here, there = reported[reported.method == method], published[name]
        scores = [here[here.task == task]["metric.score"] for task in tasks]
        cells = [f"{score.mean():.1f} ({score.min():.1f} to {score.max():.1f})" for score in scores]
        cells += [f"{int(there['trainable_parameters']):,}", *(f"{there[f'score/{task}']:.1f}" for task in names)]
        yield f"| {name} | {here[TRAINABLE].astype(int).iloc[0]:,} | {' | '.join(cells)} |"


def main() -> None:
    print_tables(__doc__, [compared])


if __name__ == "__main__":
    main()
