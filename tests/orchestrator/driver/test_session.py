"""What a running sweep shows, read as a person reads it; and how trials and sweeps end: what they propose next, faults that end
a session, and trials that never began."""

from __future__ import annotations

import io
import itertools
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands import session, start
from orchestrator.driver.display import Display, SweepOutcome, show_outcome, show_unsent
from orchestrator.driver.queue import ENOUGH, CommonCause
from orchestrator.plan.trial import Outcome, Trial, TrialResult, Why
from orchestrator.record.events import Ended, Event, Reported, Requested, SessionStarted, Started, Wanted
from orchestrator.record.folder import one_driver
from orchestrator.record.state import Entry, State, fold
from orchestrator.results.front import mark_front
from orchestrator.results.summary import summarize_entries
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.review.progress import Progress
from orchestrator.sweepfile.resources import Resources
from orchestrator.tracking.desired import TRIAL_KIND
from orchestrator.tracking.follower import Lacks
from orchestrator.tune.cluster import missing
from tests.orchestrator.logged import started
from tests.orchestrator.plans import driving, rank, start_next, toy_plan
from tests.orchestrator.record.played import STEPS, plan_of, progress
from tests.orchestrator.recorded import printed

HOSTILE = "LoRA :fire: [red]r8[/red] :smile:"


def trial(seed: int) -> Trial:
    return Trial(f"k{seed}", "c", HOSTILE, "lora", "glue/rte", seed, "honest", {})


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


@pytest.mark.parametrize("quiet", [True, False])
def test_a_pipe_gets_plain_lines_and_failures_and_troubles_at_once(quiet: bool) -> None:
    sweep = Sweep(4, quiet=quiet)
    with sweep.display as display:
        sweep.start(0, 2)
        sweep.ends(0, 1.0, "failed", f"the loss of {HOSTILE} is [nan]")
        for _ in range(3):
            display.trouble("the disk is full")
        failed = f"failed: {HOSTILE} · glue/rte · seed 0: the loss of {HOSTILE} is [nan]\n"
        assert sweep.stream.getvalue() == ("" if quiet else f"{failed}the disk is full\n")
        display.tick()
        sweep.ends(1, 1.0)
        sweep.does(Reported(key="k2", rows=[{"step": 3, "search_score": 66.6}], epoch=1.0, total_steps=4))
    assert "\x1b" not in sweep.stream.getvalue()
    if quiet:
        assert sweep.shown == ""
        return
    *lines, last = sweep.shown.splitlines()
    assert last.startswith("1/4 trainings done, 1 running, 1 failed")
    assert "score" not in last, "a reported score chooses nothing"
    assert lines[2:] == []


def test_a_terminal_gets_a_block_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    sweep = Sweep(4, live=True)
    with sweep.display as display:
        sweep.start(0, 2)
        display.tick()
        assert "search score" not in sweep.shown
        sweep.now += 1.0
        sweep.does(Reported(key="k0", rows=[{"step": 3, "search_score": 66.6}], epoch=1.0, total_steps=4))
        sweep.ends(1, 1.0)
        sweep.looks(2, "scoring 300/872 (reported)", 0.41, 130.0)
        sweep.stream.seek(sweep.stream.truncate(0))
        display.tick()
        shown = sweep.shown
    for part in ("1/4 trainings done", "2 running", "0 failed", "search score", "75%", "66.6", HOSTILE):
        assert part in shown
    assert re.search(r"41% .*scoring 300/872 .*2 min 10 s left", shown)


@pytest.mark.parametrize(("seeds", "chance", "offered"), [([0], 50.0, True), ([0, 1, 2], 50.0, True), ([0, 1, 2], 95.0, False)])
def test_an_adapter_is_offered_if_one_is_above_random_guessing(
    tmp_path: Path, seeds: list[int], chance: float, offered: bool
) -> None:
    plan = toy_plan(tmp_path, f"seeds: {seeds}\nspace: [{{method: lora, rank: {{values: [1, 2]}}}}]\n", rank)
    entries = {}
    for trial in plan.trials:
        score = {"score": 80.0 + 5 * trial.run.parameters["rank"] + 0.1 * trial.run.seed}
        phases = {"phases": {"train": 3.0, "score": 1.0}}
        result = TrialResult(trial.key, "finished", score, {"random_guessing": chance}, 3, 1.0, facts=phases)
        entries[trial.key] = Entry(trial.trial, result, "ended")
    summaries = mark_front(summarize_entries(entries.values()), plan.sweep.objectives)
    # Trials that ended before the session started took none of its time.
    begun = SessionStarted(**started(), time=0.0 if offered else 1.0)
    outcome = SweepOutcome(State(entries=entries, wanted=dict.fromkeys(entries), started=begun), 1.0)
    screen = printed(lambda console: show_outcome(plan, outcome, summaries, console, "sqlite:///x", []))
    assert ("craft-sweeps take" in screen) == offered
    assert "craft-sweeps page --tracking-uri sqlite:///x" in screen
    assert ("1 s: training 75 %, scoring 25 %" in screen) == offered


