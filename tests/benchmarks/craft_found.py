"""Where CRAFT is on the front of each task of the recorded sweeps, and what else is: the first table of docs/craft.md.

    python -m tests.benchmarks.craft_found

A cell has numbers of parameters; P(front) is behind those of CRAFT on the front. The base model and the head alone are on every
front and in no cell.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from craft.methods import METHODS
from orchestrator.record.state import Entry
from orchestrator.results.metrics import P_FRONT, SIZE
from orchestrator.results.summary import Summary
from orchestrator.review.front_tables import ranked, short_task
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES
from tests.benchmarks.enough import FAIR, judged

SWEEPS = {
    **dict.fromkeys(FAIR, "MiniLM"),
    "rows-1000": "MiniLM",
    "rows-4000": "MiniLM",
    "sizes": "MiniLM",
    "paper": "MPNet",
    "smollm2-commonsense": "SmolLM2-135M",
    "smollm2-heads": "SmolLM2-135M",
    "gemma3-commonsense": "Gemma 3 270M",
}
"""The model of each record, in the order of the table."""
CRAFT = ("craft", "craft_star")


def table() -> Iterable[str]:
    """Yields the lines of the table, a row for each task of each record."""
    yield "| model, task, training rows, seeds | CRAFT on the front | CRAFT off the front | others on the front |"
    yield "| --- " * 4 + "|"
    for sweep, model in SWEEPS.items():
        for task, (entries, complete) in judged(sweep).items():
            yield _line(model, task, entries, ranked(complete, DEFAULT_OBJECTIVES))


def _line(model: str, task: str, entries: Sequence[Entry], summaries: Sequence[Summary]) -> str:
    craft = [summary for summary in summaries if summary.method in CRAFT]
    not_craft = [summary for summary in summaries if summary.method not in CRAFT and summary.on_front and summary.value(SIZE)]
    rows = next(int(entry.result.facts["train_examples"]) for entry in entries if entry.result)
    cells = (
        f"{model}, {short_task(task)}, {rows:,}, {max(summary.score.n for summary in summaries)}",
        _list(f"{summary.value(SIZE):,.0f} ({summary.value(P_FRONT):.2f})" for summary in craft if summary.on_front),
        _list(f"{summary.value(SIZE):,.0f}" for summary in craft if not summary.on_front),
        _list(f"{_name(summary)} {summary.value(SIZE):,.0f}" for summary in not_craft),
    )
    return f"| {' | '.join(cells)} |"


def _name(summary: Summary) -> str:
    return METHODS[summary.method].title if summary.method in METHODS else summary.method


def _list(parts: Iterable[str]) -> str:
    return "; ".join(parts) or "-"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(table()))


if __name__ == "__main__":
    main()
