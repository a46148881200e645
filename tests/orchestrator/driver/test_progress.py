"""What a running sweep shows, read as a person reads it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest

from craft.words import format_duration
from orchestrator.driver.display import Display
from orchestrator.plan.trial import Trial, TrialResult, Why
from orchestrator.record.events import Ended, Event, Reported, SessionStarted, Started, Wanted
from orchestrator.review.status import Progress
from orchestrator.sweepfile.resources import Resources
from orchestrator.tune.cluster import missing
from tests.orchestrator.logged import started

HOSTILE = "LoRA :fire: [red]r8[/red] :smile:"


def trial(seed: int) -> Trial:
    return Trial(f"k{seed}", "c", HOSTILE, "lora", "glue/rte", seed, "honest", {})


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273600, "3 d 4 h")]
)
def test_a_duration_is_written_as_people_say_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


class Sweep:
    """A display on a clock that the test moves, of a sweep of some trials."""

    def __init__(self, total: int, asked: int | None = None, **shown: Any) -> None:
        self.now, self.stream = 1000.0, io.StringIO()
        self.display = Display(self.stream, clock=lambda: self.now, **shown)
        self.keys = [f"k{seed}" for seed in range(asked or total)]
        self.begin(total)

    def begin(self, total: int) -> None:
        trials = [trial(seed) for seed in range(len(self.keys))]
        self.does(SessionStarted(**started(trainings=total)), Wanted(keys=self.keys, trials=trials))

    def does(self, *events: Event) -> None:
        for event in events:
            event = replace(event, time=self.now)
            self.display.show(event, self.display.state.after(event))

    def start(self, *seeds: int) -> None:
        self.does(Started(keys=[f"k{seed}" for seed in seeds]))

    def ends(self, seed: int, seconds: float, status: Any = "finished", error: str | None = None) -> None:
        self.does(Ended(result=TrialResult(f"k{seed}", status, {"score": 60.0}, seconds=seconds, error=error)))

    def looks(self, seed: int, phase: str, share: float, left: float | None) -> None:
        self.display.look(f"k{seed}", {"phase": phase, "share": share, "seconds_left": left})

    @property
    def progress(self) -> Progress:
        return self.display.progress()

    @property
    def left(self) -> float | None:
        return self.progress.seconds_left

    @property
    def shown(self) -> str:
        """What a person has read."""
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", self.stream.getvalue())


def test_a_sweep_without_a_machine_says_what_it_waits_for() -> None:
    sweep, large, small = Sweep(2), Resources(cpu=4, gpu=1), Resources(cpu=2)
    sweep.display.missing = missing([large, large], [{"CPU": 64.0}, {"GPU": 1.0, "CPU": 2.0}, {}])
    assert "0 running (no machine: waiting for cpu 4, gpu 1)" in sweep.progress.counts
    sweep.start(0)
    assert "no machine" not in sweep.progress.counts
    assert missing([large, small], [{"CPU": 2.0}]) == ""
    assert missing([small], []) == "cpu 2"
    assert missing([], []) == ""


def test_cuts_of_finished_adapters_are_seen() -> None:
    """Sizes that are added to a file are cut on a resume, while nothing trains."""
    sweep = Sweep(1)
    sweep.ends(0, 1.0)
    cuts = [replace(trial(seed), why=Why("cut", "k0")) for seed in (1, 2)]
    for event, doing in (
        (Wanted(keys=["k1", "k2"], trials=cuts), ""),
        (Started(keys=["k1", "k2"]), " (making 2 cuts of finished adapters)"),
        (Ended(result=TrialResult("k1", "finished", {"score": 55.0})), " (making 1 cut of finished adapters)"),
        (Ended(result=TrialResult("k2", "stopped")), ""),
    ):
        sweep.does(event)
        assert f"1/1 trainings done, 0 running{doing}, 0 failed" in sweep.progress.counts
    assert "1/2 cuts done" in sweep.progress.counts
    assert sweep.progress.trainings.stopped == 0, "a cut is no training"


def test_time_left_is_right_within_a_quarter_once_a_trial_has_ended() -> None:
    """Trials of 80 to 120 s, two at once; the first two wait 100 s for their processes, and all report what they know."""
    lasts = [100, 90, 120, 80, 110, 95, 105, 85]
    ends, free = [0.0] * 8, [100.0, 100.0]
    for seed, seconds in enumerate(lasts):
        free.sort()
        ends[seed] = free[0] = free[0] + seconds
    sweep, checked, running = Sweep(8), 0, set[int]()
    for now in range(0, int(max(ends)), 5):
        sweep.now = 1000.0 + now
        for seed, end in enumerate(ends):
            began = end - lasts[seed] - (100 if seed < 2 else 0)
            if end <= now and seed in running:
                sweep.ends(seed, lasts[seed])
                running.remove(seed)
            elif began <= now < end:
                if seed not in running:
                    sweep.start(seed)
                running.add(seed)
                done = (now - (end - lasts[seed])) / lasts[seed]
                if done > 0.1:
                    sweep.looks(seed, "step", done, end - now)
        if min(ends) <= now:
            assert sweep.left == pytest.approx(max(ends) - now, rel=0.25, abs=10), f"at {now} s"
            checked += 1
    assert checked > 50


def test_before_a_trial_has_ended_the_running_ones_foretell_the_pace() -> None:
    sweep = Sweep(4, asked=6)
    sweep.ends(4, 1.0)
    sweep.ends(5, 1.0)
    sweep.now += 1
    sweep.begin(6)
    assert sweep.left is None, "what earlier sessions did says nothing of this one's speed"
    sweep.start(0, 1)
    sweep.now += 1000.0  # the libraries were slow to load
    sweep.looks(0, "step 2/10", 0.2, 80.0)
    sweep.looks(1, "step 6/10", 0.6, 40.0)
    assert sweep.left == pytest.approx((80 + 40 + 2 * 100) / 2)


def test_trials_that_wait_take_as_long_as_a_resumed_one_took_in_all_sessions() -> None:
    sweep = Sweep(4)
    for seed in (0, 1):
        sweep.start(seed)
        sweep.now += 3.0
        sweep.ends(seed, 100.0)  # nearly all of it in an earlier session
    assert sweep.left == pytest.approx(2 * 100.0)


def test_the_last_evaluation_leaves_the_final_scoring_to_do() -> None:
    sweep = Sweep(2)
    evaluation = Reported(key="k0", rows=[{"step": 10, "search_score": 55.0}], epoch=1.0, total_steps=10)
    sweep.start(0)
    sweep.does(evaluation)
    sweep.looks(0, "scoring 300/872 (reported)", 0.25, 300.0)
    sweep.now += 80.0
    assert sweep.left == pytest.approx(220.0 + 220.0 / 0.75), "time passes between two reports; another one waits"
    assert "1 running (scoring 300/872 (reported))" in sweep.progress.counts
    sweep.does(replace(evaluation, rows=[{"step": 10, "search_score": 56.0}]))
    assert [trial.search_score for trial in sweep.progress.running] == [56.0]
    sweep.start(1)
    sweep.looks(1, "scoring 1/872 (reported)", 0.1, 900.0)
    assert sweep.left == pytest.approx(900.0), "the sweep cannot end before a trial that runs"
    assert sweep.progress.doing == "2 scoring"


@pytest.mark.parametrize("verbosity", ["normal", "verbose"])
def test_a_pipe_gets_plain_lines_and_failures_and_troubles_at_once(verbosity: str) -> None:
    sweep = Sweep(4, verbosity=verbosity)
    with sweep.display as display:
        sweep.start(0)
        sweep.ends(0, 1.0, "failed", f"the loss of {HOSTILE} is [nan]")
        for _ in range(3):
            display.trouble("the disk is full")
        failed = f"failed: {HOSTILE} · glue/rte · seed 0: the loss of {HOSTILE} is [nan]\n"
        assert sweep.stream.getvalue() == f"{failed}the disk is full\n"
        display.tick()
        sweep.ends(1, 1.0)
        sweep.does(Reported(key="k2", rows=[{"step": 3, "search_score": 66.6}], epoch=1.0, total_steps=4))
    assert "\x1b" not in sweep.stream.getvalue()
    *lines, last = sweep.shown.splitlines()
    assert last.startswith("1/4 trainings done, 1 running, 1 failed")
    assert "score" not in last, "a reported score chooses nothing"
    told = [
        f"finished: {HOSTILE} · glue/rte · seed 1: score 60.0",
        f"{HOSTILE} · glue/rte · seed 2: step 3/4, search score 66.6",
    ]
    assert lines[2:] == (told if verbosity == "verbose" else [])


def test_a_terminal_gets_a_block_with_everything() -> None:
    sweep = Sweep(4, live=True)
    with sweep.display as display:
        sweep.start(0, 2)
        sweep.does(Reported(key="k0", rows=[{"step": 3, "search_score": 66.6}], epoch=1.0, total_steps=4))
        sweep.ends(1, 1.0)
        sweep.looks(2, "scoring 300/872 (reported)", 0.41, 130.0)
        sweep.stream.seek(sweep.stream.truncate(0))
        display.tick()
        shown = sweep.shown
    for part in ("1/4 trainings done", "2 running", "0 failed", "search score", "75%", "66.6", HOSTILE):
        assert part in shown
    assert re.search(r"41% .*scoring 300/872 .*2 min 10 s left", shown)


def test_quiet_is_quiet() -> None:
    sweep = Sweep(4, verbosity="quiet", live=True)
    with sweep.display as display:
        sweep.start(0)
        sweep.ends(0, 1.0, "failed", "x")
        display.trouble("the disk is full")
        display.tick()
    assert sweep.stream.getvalue() == ""
