"""Mistakes in kept predictions (`craft.scoring.predictions`): classes confused, rows that two sides answer differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from craft.scoring.predictions import Prediction


def confusions(lines: Sequence[Prediction]) -> tuple[list[str], list[list[int]]]:
    """Counts rows by label and answer; returns the classes in order, and for each label its counts by answer."""
    names = sorted({str(line[side]) for line in lines for side in ("label", "answer")})
    counts = Counter((str(line["label"]), str(line["answer"])) for line in lines)
    return names, [[counts[label, answer] for answer in names] for label in names]


def worth(line: Prediction) -> float:
    """Returns 1 for a right answer and 0 for a wrong one; for a value, minus its error."""
    return float(line["right"]) if "right" in line else -abs(line["answer"] - line["label"])


def differing(first: Sequence[Sequence[Prediction]], second: Sequence[Sequence[Prediction]]) -> list[tuple[int, float]]:
    """Compares two sides row by row.

    Args:
        first: the lines of each trial of the first side; all trials have the same rows in the same order.

    Returns:
        The places of rows that differ, largest difference first: the first side's mean `worth` minus the second's.

    Raises:
        ValueError: the trials have different rows.
    """
    if len({tuple((line["row"], line["label"]) for line in lines) for lines in (*first, *second)}) > 1:
        raise ValueError("the trials were scored on different rows")
    means = [[sum(map(worth, row)) / len(row) for row in zip(*side, strict=True)] for side in (first, second)]
    gaps = [(place, a - b) for place, (a, b) in enumerate(zip(*means, strict=True)) if a != b]
    return sorted(gaps, key=lambda gap: -abs(gap[1]))
