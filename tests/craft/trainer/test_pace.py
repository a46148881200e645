"""How far a run is and how long it still takes, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from craft.results import Outlook
from craft.trainer.pace import Pace, hearing


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A run of 10 steps of 2 s, evaluated at 5 and 10 on 40 examples, with 800 reported ones, of 0.5 s each."""

    def __init__(self, step: int = 0, due: bool = False, reported: tuple[tuple[str, int], ...] = (("reported", 800),)) -> None:
        self.clock = Clock()
        self.pace = Pace(10, 6, [5, 10], [("search", 40)], reported, step=step, due=due, clock=self.clock)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.clock.now += 2.0
            self.pace.stepped(step)

    def scores(self, what: str, total: int, upto: int | None = None, pieces: int | None = None, since: int = 0) -> None:
        """Batches of 20 examples; `pieces` is the number of ticks' units a whole pass has, where it is not that of examples."""
        for done in range(since + 20, (upto or total) + 1, 20):
            self.clock.now += 20 * 0.5
            of = pieces or total
            self.pace.scored(what, done * of // total, of)

    def waits(self) -> None:
        """A checkpoint is written: seconds that are neither training nor scoring."""
        self.clock.now += 100.0


WHOLE = 10 * 2.0 + 2 * 40 * 0.5 + 800 * 0.5


def test_seconds_left_are_those_of_the_steps_the_evaluations_and_the_final_scoring() -> None:
    run = Run()
    run.waits()
    run.pace.evaluated()
    run.steps(1, 4)
    guess = 2.0 / 6 / 3  # an example forward, of steps of 6 examples
    assert run.pace.outlook().left == pytest.approx(6 * 2.0 + (2 * 40 + 800) * guess)
    run.steps(5, 5)
    run.scores("search", 40, 20)
    middle = run.pace.outlook()
    assert middle.left == pytest.approx(5 * 2.0 + (20 + 40 + 800) * 0.5)
    assert middle.phase == "scoring 20/40 (search)"
    run.scores("search", 40, since=20)
    run.waits()
    run.pace.evaluated()
    run.steps(6, 10)
    assert run.pace.outlook().left == pytest.approx((40 + 800) * 0.5)
    run.scores("search", 40)
    run.pace.evaluated()
    assert run.pace.outlook() == Outlook("step 10/10", pytest.approx(1 - 400 / WHOLE), 0.0, pytest.approx(400.0))
    run.pace.ends()
    run.scores("reported", 800, 300)
    assert run.pace.outlook() == Outlook(
        "scoring 300/800 (reported)", pytest.approx(1 - 250 / WHOLE), 0.0, pytest.approx(250.0)
    )
    run.scores("reported", 800, since=300)
    assert run.pace.outlook().left == pytest.approx(0.0, abs=1e-9)
    assert run.pace.outlook().share == pytest.approx(1.0)


def test_a_resumed_run_counts_what_was_done_before_apart() -> None:
    run = Run(step=5)
    assert run.pace.outlook() == Outlook("step 5/10", 0.5, 0.5, None), "nothing is measured yet in this process"
    run.steps(6, 10)
    run.scores("search", 40)
    run.pace.evaluated()
    done_before = 5 * 2.0 + 40 * 0.5
    outlook = run.pace.outlook()
    assert (outlook.left, outlook.before) == (pytest.approx(400.0), pytest.approx(done_before / WHOLE))


def test_a_run_that_left_before_its_last_evaluation_has_that_and_the_final_scoring_left() -> None:
    run = Run(step=10, due=True)
    run.scores("search", 40, 20)
    assert run.pace.outlook().left == pytest.approx((20 + 800) * 0.5)
    assert run.pace.outlook().before < run.pace.outlook().share < 0.1, "steps cost nothing that this process knows of"


def test_tests_that_a_resumed_run_reads_back_are_not_left() -> None:
    run = Run(step=10, reported=(("boolq", 400), ("piqa", 200), ("siqa", 200)))
    run.pace.ends()
    run.scores("piqa", 200, 100, pieces=400)  # likelihoods: two answers a question
    outlook = run.pace.outlook()
    assert outlook.phase == "scoring 100/200 (piqa)"
    assert outlook.left == pytest.approx((100 + 200) * 0.5)


def test_nested_ranks_score_each_split_once_for_each_rank() -> None:
    clock = Clock()
    pace = Pace(10, 6, [10], [("search", 40)] * 3, [("reported", 80)] * 3, clock=clock)
    clock.now += 20.0
    pace.stepped(10)
    for _ in range(2):
        for done in (20, 40):
            clock.now += 10.0
            pace.scored("search", done, 40)
    assert pace.outlook().left == pytest.approx((40 + 3 * 80) * 0.5)


def test_answers_are_not_foretold_by_the_loss_which_costs_less() -> None:
    clock = Clock()
    pace = Pace(10, 6, [5, 10], [("loss", 40), ("search", 40)], [("boolq", 100)], clock=clock)
    clock.now += 10.0
    pace.stepped(5)
    clock.now += 1.0
    pace.scored("loss", 40, 40)
    clock.now += 40.0
    pace.scored("search", 20, 40)
    assert pace.outlook().left == pytest.approx(5 * 2.0 + 20 * 2.0 + (1.0 + 40 * 2.0) + 100 * 2.0)
    clock.now += 7.0
    pace.scored("forgetting", 1, 9)
    assert pace.outlook().phase == "scoring 1/9 (forgetting)", "work beside the splits is shown"


def test_a_run_tells_every_few_seconds_and_not_of_every_batch() -> None:
    told: list[Outlook] = []
    run = Run(step=10)
    run.pace.ends()
    with hearing(told.append):
        for done in range(1, 801):
            run.clock.now += 0.5
            run.pace.scored("reported", done, 800)
            run.pace.tell()
    assert len(told) == 400 // 9, "2 % of the run, 440 s as far as this process can tell, are 8.8 s"
    assert [one.share for one in told] == sorted(one.share for one in told)
    run.pace.tell()
    assert len(told) == 44, "nobody listens any more"


def test_what_the_listener_takes_is_none_of_the_runs_time() -> None:
    run = Run(step=10)
    run.pace.ends()

    def slow(_outlook: Outlook) -> None:
        run.clock.now += 60.0

    with hearing(slow):
        for done in range(20, 401, 20):
            run.clock.now += 10.0
            run.pace.scored("reported", done, 800)
            run.pace.tell()
    assert run.pace.outlook().left == pytest.approx(400 * 0.5)
