"""Two configurations side by side, and their difference over the seeds that both ran, as `craft-sweeps compare` has it.

The page has no server to ask once it is a file, so all pairs of the LIMIT best are in the panel's data. Of two sweeps, each
configuration that both have under one label has a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dashboards.frames import Frames, Row
from dashboards.panels.base import Panel, Plain, View, best_first, done, number, table
from dashboards.panels.table import COMPARE, sides, store_of
from dashboards.panels.verdicts import fronts
from orchestrator.judging.probabilities import spreads
from orchestrator.results.intervals import Comparison, Scores
from orchestrator.review.comparing import Spreads, compare_scores
from orchestrator.state.entry import Entry

LIMIT = 40
"""With more configurations the members of the front and the best scores have pairs; the command compares any two."""
SpreadOf = Callable[[tuple[str, ...]], Spreads]


def data(view: View) -> Plain:
    """Returns the ids of the configurations that have pairs, and for each one the sentences with all that follow it."""
    ready = done(view.configurations)
    if len(ready) < 2:
        return {"empty": "Two configurations can be compared when both are complete.", "hidden": True}
    members = frozenset[str]().union(*(front.members for front in fronts(view)))
    rows = sorted(best_first(ready), key=lambda row: row.id not in members)[:LIMIT]
    spread_of = {sweep.name: _spread_of(sweep) for sweep in view.sweeps}
    trials = {row.id: _trials(view.by_name[row.sweep], row) for row in rows}

    def sentence(first: Row, second: Row) -> str:
        if first.sweep != second.sweep:
            return f"They are of {first.sweep} and {second.sweep}. The command compares them if their scores mean the same."
        both = compare_rows(first, second, trials[first.id], trials[second.id], spread_of[first.sweep])
        return both.sentence(first.label, second.label)

    return {
        "id": [row.id for row in rows],
        "said": [[sentence(first, second) for second in rows[place + 1 :]] for place, first in enumerate(rows)],
        "beyond": f"The page has the differences of {len(rows)} configurations; this command compares any two.",
        "incomplete": "They can be compared when both are complete.",
        "command": COMPARE + store_of(view),
        "sides": sides({row.id: (row.sweep, row.summary.configuration) for row in ready}),
    }


def _spread_of(sweep: Frames) -> SpreadOf:
    return cache(partial(spreads, [*sweep.summaries.values()]))


def _trials(sweep: Frames, row: Row) -> list[Entry]:
    name = row.summary.configuration
    return [trial.entry for trial in sweep.trials if trial.configuration == name and trial.state == "finished"]


def _scores(entries: list[Entry]) -> Scores:
    pairs = [(entry.trial, entry.finished.metrics) for entry in entries if entry.finished]
    return {(trial.task, trial.seed): metrics["score"] for trial, metrics in pairs if "score" in metrics}


def compare_rows(first: Row, second: Row, trials: list[Entry], others: list[Entry], *spread_of: SpreadOf) -> Comparison:
    """Compares the scores of two configurations; how seeds spread is `spread_of` of one sweep, or of two."""
    return compare_scores((first.summary, second.summary), (_scores(trials), _scores(others)), trials, spread_of)


def of_two_sweeps(view: View) -> Plain:
    """Returns a row for each shared label: both scores, the second minus the first, the ends of its interval, and the seeds."""
    if len(view.sweeps) != 2:
        return {"empty": "Choose two sweeps to compare them.", "hidden": True}
    first, second = ({row.label: row for row in sweep.configurations} for sweep in view.sweeps)
    spread_of = [_spread_of(sweep) for sweep in reversed(view.sweeps)]
    rows = []
    for label in (label for label in first if label in second):
        trials = [_trials(sweep, side[label]) for sweep, side in zip(view.sweeps, (first, second), strict=True)]
        gap = compare_rows(second[label], first[label], trials[1], trials[0], *spread_of).difference
        if gap.n:
            better, worse = ("better", "worse") if gap.n > 1 else ("ahead on these rows", "behind on these rows")
            verdict = "" if not gap.half > 0 else better if gap.low > 0 else worse if gap.high < 0 else "not shown"
            means = [number(sum(scores.values()) / len(scores)) for scores in map(_scores, trials)]
            rows.append([label, *means, number(gap.mean), number(gap.low), number(gap.high), gap.n, verdict])
    if not rows:
        return {"empty": "The two sweeps share no configuration that finished with one seed on the same tasks."}
    return {"names": view.names, "rows": sorted(rows, key=lambda row: -abs(row[3] or 0))}


def draw(plain: Plain) -> Plain:
    return {"pairs": plain}


def draw_two_sweeps(plain: Plain) -> Plain:
    first, second = plain["names"]
    heads = [("configuration", "text"), (first, "score"), (second, "score"), (f"{second} minus {first}", "score")]
    heads += [("95 % from", "score"), ("to", "score"), ("seeds", "count"), (f"{second} is", "text")]
    return table(heads, plain["rows"], [row[0] for row in plain["rows"]])


PANEL = Panel("pair", "Two configurations", "front", "Pinned side by side, compared seed by seed.", data, draw, wide=True)
VERSUS = Panel(
    "versus",
    "Two sweeps",
    "front",
    "Configurations of the same label, compared seed by seed.",
    of_two_sweeps,
    draw_two_sweeps,
    wide=True,
)
