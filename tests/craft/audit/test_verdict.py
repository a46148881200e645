"""Verdicts of audits are right as often as they say: simulated rows are the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from craft.audit.folder import Folder
from craft.audit.verdict import Answers, Audit, Size, compare_answers


def audit_of(random: np.random.Generator, losses: Sequence[float], rows: int = 400) -> Audit:
    """An audit of sizes that lose so many points on endless rows; each answers 6 % of the rows otherwise."""
    labels, sizes = np.ones(rows), list[Size]()
    for place, loss in enumerate(losses):
        change = random.choice([-1, 0, 1], rows, p=[0.03 + loss / 200, 0.94, 0.03 - loss / 200])
        sides = np.where(change < 0, 1, np.where(change > 0, 0, 1))
        gap = compare_answers(Answers("accuracy", (sides, labels)), Answers("accuracy", (sides + change, labels)))
        sizes.append(Size(800 >> place, {"query": 1}, 80.0, gap))
    whole = Folder(Path("whole"), {"peft_type": "LORA"}, {}, "base")
    return Audit(whole, "accuracy", rows, 1600, 80.0, 50.0, tuple(sizes), 1.0, 0.9, False, {}, ())


def test_the_smallest_of_several_sizes_is_as_often_enough_as_the_audit_says() -> None:
    """Four sizes lose a little too much: one in ten audits may call one enough. By each size's own chance one in four does."""
    random = np.random.default_rng(5)
    audits = [audit_of(random, [1.2] * 4) for _ in range(200)]
    assert np.mean([audit.enough is not None for audit in audits]) <= 0.1
    assert np.mean([any(size.difference.probability(1) >= 0.9 for size in audit.sizes) for audit in audits]) > 0.2
    for audit in audits:
        misses = np.cumsum([1 - size.difference.probability(1) for size in audit.sizes])
        assert [audit.probability(size) for size in audit.sizes] == pytest.approx(np.maximum(0, 1 - misses))


def test_verdicts_are_right_as_often_as_they_say() -> None:
    """Adapters whose smaller sizes lose more."""
    random, said, came = np.random.default_rng(6), list[float](), list[bool]()
    for _ in range(250):
        losses = np.cumsum(random.exponential(random.choice([0.3, 1.0]), 4)) - 0.5
        audit = audit_of(random, np.clip(losses, -3, 5.9).tolist(), 800)
        if (size := audit.enough) is not None:
            said.append(audit.probability(size))
            came.append(losses[audit.sizes.index(size)] <= 1)
            assert f"P(within 1) {said[-1]:.2f}" in audit.verdict
    assert len(said) > 60
    assert np.mean(came) == pytest.approx(np.mean(said), abs=0.05)


def test_modules_that_keep_no_rank_are_named() -> None:
    audit = audit_of(np.random.default_rng(7), [0.0], 4000)
    ranks = {"query": 3, "key": 0, "value": 0}
    audit = replace(audit, sizes=(replace(audit.sizes[0], ranks=ranks),))
    assert audit.verdict.endswith("a LoRA of rank 3, and of rank 0 in key, value.")


def test_rows_to_decide_would_decide() -> None:
    labels, first = np.ones(200), np.ones(200)
    second = np.r_[np.zeros(1), np.ones(199)]
    gap = compare_answers(Answers("accuracy", (first, labels)), Answers("accuracy", (second, labels)))
    need = gap.rows_to_decide(1.0, 0.9)
    assert need is not None
    times = need // 200 + 1
    more = [Answers("accuracy", (np.tile(side, times), np.tile(labels, times))) for side in (first, second)]
    assert gap.probability(1.0) < 0.9 <= compare_answers(*more).probability(1.0)
