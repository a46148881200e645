"""Tables from the record of audits (docs/measurements/trust.md): were the verdicts right on rows that they did not see?

    python -m tests.benchmarks.audited docs/measurements/records/audits.csv

A row is an adapter at one size: cut, cut and trained on, or (`own`) trained at that size from the start by a plain script. An
audit's verdict is by the first half of the held-out rows (a), and judged by the second (b), which errs as much as the first: of
verdicts whose chance is P, a share of Φ(Φ⁻¹(P) / √2) is right there.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from scipy.special import ndtr, ndtri

from tests.benchmarks.trials import print_tables

WITHIN, SURES = 1.0, (0.9, 0.95, 0.97, 0.99)
MOST = 0.9995
"""Chances are rounded to 0.001 in the record."""
METHODS_OF = ("sst2", "qqp")
"""Tasks on which adapters of several methods learnt."""
KINDS = ("cut", "trained")


def main() -> None:
    print_tables(__doc__, TABLES)


def verdicts(rows: pd.DataFrame) -> Iterable[str]:
    """The smallest size of each audit that is enough by a; how many of these lose more than a point on b, and should."""
    yield "| sure | verdicts | wrong | expected |"
    yield "| --- | --- | --- | --- |"
    sizes = rows[rows.kind.isin(KINDS)].sort_values("size", ascending=False)
    audits = sizes.groupby(["adapter", "kind"])
    sizes["chance"] = 1 - (1 - sizes.p_a).groupby([sizes.adapter, sizes.kind]).cumsum()
    for sure in SURES:
        enough = sizes[sizes.chance >= sure].groupby(["adapter", "kind"]).last()
        wrong = (enough.difference_b < -WITHIN).sum()
        expected = ndtr(-ndtri(enough.chance.clip(upper=MOST)) / 2**0.5).sum()
        yield f"| {sure:g} | {len(enough)} of {audits.ngroups} | {wrong} | {expected:.1f} |"


def beside_own(rows: pd.DataFrame) -> Iterable[str]:
    """Cuts of LoRA next to trainings of their own with as many parameters; the means of all adapters of a task."""
    yield "| task | size | cut from larger ones | cut and trained on | trained at that size |"
    yield "| --- | --- | --- | --- | --- |"
    lora = rows[rows.method == "lora"]
    for task in sorted(lora.task.unique()):
        own = lora[(lora.task == task) & (lora.kind == "own")]
        for size in sorted(own["size"].unique(), reverse=True):
            same = lora[(lora.task == task) & (lora["size"] == size)]
            cells = [_spread(same[same.kind == kind].score) for kind in (*KINDS, "own")]
            yield f"| {task} | {size:,} | {' | '.join(cells)} |"


def of_methods(rows: pd.DataFrame) -> Iterable[str]:
    """Other methods' changes as LoRA, at shares of the adapter's own parameters: as cut, and trained on."""
    yield "| adapter | parameters | whole | a quarter | an eighth | a sixteenth |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, own in rows[rows.kind != "own"].groupby("adapter", sort=True):
        whole = own[own.kind == "whole"].iloc[0]
        if whole.task not in METHODS_OF or (whole.method == "lora" and not str(name).endswith("r16")):
            continue
        cells = []
        for share in (4, 8, 16):
            near = own[own["size"].between(0.7 * whole.parameters / share, whole.parameters / share)]
            scores = [near[near.kind == kind].score for kind in KINDS]
            cells.append(", ".join(f"{each.iloc[0]:.1f}" for each in scores if len(each)) or "-")
        yield f"| {name} | {whole.parameters:,} | {whole.score:.1f} | {' | '.join(cells)} |"


def _spread(scores: pd.Series) -> str:
    if scores.empty:
        return "-"
    return f"{scores.mean():.1f}" + (f" ({scores.min():.1f} to {scores.max():.1f})" if len(scores) > 1 else "")


TABLES = (verdicts, beside_own, of_methods)


if __name__ == "__main__":
    main()
