"""Two configurations side by side, and their difference over the seeds that both ran, as `craft-sweeps compare` has it.

The page has no server to ask once it is a file, so all pairs of the LIMIT best are in the panel's data. Of two sweeps, each
configuration that both have under one label has a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dashboards.frames import Frames, Row
from dashboards.panels.base import Plain, View, best_first, done, number
from dashboards.panels.table import COMPARE, sides, store_of
from orchestrator.results.probabilities import spreads
from orchestrator.review.comparing import Spreads, compare_summaries

LIMIT = 40
"""With more configurations the members of the front and the best scores have pairs; the command compares any two."""


def data(view: View) -> Plain:
    """Returns the ids of the configurations that have pairs, and for each one the sentences with all that follow it."""
    ready = done(view.configurations)
    if len(ready) < 2:
        return {"empty": "Two configurations can be compared when both are complete.", "hidden": True}
    rows = sorted(best_first(ready), key=lambda row: not row.summary.on_front)[:LIMIT]
    spread_of = {sweep.name: _spread_of(sweep) for sweep in view.sweeps}

    def sentence(first: Row, second: Row) -> str:
        names = [row.sweep.name for row in (first, second)]
        if names[0] != names[1]:
            return f"They are of {names[0]} and {names[1]}. The command compares them if their scores mean the same."
        both = compare_summaries(first.summary, second.summary, [spread_of[names[0]]])
        return both.sentence(first.label, second.label)

    return {
        "id": [row.id for row in rows],
        "said": [[sentence(first, second) for second in rows[place + 1 :]] for place, first in enumerate(rows)],
        "beyond": f"The page has the differences of {len(rows)} configurations; this command compares any two.",
        "incomplete": "They can be compared when both are complete.",
        "command": COMPARE + store_of(view),
        "sides": sides({row.id: (row.sweep.name, row.summary.configuration) for row in ready}),
    }


def _spread_of(sweep: Frames) -> Callable[[tuple[str, ...]], Spreads]:
    return cache(partial(spreads, [*sweep.summaries.values()]))


def of_two_sweeps(view: View) -> Plain:
    """Returns a row for each shared label: both scores, the second minus the first, the ends of its interval, and the seeds."""
    if len(view.sweeps) != 2:
        return {"empty": "Choose two sweeps to compare them.", "hidden": True}
    first, second = ({row.label: row.summary for row in sweep.rows()} for sweep in view.sweeps)
    spread_of = [_spread_of(sweep) for sweep in reversed(view.sweeps)]
    rows = []
    for label in (label for label in first if label in second):
        gap = compare_summaries(second[label], first[label], spread_of).difference
        if gap.n:
            better, worse = ("better", "worse") if gap.n > 1 else ("ahead on these rows", "behind on these rows")
            verdict = "" if not gap.half > 0 else better if gap.low > 0 else worse if gap.high < 0 else "not shown"
            means = [number(sum(scores.values()) / len(scores)) for scores in (first[label].scores, second[label].scores)]
            rows.append([label, *means, number(gap.mean), number(gap.low), number(gap.high), gap.n, verdict])
    if not rows:
        return {"empty": "The two sweeps share no configuration that finished with one seed on the same tasks."}
    heads = [("configuration", "text"), (view.names[0], "score"), (view.names[1], "score")]
    heads += [(f"{view.names[1]} minus {view.names[0]}", "score"), ("95 % from", "score"), ("to", "score"), ("seeds", "count")]
    return {"heads": [*heads, (f"{view.names[1]} is", "text")], "rows": sorted(rows, key=lambda row: -abs(row[3] or 0))}
