"""How far a run is and how long it still takes, on a clock that the test moves; and a few real steps, timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from craft.results import Outlook, RunFailed
from craft.spec import RunSpec
from craft.trainer import probe
from craft.trainer.pace import FORWARD, REPORT_EVERY, Pace, report_outlooks
from craft.trainer.probe import measure_speed


class Run:
    """A run of 10 steps of 2 s, evaluated at 5 and 10 on 40 examples, with 800 reported ones, of 0.5 s each."""

    def __init__(self, step: int = 0, due: bool = False, cuts: int = 0) -> None:
        self.now = 1000.0
        sizes = {"search": 40, "reported": 800}
        self.pace = Pace(10, 6, [5, 10], sizes, cuts, step=step, due=due, clock=lambda: self.now)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.now += 2.0
            self.pace.end_step(step)

    def scores(self, split: str, total: int, upto: int | None = None, pieces: int = 1, since: int = 0) -> None:
        """Batches of 20 examples, each of which counts as so many pieces."""
        for done in range(since + 20, (upto or total) + 1, 20):
            self.now += 20 * 0.5
            self.pace.count(split, done * pieces, total * pieces)

    def waits(self) -> None:
        """A checkpoint is written: seconds that are neither training nor scoring."""
        self.now += 100.0
        self.pace.end_evaluation()


WHOLE = 10 * 2.0 + 2 * 40 * 0.5 + 800 * 0.5


def test_seconds_left_are_those_of_the_steps_the_evaluations_and_the_final_scoring() -> None:
    run = Run()
    run.waits()
    run.steps(1, 4)
    guess = 2.0 / 6 / 3  # an example forward, of steps of 6 examples
    assert run.pace.outlook().seconds_left == pytest.approx(6 * 2.0 + (2 * 40 + 800) * guess)
    run.steps(5, 5)
    run.scores("search", 40, 20, pieces=2)  # likelihoods: two answers a question
    middle = run.pace.outlook()
    assert middle.seconds_left == pytest.approx(5 * 2.0 + (20 + 40 + 800) * 0.5)
    assert middle.phase == "scoring 20/40 (search)"
    run.scores("search", 40, since=20, pieces=2)
    run.waits()
    run.steps(6, 10)
    assert run.pace.outlook().seconds_left == pytest.approx((40 + 800) * 0.5)
    run.scores("search", 40)
    run.waits()
    assert run.pace.outlook() == Outlook("step 10/10", pytest.approx(1 - 400 / WHOLE), pytest.approx(400.0))
    run.now += 7.0
    run.pace.count("forgetting", 1, 9)
    assert run.pace.outlook().phase == "scoring 1/9 (forgetting)", "what is not foretold is shown"
    run.scores("reported", 800, 300)
    assert run.pace.outlook() == Outlook("scoring 300/800 (reported)", pytest.approx(1 - 250 / WHOLE), pytest.approx(250.0))
    run.scores("reported", 800, since=300)
    assert (run.pace.outlook().seconds_left, run.pace.outlook().share) == (pytest.approx(0.0, abs=1e-9), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("run", "steps", "evaluations"),
    [(Run(step=5), 5, 1), (Run(step=10, due=True), 0, 1), (Run(step=9, cuts=2), 1, 1)],
    ids=["resumed", "evaluation still due", "with cuts"],
)
def test_a_resumed_run_has_left_what_no_process_has_done(run: Run, steps: int, evaluations: int) -> None:
    assert run.pace.outlook() == Outlook(f"step {10 - steps}/10", 1 - steps / 10, None), "nothing is measured yet"
    run.steps(11 - steps, 10)
    for _ in range(evaluations):
        run.scores("search", 40)
    assert run.pace.outlook().seconds_left == pytest.approx(400.0 + run.pace.cuts * 420.0)


def test_a_run_resumed_after_its_last_step_says_how_little_of_it_is_left() -> None:
    run = Run(step=10, cuts=1)
    run.scores("reported", 800)
    a_step = 6 * 0.5 * 3
    total = 10 * a_step + (2 * 40 + 800 + 840) * 0.5
    assert run.pace.outlook().seconds_left == pytest.approx(840 * 0.5)
    assert run.pace.outlook().share == pytest.approx(1 - 840 * 0.5 / total)


def test_a_run_reports_every_few_seconds_and_the_listener_takes_none_of_its_time() -> None:
    reports: list[Outlook] = []
    run = Run(step=10)

    def slow(outlook: Outlook) -> None:
        reports.append(outlook)
        run.now += 60.0

    with report_outlooks(slow):
        for done in range(1, 401):
            run.now += 0.5
            run.pace.count("reported", done, 800)
    assert len(reports) == 400 * 0.5 // REPORT_EVERY
    assert run.pace.outlook().seconds_left == pytest.approx(400 * 0.5)
    run.now += 60.0
    run.pace.count("reported", 400, 800)
    assert len(reports) == 25, "nobody listens any more"


def test_a_run_that_trains_nothing_reports_before_its_first_score() -> None:
    """The base model as it is: no step, and what is computed first is in no split (forgetting)."""
    now, seen = [1000.0], list[Outlook]()
    pace = Pace(0, 8, [0], {"search": 40, "reported": 800}, clock=lambda: now[0])
    with report_outlooks(seen.append):
        now[0] += REPORT_EVERY
        pace.count("text", 1, 4)
    assert seen == [Outlook("scoring 1/4 (text)", 0.0, None)]


def run(model: str, **training: object) -> RunSpec:
    # CRAFT's ranks are too large for this model; LoRA is what trains.
    settings = {"batch_size": 4, "eval_batch_size": 8, "max_length": 16} | training
    return RunSpec.model_validate({"model": model, "task": "toy/sentiment", "method": "craft", "training": settings})


def test_start_step_and_example_are_timed(tiny_bert: str) -> None:
    threads = torch.get_num_threads()
    speed = measure_speed(run(tiny_bert), 60)
    assert speed is not None
    assert min(speed) > 0
    assert speed.example != pytest.approx(FORWARD * speed.step / 4)  # measured
    assert torch.get_num_threads() == threads


def test_a_probe_without_time_takes_three_steps(tiny_bert: str) -> None:
    speed = measure_speed(run(tiny_bert, gradient_accumulation=2), 0)
    assert speed is None or speed.example == pytest.approx(FORWARD * speed.step / 8)


def test_what_cannot_be_loaded_or_trained_is_not_timed(tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match="max_length"):
        measure_speed(run(tiny_bert, max_length=2), 60)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert measure_speed(run(str(tmp_path)), 60) is None
    monkeypatch.setattr("craft.trainer.probe.device_memory", lambda: 1000)
    assert measure_speed(run(tiny_bert), 60) is None


def test_a_container_has_the_memory_of_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CGROUPS", tmp_path)
    whole = probe.machine_memory()
    for file, limit in {tmp_path / "memory.max": "max", tmp_path / "memory/memory.limit_in_bytes": "4096"}.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{limit}\n")
    groups = Path("/proc/self/cgroup").read_text()
    assert probe.machine_memory() == (4096 if ":memory:" in groups else whole)
    (tmp_path / "memory.max").write_text("1024\n")
    assert probe.machine_memory() == (1024 if "0::" in groups else 4096)
