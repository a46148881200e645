"""Two configurations that a reader has pinned, side by side, and their difference over the seeds that both ran.

The sentence of each pair is that of `craft-sweeps compare`: paired by seed, with the luck of the examples where credits are on
record. The page has no server to ask once it is a file, so all pairs of the LIMIT best are in the panel's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from craft.scoring.credits import Numbers, read_credits
from dashboards.panels.base import Panel, Plain, View, column, done
from dashboards.panels.commands import COMPARE, sides, store_of
from dashboards.panels.verdicts import fronts
from orchestrator.judging.luck import difference, luck_of_both
from orchestrator.judging.probabilities import spread_between, spreads
from orchestrator.results.intervals import Comparison, compare
from orchestrator.results.summary import Summary

Key = tuple[str, int]
Finished = tuple[dict[Key, float], dict[Key, Numbers], dict[str, float]]
"""The scores and the credits of a configuration's finished trials, by task and seed, and `graded_rows` by task."""
Trials = dict[str, Finished]
Spreads = Mapping[str, tuple[float, float]]
"""`orchestrator.judging.probabilities.spreads` of a sweep."""
LIMIT = 40
"""With more configurations the members of the front and the best scores have pairs; the command compares any two."""


def data(view: View) -> Plain:
    """Returns the ids of the configurations that have pairs, and for each one the sentences with all that follow it."""
    ready = done(view.configurations)
    if len(ready) < 2:
        return {"empty": "Two configurations can be compared when both are complete.", "hidden": True}
    members = frozenset[str]().union(*(front.members for front in fronts(view)))
    ready = ready.assign(_front=ready["id"].isin(members), _score=column(ready, "m.score"))
    best = ready.sort_values(["_front", "_score"], ascending=False)[["id", "sweep", "label"]].head(LIMIT)
    rows, trials = list(best.itertuples(index=False, name=None)), trials_by("configuration", view.trials)
    summaries = view.summaries
    known = {sweep.name: known_spreads(sweep.summaries) for sweep in view.sweeps}
    said = [
        [_sentence(first, second, trials, summaries, known[first[1]]) for second in rows[place + 1 :]]
        for place, first in enumerate(rows)
    ]
    return {
        "id": [identity for identity, _, _ in rows],
        "said": said,
        "beyond": f"The page has the differences of {len(rows)} configurations; this command compares any two.",
        "incomplete": "They can be compared when both are complete.",
        "command": COMPARE + store_of(view),
        "sides": sides(
            view,
            {
                identity: (sweep, identity.removeprefix(view.prefix(view.names.index(sweep))))
                for identity, sweep in ready[["id", "sweep"]].itertuples(index=False, name=None)
            },
        ),
    }


def trials_by(name: str, frame: pd.DataFrame) -> Trials:
    """Returns the finished trials by the column that names a configuration."""
    frame = frame[(frame["state"] == "finished") & ~frame["tunes"].astype(bool)]
    frame = frame.assign(_score=column(frame, "m.score")).dropna(subset=["_score"])
    trials: Trials = {}
    fields = frame[[name, "task", "seed", "_score", "credits", "graded"]]
    for identity, task, seed, score, credits, graded in fields.itertuples(index=False, name=None):
        of_scores, of_credits, of_graded = trials.setdefault(str(identity), ({}, {}, {}))
        of_scores[str(task), int(seed)], of_graded[str(task)] = float(score), graded
        if credits:
            of_credits[str(task), int(seed)] = read_credits(credits)
    return trials


def known_spreads(summaries: Mapping[str, Summary]) -> Spreads:
    """Returns how seeds spread in a sweep, over all its tasks."""
    return spreads([*summaries.values()], sorted({task for summary in summaries.values() for task in summary.tasks}))


def compare_trials(first: Finished, second: Finished, summaries: Sequence[Summary], *sweeps: Spreads) -> Comparison:
    """Compares the scores of two configurations as `craft-sweeps compare` does: with the luck of the examples where all trials
    have credits, and with that of tuning. How seeds spread is known from all configurations of one sweep, or of two."""
    paired = all(credits.keys() == scores.keys() for scores, credits, _ in (first, second))
    luck = difference(first[1], second[1], first[2]) if paired else None
    tasks = sorted({task for task, _ in first[0].keys() & second[0].keys()})
    rounding = max(summary.rounding for summary in summaries)
    known = [sweep.get(row.configuration) for sweep, row in zip((sweeps[0], sweeps[-1]), summaries, strict=True)]
    pooled = spread_between(known[0], known[1], one_sweep=len(sweeps) == 1)
    return compare(first[0], second[0], luck, luck_of_both(summaries[0], summaries[1], tasks), rounding, pooled)


def _sentence(
    first: tuple[str, str, str],
    second: tuple[str, str, str],
    trials: Trials,
    summaries: Mapping[str, Summary],
    known: Spreads,
) -> str:
    ids, sweeps, labels = zip(first, second, strict=True)
    if sweeps[0] != sweeps[1]:
        return f"They are of {sweeps[0]} and {sweeps[1]}. The command compares them if their scores mean the same."
    first_trials, second_trials = (trials.get(identity, ({}, {}, {})) for identity in ids)
    return compare_trials(first_trials, second_trials, [summaries[identity] for identity in ids], known).sentence(*labels)


def draw(plain: Plain) -> Plain:
    return {"pairs": plain}


PANEL = Panel("pair", "Two configurations", "front", "Pinned side by side, compared seed by seed.", data, draw, wide=True)
