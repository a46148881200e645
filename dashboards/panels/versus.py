"""Two sweeps: each configuration that both have under one label, and the difference over the seeds that both ran.

The difference is taken seed by seed, with its interval, as `craft-sweeps compare` does.
"""

from __future__ import annotations

from dashboards.panels.base import Panel, Plain, View, number, table
from dashboards.panels.pair import compare_trials, known_spreads, trials_by


def data(view: View) -> Plain:
    """Returns a row for each shared label: both scores, the second minus the first, the ends of its interval, and the seeds."""
    if len(view.sweeps) != 2:
        return {"empty": "Choose two sweeps to compare them.", "hidden": True}
    first, second = (trials_by("label", sweep.trials) for sweep in view.sweeps)
    summaries = [{row.label or row.configuration: row for row in sweep.summaries.values()} for sweep in view.sweeps]
    known = [known_spreads(sweep.summaries) for sweep in reversed(view.sweeps)]
    rows = []
    for label in first:
        if label not in second:
            continue
        gap = compare_trials(second[label], first[label], [summaries[1][label], summaries[0][label]], *known).difference
        if gap.n:
            better, worse = ("better", "worse") if gap.n > 1 else ("ahead on these rows", "behind on these rows")
            verdict = "" if not gap.half > 0 else better if gap.low > 0 else worse if gap.high < 0 else "not shown"
            means = [number(sum(scores.values()) / len(scores)) for scores, *_ in (first[label], second[label])]
            rows.append([label, *means, number(gap.mean), number(gap.low), number(gap.high), gap.n, verdict])
    if not rows:
        return {"empty": "The two sweeps share no configuration that finished with one seed on the same tasks."}
    return {"names": view.names, "rows": sorted(rows, key=lambda row: -abs(row[3] or 0))}


def draw(plain: Plain) -> Plain:
    first, second = plain["names"]
    heads = [("configuration", "text"), (first, "score"), (second, "score"), (f"{second} minus {first}", "score")]
    heads += [("95 % from", "score"), ("to", "score"), ("seeds", "count"), (f"{second} is", "text")]
    return table(heads, plain["rows"], [row[0] for row in plain["rows"]])


PANEL = Panel(
    "versus",
    "Two sweeps",
    "front",
    "Configurations of the same label, compared seed by seed.",
    data,
    draw,
    wide=True,
)
