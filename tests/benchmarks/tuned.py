"""Tables from the record of twelve methods: the rates tried, and what each rule of choosing one loses.

    python -m tests.benchmarks.tuned docs/measurements/records/fair.csv

The tuning seed has trainings at all rates of each configuration. A rule chooses by the search split; the reported split judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from tests.benchmarks.trials import print_tables

TUNING_SEED = 1000
RATE, SEARCH, LOSS, SCORE = "parameter.learning_rate", "metric.search_score", "metric.search_loss", "metric.score"
TIE = 1e-6
"""The loss times this decides between equal search scores."""


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


def rates(trials: pd.DataFrame) -> Iterable[str]:
    """Reported scores of the tuning seed at each rate, from the lowest on; bold is the rate of the reported seeds."""
    tried, chosen = tried_rates(trials), _reported(trials).groupby(["name", "task"])[RATE].first()
    tasks = sorted(tried.task.unique())
    yield f"| configuration: its rates | {' | '.join(task.removeprefix('glue/') for task in tasks)} |"
    yield "| --- |" + " --- |" * len(tasks)
    for name, rows in tried.groupby("name", sort=False):
        cells = []
        for task in tasks:
            of_task = rows[rows.task == task].sort_values(RATE)
            bold = of_task[RATE] == chosen[name, task]
            scores = of_task[SCORE].map("{:.1f}".format)
            cells.append(", ".join(scores.where(~bold, "**" + scores + "**")))
        values = ", ".join(f"{rate:g}" for rate in sorted(rows[RATE].unique()))
        yield f"| {name}: {values} | {' | '.join(cells)} |"


def rules(trials: pd.DataFrame) -> Iterable[str]:
    """The mean reported score over configurations and tasks under each rule of choosing a rate."""
    tried = tried_rates(trials)
    spans = tried.groupby("task")[SEARCH].agg(["min", "max"])
    low, high = (tried.task.map(spans[end]) for end in ("min", "max"))
    tried["normalized"] = 100 * (tried[SEARCH] - low) / (high - low)
    tasks = sorted(tried.task.unique())
    yield f"| the rule | mean | {' | '.join(task.removeprefix('glue/') for task in tasks)} |"
    yield "| --- | --- |" + " --- |" * len(tasks)
    for name, choose in RULES.items():
        chosen = pd.concat([choose(rows) for _, rows in tried.groupby("name")])
        means = chosen.groupby("task")[SCORE].mean()
        yield f"| {name} | {means.mean():.2f} | {' | '.join(f'{means[task]:.2f}' for task in tasks)} |"


def flattered(trials: pd.DataFrame) -> Iterable[str]:
    """How far scores of a seed that chose are above those of seeds that did not, at the chosen rates."""
    keys = ["name", "task", RATE]
    tried, unseen = tried_rates(trials).set_index(keys), _reported(trials).groupby(keys)
    yield "| split | the tuning seed above the reported seeds |"
    yield "| --- | --- |"
    for name, column in {"search": SEARCH, "reported": SCORE}.items():
        gap = (tried[column] - unseen[column].mean()).dropna()
        yield f"| {name} | {gap.mean():+.2f} ± {gap.sem():.2f} |"


def _trained(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the trainings, without what was cut from them; `name` is that of the configuration without its rate."""
    rows = trials[trials["parameter.cut_from"].isna()].copy()
    rows["name"] = rows.label.str.partition(", lr")[0]
    return rows


def tried_rates(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the trainings of the tuning seed; `choice` is what chooses: the search score, and the loss of equal ones."""
    rows = _trained(trials[(trials.seed == TUNING_SEED) & trials.tunes.notna()])
    rows["choice"] = rows[SEARCH] - TIE * rows[LOSS]
    return rows


def _reported(trials: pd.DataFrame) -> pd.DataFrame:
    return _trained(trials[trials.seed != TUNING_SEED])


def _at_one_rate(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: rows[rows[RATE] == rows.groupby(RATE)[column].mean().idxmax()]


def _at_each_best(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: rows.loc[rows.groupby("task")[column].idxmax()]


RULES = {
    "one rate, by the mean over tasks": _at_one_rate("choice"),
    "one rate, by the mean of scores between each task's lowest and highest": _at_one_rate("normalized"),
    "a rate for each task": _at_each_best("choice"),
    "one rate, the best in hindsight": _at_one_rate(SCORE),
    "each task's best in hindsight": _at_each_best(SCORE),
}
TABLES = (gains, rates, rules, flattered)


if __name__ == "__main__":
    main()
