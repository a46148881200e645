"""What each start of the task head is worth, from the record of sweeps/glue/head_start.yaml: docs/methods.md.

python -m tests.benchmarks.starts docs/measurements/records/head-start.csv
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from tests.benchmarks.trials import print_tables

START, SCORE = "parameter.head_start", "metric.score"


def starts(trials: pd.DataFrame) -> Iterable[str]:
    """Yields the table: the mean score over methods and seeds of each start, and the lowest of one training."""
    adapted = trials[trials.method != "head"]
    tasks = sorted(adapted.task.unique())
    yield f"| the head starts as | {' | '.join(task.rpartition('/')[2] for task in tasks)} |"
    yield "| --- |" + " --- |" * len(tasks)
    for start in ("probe", "labels", "random"):
        scores = adapted[adapted[START] == start].groupby("task")[SCORE]
        cells = [f"{mean:.1f} (lowest {low:.1f})" for mean, low in zip(scores.mean()[tasks], scores.min()[tasks], strict=True)]
        yield f"| `{start}` | {' | '.join(cells)} |"


def main() -> None:
    print_tables(__doc__, [starts])


if __name__ == "__main__":
    main()
