"""The default sweep after one seed and after three: the table and the two answers in README.md.

    python -m tests.benchmarks.default

The record is what `craft-sweeps export ranks` writes after `craft-sweeps run sweeps/ranks.yaml` with `seeds=[0, 1, 2]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import yaml

from craft.tasks.files import read_rows
from orchestrator import judge
from orchestrator.commands.api import Judgement
from orchestrator.results.metrics import P_ENOUGH, SIZE, full_label
from orchestrator.results.summary import Summary

ROOT = Path(__file__).parents[2]
RECORD, SWEEP = ROOT / "docs/measurements/records/ranks.csv", ROOT / "sweeps/ranks.yaml"


def after(seeds: int) -> Judgement:
    """Judges the record of the first `seeds` seeds by the rule of the sweep file."""
    columns = read_rows(RECORD).columns
    trials = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    within = yaml.safe_load(SWEEP.read_text())["enough"]["within"]
    return judge([trial for trial in trials if int(trial["seed"]) < seeds], within=within)


def table(one: Judgement, three: Judgement) -> Iterator[str]:
    """Yields the lines of the table, the smallest configuration first."""
    yield "| configuration | parameters | one seed | three seeds | P(enough) |"
    yield "| --- | --- | --- | --- | --- |"
    alone = {row.configuration: row for row in one.record.summaries}
    for row in sorted(three.record.summaries, key=lambda row: (row.value(SIZE), row.label)):
        score = f"{_mean(row)} ({row.score.low:.1f} to {row.score.high:.1f})"
        first, enough = _mean(alone[row.configuration]), f"{row.counts[P_ENOUGH]:.2f}"
        yield f"| {' | '.join((full_label(row), f'{row.value(SIZE):,.0f}', first, score, enough))} |"


def _mean(row: Summary) -> str:
    return f"{'● ' * row.on_front}{row.score.mean:.1f}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    judged = after(1), after(3)
    print("\n".join([*table(*judged), "", *(judgement.answer.verdict for judgement in judged)]))


if __name__ == "__main__":
    main()