@pytest.mark.parametrize("lost", [False, True])
def test_the_command_to_continue_is_there_before_the_store_is_waited_for(lost: bool) -> None:
    screen, seen = io.StringIO(), list[str]()

    class Away:
        def wait(self, seconds: float) -> Lacks:
            seen.append(screen.getvalue())
            return Lacks(7)

    again = "craft-sweeps run x.yaml --resume"
    log = [
        SessionStarted(sweep={}, configurations=1, trainings=1, again=again),
        Wanted(keys=["k"], trials=[Trial("k", "c", "LoRA", "lora", "glue/rte", 0, "honest", {})]),
    ]
    log += [Ended(result=TrialResult("k", "failed", error="its machine is gone", retryable=True))] if lost else []
    outcome = SweepOutcome(fold(log), 1.0)
    console = Console(file=screen, width=200)
    assert not session._is_shipped(Away(), 60.0, outcome, console)  # type: ignore[arg-type]
    assert seen[0] == ""
    assert "1 trial without a result; continue with: craft-sweeps run x.yaml --resume\n" in seen[1]
    show_unsent(Lacks(7), Path("runs/x"), Console(file=screen, width=200))
    assert screen.getvalue().splitlines()[-1] == "7 events not in the tracking store yet; send with: craft-sweeps replay runs/x"
    unsent = printed(lambda console: show_unsent(Lacks(1), Path("my runs/x"), console))
    assert unsent.endswith("craft-sweeps replay 'my runs/x'\n")
    refused = printed(lambda console: show_unsent(Lacks(0, 2), Path("runs/x"), console))
    assert refused.startswith("the store refused 2 values: messages above or in sweep.log say why")


SAME_REASON = [f"model m: no room on /scratch/{'ab'[number % 2]}/{number}" for number in range(ENOUGH)]


@pytest.mark.parametrize(
    ("reasons", "running_since", "trouble"),
    [
        (SAME_REASON[:-1], (), None),
        (SAME_REASON, (), SAME_REASON[-1]),
        ([*SAME_REASON[:-1], "no data", *SAME_REASON[:-1]], (), None),
        ([*SAME_REASON[:-1], None, *SAME_REASON[:-1]], (), None),  # a trial trains
        (SAME_REASON * 5, (0.5,), None),  # one that has run since before them may be on a machine that is well
        (SAME_REASON * 5, (30.0,), SAME_REASON[-1]),
    ],
)
def test_ten_alike_in_a_row_are_enough_and_the_reason_is_told(
    reasons: list[str | None], running_since: tuple[float, ...], trouble: str | None
) -> None:
    clock = itertools.count(1.0)
    cause = CommonCause(lambda: next(clock))
    for reason in reasons:
        cause.failed(reason, running_since) if reason else cause.works()
    assert trouble in (cause.trouble or "") if trouble else cause.trouble is None


def test_ten_trials_that_could_not_begin_end_the_session(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, f"space: [{{method: lora, rank: {{values: {[*range(1, 12)]}}}}}]\n")
    with driving(plan, tmp_path / "s") as driver:
        for _ in range(ENOUGH):
            job = start_next(driver)
            result = TrialResult(job.key, "failed", error="plugin mine is missing", retryable=True)
            driver.receive(1, job.key, {"results": [result.to_json()]}, None)
        assert "plugin mine is missing" in (driver.common_cause.trouble or "")


def test_a_paused_sweep_takes_running_trials_back_before_their_last_evaluation(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        job = start_next(driver)

        def evaluated(step: int) -> bool:
            return driver.receive(1, job.key, {"progress": progress(job.training, step)}, None)

        assert not evaluated(1)
        driver.record(Requested(request="r", who="me", verb="pause", keys=[]))
        assert evaluated(2)
        driver.record_leave(job.key)
        assert driver.next_job() is None
        assert (driver.state.entries[job.key].phase, driver.display.progress().doing) == ("paused", ""), "nothing starts"
        driver.record(Requested(request="s", who="me", verb="continue", keys=[]))
        start_next(driver)
        driver.record(Requested(request="t", who="me", verb="pause", keys=[]))
        assert not evaluated(STEPS), "it is trained"


def test_a_driver_says_that_it_lives_while_nothing_can_be_foretold(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        driver._clock = lambda: 1e9
        driver.tick()
        assert driver.state.underway is not None


def test_a_start_that_is_refused_leaves_the_folder_to_the_other_one(tmp_path: Path) -> None:
    def begin(other: ExitStack) -> None:
        with start._claimed(tmp_path / "s"):
            other.enter_context(one_driver(tmp_path / "s"))
            raise ValueError("it is in use")

    with ExitStack() as other, pytest.raises(ValueError, match="in use"):
        begin(other)
    assert (tmp_path / "s").is_dir()


def trials_with_runs(state: State, folder: Path) -> set[str]:
    return {key for kind, key in DesiredRuns(folder, "").update(state, None) if kind == TRIAL_KIND}


def test_a_size_of_a_training_that_failed_in_an_earlier_session(tmp_path: Path) -> None:
    with driving(plan_of("cuts", 0), tmp_path) as driver:
        job = start_next(driver)
        driver.record_end(job.key, [Outcome(TrialResult(job.key, "failed", error="diverged"))])
        begun = {job.key, *(cut.key for cut in job.cuts)}
    with driving(plan_of("cuts", 1), tmp_path) as driver:
        new = [entry for entry in driver.state.cuts_of(driver.state.entries[job.key].trial) if entry.key not in begun]
        assert [(entry.ended, entry.begun) for entry in new] == [(True, False)]
        assert trials_with_runs(driver.state, tmp_path) == begun


def test_a_trial_for_which_no_process_could_start(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        job = driver.next_job()
        driver.record_failure(job.key, "no process could be started")
        entry = driver.state.entries[job.key]
        assert (entry.ended, entry.begun) == (True, False)
        assert trials_with_runs(driver.state, tmp_path) == set()
