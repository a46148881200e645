"""Reported rows that an adapter gets wrong: the classes that it confuses and its worst mistakes, as `mistakes.md` next to its
model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from craft.scoring.predictions import WORST, Prediction, worst
from orchestrator.tools.markup import plain

MISTAKES_FILE = "mistakes.md"
POINTER = f"\n`{MISTAKES_FILE}` shows where it is wrong, with texts of the data: leave it out where they are private.\n"
COLUMNS = ("row", "label", "answer", "probability", "text", "text_pair", "prompt")
_MOST_CLASSES = 20


def confusions(lines: Sequence[Prediction]) -> tuple[list[str], list[list[int]]]:
    """Counts rows by label and answer; returns the classes in order, and for each label its counts by answer."""
    names = sorted({str(line[side]) for line in lines for side in ("label", "answer")})
    counts = Counter((str(line["label"]), str(line["answer"])) for line in lines)
    return names, [[counts[label, answer] for answer in names] for label in names]


def mistakes_page(title: str, answers: Mapping[str, Sequence[Prediction]]) -> str:
    """Writes the page of a trial's answers, by split. It is empty if no line has a label and an answer."""
    parts = []
    for split, lines in answers.items():
        if all("answer" in line and "label" in line for line in lines):
            classes = "right" in lines[0]
            parts += [f"## {plain(split)}", *(_confused(lines) if classes else [])]
            parts += ["Most confident mistakes:" if classes else "Largest errors:", _worst(lines)]
    return "\n\n".join([f"# Where {plain(title)} is wrong", *parts]) + "\n" if parts else ""


def _confused(lines: Sequence[Prediction]) -> list[str]:
    names, counts = confusions(lines)
    right = f"{sum(line['right'] for line in lines):,} of {len(lines):,} rows are right."
    if len(names) <= _MOST_CLASSES:
        return [
            right,
            _table(["label \\ answer", *map(plain, names)], ([name, *row] for name, row in zip(names, counts, strict=True))),
        ]
    pairs = ((counts[i][j], label, answer) for i, label in enumerate(names) for j, answer in enumerate(names) if i != j)
    return [right, _table(["rows", "label", "answer"], sorted((pair for pair in pairs if pair[0]), reverse=True)[:WORST])]


def _worst(lines: Sequence[Prediction]) -> str:
    mistakes = [lines[place] for place in worst(lines)]
    heads = [name for name in COLUMNS if any(name in line for line in mistakes)]
    return _table(heads, ([line.get(name, "") for name in heads] for line in mistakes)) if mistakes else "none"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
