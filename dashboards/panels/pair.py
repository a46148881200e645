"""Two configurations that a reader has pinned, side by side, and their difference over the seeds that both ran.

The sentence of each pair is that of `craft-sweeps compare`: paired by seed, with the luck of the examples where credits are on
record. The page has no server to ask once it is a file, so all pairs of the LIMIT best are in the panel's data.
"""

from __future__ import annotations

from craft.scoring.credits import read_credits
from dashboards.panels.base import Panel, Plain, View, column, done
from dashboards.panels.commands import COMPARE, sides, store_of
from dashboards.panels.verdicts import fronts
from orchestrator.results.intervals import compare
from orchestrator.results.luck import Numbers, difference

Key = tuple[str, int]
Trials = dict[str, tuple[dict[Key, float], dict[Key, Numbers]]]
"""The scores and the credits of each configuration's finished trials, by task and seed."""
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
    rows, trials = list(best.itertuples(index=False, name=None)), _trials(view)
    return {
        "id": [identity for identity, _, _ in rows],
        "said": [[_sentence(first, second, trials) for second in rows[place + 1 :]] for place, first in enumerate(rows)],
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


def _trials(view: View) -> Trials:
    frame = view.trials
    frame = frame[(frame["state"] == "finished") & ~frame["tunes"].astype(bool)]
    frame = frame.assign(_score=column(frame, "m.score")).dropna(subset=["_score"])
    trials: Trials = {}
    fields = frame[["configuration", "task", "seed", "_score", "credits"]]
    for identity, task, seed, score, credits in fields.itertuples(index=False, name=None):
        of_scores, of_credits = trials.setdefault(identity, ({}, {}))
        of_scores[str(task), int(seed)] = float(score)
        if credits:
            of_credits[str(task), int(seed)] = read_credits(credits)
    return trials


def _sentence(first: tuple[str, str, str], second: tuple[str, str, str], trials: Trials) -> str:
    ids, sweeps, labels = zip(first, second, strict=True)
    if sweeps[0] != sweeps[1]:
        return f"They are of {sweeps[0]} and {sweeps[1]}. The command compares them if their scores mean the same."
    scores, credits = zip(*(trials.get(identity, ({}, {})) for identity in ids), strict=True)
    paired = all(credit.keys() == score.keys() for credit, score in zip(credits, scores, strict=True))
    luck = difference(*credits) if paired else None
    return compare(scores[0], scores[1], luck).sentence(*labels)


def draw(plain: Plain) -> Plain:
    return {"pairs": plain}


PANEL = Panel("pair", "Two configurations", "front", "Pinned side by side, compared seed by seed.", data, draw, wide=True)
