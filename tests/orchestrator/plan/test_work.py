"""How much a plan does, counted by hand: trainings, steps, scored examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.spec import RunSpec
from orchestrator.plan.work import Work, count_work
from tests.orchestrator.plans import rank, toy_plan

TRAINING = "training: {max_steps: 100, eval_examples: 50, search_examples: 20, evaluate_every: end}\n"
FAIR = "compare: fair\ntuned: {learning_rate: {values: [1e-4, 1e-3, 1e-2, 1e-1, 1]}}\nseeds: [0, 1, 2]\n"


def size(run: RunSpec) -> int:
    return rank(run) if run.parameters else 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seeds: [0, 1]\nspace: [{method: lora, rank: {values: [1, 2]}}]", [Work(4, 400, 4 * 70)]),
        # The head alone needs no gradients of the base.
        ("space: [{method: head}, {method: lora, rank: 1}]", [Work(1, 100 / 3, 70), Work(1, 100, 70)]),
        # Two cuts, each trained on for ten steps and scored on both splits.
        ("space: [{method: lora, rank: 8, sizes: [100, 200]}]", [Work(1, 120, 3 * 70)]),
        # Five rates by one seed, then three seeds of the best.
        (FAIR + "space: [{method: lora, rank: 8}]", [Work(8, 800, 8 * 70)]),
        # Three ranks: five rates of the middle one, three of each end.
        (FAIR + "space: [{method: lora, rank: {values: [1, 8, 16]}}]", [Work(20, 2000, 20 * 70)]),
    ],
)
def test_work_is_that_of_all_trainings(text: str, expected: list[Work], tmp_path: Path) -> None:
    work = count_work(toy_plan(tmp_path, TRAINING + text, size))
    assert [*work] == [("space", index) for index in range(len(expected))]
    for part, right in zip(work.values(), expected, strict=True):
        assert (part.trainings, part.steps, part.examples) == pytest.approx((right.trainings, right.steps, right.examples))


def test_a_plan_that_is_chosen_later_has_the_work_of_its_longest_point(tmp_path: Path) -> None:
    rank = "{min: 1, max: 8, distribution: int_uniform}"
    text = f"search: {{algorithm: tpe, configurations: 4}}\nspace: [{{method: lora, rank: {rank}}}]"
    assert count_work(toy_plan(tmp_path, TRAINING + text, size)) == {("space",): Work(4, 400, 4 * 70)}
    longer = text.replace("}]", ", max_steps: {values: [100, 200]}}]").replace("configurations: 4", "configurations: 500")
    (work,) = count_work(toy_plan(tmp_path, TRAINING + longer, size)).values()
    assert (work.trainings, work.steps) == (500, 500 * 200)
