"""What the luck of choosing a learning rate changes in the front of twelve methods, from the record of its sweep.

    python -m tests.benchmarks.chosen docs/measurements/records/fair-sst2.csv

`orchestrator.results.tuning` has this luck in every interval and probability of a tuned sweep. Here it is left out once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.results.front import mark_front
from orchestrator.results.metrics import P_ENOUGH, P_FRONT
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES
from tests.benchmarks.recorded_front import summaries_of


def without_lucks(summaries: Sequence[Summary]) -> list[Summary]:
    """Returns the configurations, judged again without the luck of their choice."""
    rows = [replace(row, tuning=replace(row.tuning, lucks={})) for row in summaries]
    return mark_front(rows, DEFAULT_OBJECTIVES)


def changes(summaries: Sequence[Summary]) -> Iterable[str]:
    """Yields the probabilities of each configuration without and with the luck of its choice."""
    yield "| configuration | luck of the choice | 95 % interval | P(front) without | with | P(enough) without | with |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    rows = zip(without_lucks(summaries), summaries, strict=True)
    for before, after in sorted(rows, key=lambda pair: pair[0].value("trainable_parameters")):
        luck = after.tuning.luck**0.5
        pairs = [f"{row.counts[name]:.2f}" for name in (P_FRONT, P_ENOUGH) for row in (before, after)]
        yield f"| {before.label} | {luck:.2f} | ± {before.score.half:.1f}, {after.score.half:.1f} | {' | '.join(pairs)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the CSV file of the sweep's trials")
    print("\n".join(changes(summaries_of(parser.parse_args().record))))


if __name__ == "__main__":
    main()
