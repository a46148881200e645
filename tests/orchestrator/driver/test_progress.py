"""What a running sweep shows, read as a person reads it."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from craft.spec import RunSpec
from craft.words import format_duration
from orchestrator.driver.display import Display
from orchestrator.driver.tally import Tally
from orchestrator.plan.trial import TrialResult, TrialSpec


def spec(seed: int) -> TrialSpec:
    return TrialSpec(RunSpec(model="m", task="glue/rte", method="lora", seed=seed), "c", f"LoRA {seed}")


def finished(seed: int, score: float) -> TrialResult:
    return TrialResult(spec(seed).key, "finished", {"score": score})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_a_duration_is_written_as_people_say_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_time_left_follows_this_run_s_pace_counting_parts_of_running_trials() -> None:
    now = [0.0]
    tally = Tally(10, clock=lambda: now[0])
    for seed in range(4):
        tally.end(spec(seed), finished(seed, 60.0), earlier=True)
    assert tally.left is None
    tally.start(spec(4))
    tally.start(spec(5))
    now[0] = 100.0
    tally.end(spec(4), finished(4, 60.0), earlier=False)
    tally.progress(spec(5), 5, 10, 55.0)
    # One and a half trials in 100 s; four wait and half a one runs.
    assert tally.left == pytest.approx(100 / 1.5 * 4.5)


def look(phase: str, share: float, left: float | None, before: float = 0.0) -> dict[str, Any]:
    return {"phase": phase, "share": share, "before": before, "left": left}


def test_the_last_evaluation_leaves_the_final_scoring_to_do() -> None:
    now = [0.0]
    tally = Tally(1, clock=lambda: now[0])
    tally.start(spec(0))
    now[0] = 100.0
    tally.progress(spec(0), 10, 10, 55.0, look("step 10/10", 0.25, 300.0))
    assert tally.left == pytest.approx(300.0)
    now[0] = 180.0
    assert tally.left == pytest.approx(220.0), "time goes on between two words of a trial"
    tally.look(spec(0), look("scoring 300/872 (reported)", 0.5, 200.0))
    assert tally.left == pytest.approx(200.0)
    assert "1 running (scoring 300/872 (reported))" in tally.sentence()
    assert tally.running[spec(0).key].score == 55.0
    tally.progress(spec(0), 10, 10, 56.0)
    assert tally.running[spec(0).key].share == 0.5, "an evaluation that says nothing of it is no end of the trial"


def test_a_trial_that_scores_counts_in_the_time_left_of_the_sweep() -> None:
    now = [0.0]
    tally = Tally(4, clock=lambda: now[0])
    tally.start(spec(0))
    tally.start(spec(1))
    now[0] = 100.0
    tally.end(spec(0), finished(0, 60.0), earlier=False)
    tally.look(spec(1), look("scoring 10/100 (search)", 0.6, 70.0))
    assert tally.left == pytest.approx(100 / 1.6 * 2.4)
    tally.look(spec(1), look("scoring 11/100 (search)", 0.6, 900.0))
    assert tally.left == pytest.approx(900.0), "the sweep cannot end before a trial that runs"


def test_before_a_trial_has_ended_the_running_ones_foretell_the_pace() -> None:
    now = [0.0]
    tally = Tally(6, clock=lambda: now[0])
    tally.start(spec(0))
    tally.start(spec(1))
    now[0] = 1000.0  # the libraries were slow to load
    tally.look(spec(0), look("step 2/10", 0.2, 80.0))
    tally.look(spec(1), look("step 6/10", 0.6, 40.0))
    assert tally.left == pytest.approx((0.8 + 0.4 + 4) * 100 / 2)


def test_what_earlier_sessions_did_of_a_trial_says_nothing_of_this_run_s_pace() -> None:
    now = [0.0]
    tally = Tally(3, clock=lambda: now[0])
    tally.start(spec(0))
    now[0] = 1.0
    tally.progress(spec(0), 9, 10, 55.0, look("step 9/10", 0.8, 50.0, before=0.0), again=True)
    assert tally.left is None, "nothing was done in this session"
    now[0] = 100.0
    tally.look(spec(0), look("step 10/10", 0.9, 20.0, before=0.7))
    assert tally.left == pytest.approx(200 * 2.1), "20 s for a tenth of a trial, one at a time"
    tally.end(spec(0), finished(0, 60.0), earlier=False)
    assert tally.left == pytest.approx(100 / 0.3 * 2)


def test_failed_and_interrupted_trials_are_not_counted_as_done() -> None:
    tally = Tally(3)
    for seed, status in enumerate(("finished", "failed", "interrupted")):
        tally.start(spec(seed))
        tally.end(spec(seed), TrialResult(spec(seed).key, status, {"score": 99.0}), earlier=False)  # type: ignore[arg-type]
    assert (tally.done, tally.failed, tally.waiting, tally.running) == (1, 1, 1, {})


def test_the_best_is_the_highest_finished_score() -> None:
    tally = Tally(3)
    for seed, score in enumerate((61.0, 75.5, 70.0)):
        tally.end(spec(seed), finished(seed, score), earlier=False)
    assert tally.best == (75.5, "LoRA 1 on glue/rte, seed 1")


def test_a_pipe_gets_plain_lines_and_failures_at_once() -> None:
    stream = io.StringIO()
    with Display(2, stream) as display:
        display.started(spec(0))
        display.ended(spec(0), TrialResult(spec(0).key, "failed", error="loss is [nan]"))
        assert stream.getvalue() == "failed: LoRA 0 · glue/rte · seed 0: loss is [nan]\n"
        display.tick()
        display.ended(spec(1), finished(1, 70.0))
    assert "\x1b" not in stream.getvalue()
    assert (
        stream.getvalue()
        .splitlines()[-1]
        .startswith("1/2 trials done, 0 running, 1 failed, best 70.0 (LoRA 1 on glue/rte, seed 1)")
    )


def test_a_terminal_gets_a_block_with_everything() -> None:
    stream = io.StringIO()
    with Display(4, stream, live=True) as display:
        display.started(spec(0))
        display.progressed(spec(0), {"step": 3, "total_steps": 4, "metrics": {"search_score": 66.6}})
        display.ended(spec(1), finished(1, 70.0))
        stream.seek(stream.truncate(0))
        display.tick()
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for part in ("1/4 done", "1 running", "0 failed", "best so far 70.0: LoRA 1 on glue/rte, seed 1", "75%", "66.6"):
        assert part in shown


def test_a_terminal_says_what_a_trial_does_and_how_long_it_takes() -> None:
    stream = io.StringIO()
    with Display(2, stream, live=True) as display:
        display.started(spec(0))
        display.looked(spec(0), look("scoring 300/872 (reported)", 0.41, 130.0))
        display.tick()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert re.search(r"seed 0 +41% +scoring 300/872 \(reported\) +2 min (10|09) s left", shown)


def test_quiet_is_quiet() -> None:
    stream = io.StringIO()
    with Display(1, stream, "quiet", live=True) as display:
        display.started(spec(0))
        display.ended(spec(0), TrialResult(spec(0).key, "failed", error="x"))
        display.trouble("the disk is full")
        display.tick()
    assert stream.getvalue() == ""


def test_a_trouble_that_lasts_is_told_once() -> None:
    stream = io.StringIO()
    with Display(1, stream) as display:
        for _ in range(3):
            display.trouble("the disk is full")
    assert stream.getvalue().count("the disk is full") == 1
