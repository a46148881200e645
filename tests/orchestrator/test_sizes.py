"""Sizes of a training: in the file, the plan, the record, the worker, and under every rule that judges trainings."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import Searcher
from rich.console import Console

from craft.spec import RECOVERY, RunSpec
from craft.trainer.checkpoint import verify
from craft.trainer.training import train_run
from orchestrator.driver.display import Display
from orchestrator.driver.outcome import outcome_of
from orchestrator.driver.recorder import Recorder
from orchestrator.plan.plan import Plan
from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import Ended, Trial
from orchestrator.record.ledger import Ledger
from orchestrator.results.search_values import area
from orchestrator.results.summary import Summary, summarize
from orchestrator.search.budget import Watch
from orchestrator.search.proposers import propose
from orchestrator.search.replication import Replicating
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.space.sizes import size_labels
from orchestrator.tune.assembly import Exchange
from orchestrator.tune.trial_source import TrialSource
from orchestrator.worker.worker import WorkerSettings, work
from tests.orchestrator.sized_sweep import size_of, sized_plan, stand_in


class Heard:
    """A tracker that remembers what it was told."""

    open_configurations: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def hear(*arguments: Any) -> None:
            first, *rest = arguments
            self.events.append((name, getattr(first, "key", first), *rest))

        return hear

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == name]


@pytest.mark.parametrize(
    ("block", "sizes"),
    [
        ("sizes: [40, 20, 80, 900]", {20: "1/4", 40: "1/2"}),
        ("sizes: 4", {10: "1/8", 20: "1/4", 40: "1/2"}),
        ("sizes: 3", {10: "1/8", 28: "35 %"}),
        ("sizes: [3, 60, 79]", {3: "1/27", 60: "75 %", 79: "98.8 %"}),
        ("", {}),
    ],
)
def test_each_size_is_a_configuration_and_a_trial_of_its_training(tmp_path: Path, block: str, sizes: dict[int, str]) -> None:
    wanted = [*sizes]
    plan = sized_plan(tmp_path, block or "dropout: 0.0", seeds="[0, 1]")
    (one,) = plan.configurations
    assert [size.counts.trainable_parameters for size in one.sizes] == wanted
    assert [size.label for size in one.sizes] == [f"CRAFT 8, q v, cut to {share}" for share in sizes.values()]
    assert one.id == sized_plan(tmp_path, "dropout: 0.0").configurations[0].id, "sizes are no part of the training's identity"
    assert len(plan.trials) == plan.expected_trials == 2
    for training in plan.trials:
        assert [size_of(size) for size in training.outputs] == [*wanted, 80]
        assert {size.run.cut_from.run for size in training.sizes if size.run.cut_from} <= {training.key}
        assert len({size.key for size in training.outputs}) == len(wanted) + 1
        assert Trial.from_json(json.loads(json.dumps(training.to_json()))) == training
        assert ("sizes" in training.to_json()) == bool(wanted)
    assert len(plan.outputs) == 2 * (len(wanted) + 1)


def test_a_constraint_leaves_out_sizes_or_the_training(tmp_path: Path) -> None:
    two = "learning_rate: {values: [0.001, 0.01]}, sizes: [20, 40]"
    plan = sized_plan(tmp_path, two, "constraints: {trainable_parameters: {min: 30}}\n")
    assert [size_of(one) for one in plan.outputs] == [40, 80, 40, 80]
    assert [(one.configuration.label[-10:], one.reason) for one in plan.dropped] == [
        ("cut to 1/4", "trainable_parameters 20 is below min 30")
    ] * 2
    assert plan.duplicates == []
    learning = sized_plan(
        tmp_path, two, "constraints: {trainable_parameters: {min: 30}}\nsearch: {algorithm: tpe, configurations: 1}\n"
    )
    suggested = propose(learning, tmp_path).suggest()
    assert suggested is not None
    assert [size_of(one) for one in learning.outputs] == [40, 80]


def test_the_table_and_the_budget_count_trainings(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]", more="budget: {trials: 2}\n")
    screen = io.StringIO()
    print_plan(plan, Console(file=screen, width=200, highlight=False), {plan.configurations[0].id: 34})
    said = screen.getvalue()
    assert "1 configurations x 1 tasks x 2 seeds = 2 trials, 34 optimizer steps" in said
    assert "their adapters are cut to 2 more configurations" in said
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("CRAFT")] == ["cut", "cut", "34"]


def test_sizes_of_equal_shares_are_labelled_by_their_numbers() -> None:
    assert size_labels([2_000_000, 2_000_001, 4_000_000], 16_000_000) == ["2,000,000", "2,000,001", "1/4"]


@contextmanager
def recording(plan: Plan, folder: Path) -> Iterator[tuple[Recorder, Heard, Display]]:
    ledger, heard = Ledger(folder), Heard()
    with Display(plan.expected_trials, io.StringIO(), "quiet") as display:
        yield Recorder(plan, ledger, display, heard), heard, display
    ledger.close()


def finished(training: Trial, score: Callable[[Trial], float] = size_of) -> tuple[TrialResult, list[Ended]]:
    """Results of a training and its sizes, with adapters named after them."""

    def result(one: Trial) -> TrialResult:
        metrics, counts = (
            {"score": float(score(one)), "search_score": float(score(one))},
            {"trainable_parameters": float(size_of(one))},
        )
        return TrialResult(one.key, "finished", metrics, counts, seconds=9.0 if one is training else 1.0)

    return result(training), [Ended(result(one), Path(one.key)) for one in training.sizes]


def test_outputs_start_and_end_with_their_training_and_with_their_own_numbers(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path)
    (training,) = plan.trials
    keys, ended = [one.key for one in training.outputs], list[Summary]()
    with recording(plan, tmp_path) as (recorder, heard, display):
        recorder.listeners.append(ended.append)
        assert recorder.standing.remaining == [training.key]
        recorder.started(training.key)
        recorder.progressed(training.key, {"step": 1, "total_steps": 6, "metrics": {"search_score": 1.0}})
        assert recorder.underway.running == list(display.tally.running) == [training.key]
        result, sizes = finished(training, lambda one: 100 - size_of(one))
        recorder.ended(result, Path("whole"), sizes)
        assert recorder.standing.remaining == []
        assert recorder.underway.seconds == {training.key: 11.0}, "cutting takes its training's time"
        assert (display.tally.done, display.tally.total) == (1, 1)
        assert display.tally.best == (80.0, "CRAFT 8, q v, cut to 1/4 on toy/acceptability, seed 0")
        outcome = outcome_of(recorder.standing, seconds=1.0)
    assert [key for key, *_ in heard.of("trial_started")] == keys
    assert heard.of("trial_ended") == [(keys[0], Path(keys[0])), (keys[1], Path(keys[1])), (keys[2], Path("whole"))]
    assert [json.loads(line)["key"] for line in Ledger(tmp_path).path.read_text().splitlines()] == keys
    assert [summary.score.mean for summary in ended] == [80.0, 60.0, 20.0]
    assert ended[0].parameters["cut_from"] == training.key
    assert (outcome.finished, outcome.finished_now, len(outcome.results)) == ([training.key], [training.key], 3)
    wider = sized_plan(tmp_path, seeds="[0, 1]")
    with recording(wider, tmp_path) as (_, heard, _):
        waiting = {name: (said["status"], said["trials_done"], said["trials_planned"]) for name, _, _, said in
            heard.of("configuration_ended")}  # fmt: skip
    assert waiting == {one.configuration: ("waiting", 1, 2) for one in training.outputs}, "a seed was added"
    with recording(plan, tmp_path) as (recorder, heard, display):
        assert {said["status"] for *_, said in heard.of("configuration_ended")} == {"finished"}
        assert display.tally.best == (80.0, "CRAFT 8, q v, cut to 1/4 on toy/acceptability, seed 0"), (
            "an earlier session's size"
        )
        later = outcome_of(recorder.standing, seconds=0.0)
    assert (later.finished, later.finished_now) == ([training.key], []), "the time of an earlier session is not of this one"


@pytest.mark.parametrize("known", [[], [0], [0, 1], [2], [0, 2]])
def test_a_training_without_all_its_lines_runs_again(tmp_path: Path, known: list[int]) -> None:
    plan = sized_plan(tmp_path)
    (training,) = plan.trials
    ledger = Ledger(tmp_path)
    for place in known:
        ledger.add(TrialResult(training.outputs[place].key, "finished", {"score": 99.0}))
    ledger.close()
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == [training.key]
        recorder.started(training.key)
        result, sizes = finished(training)
        recorder.ended(result, None, sizes)
    results = Ledger(tmp_path).results()
    assert [results[one.key].metrics["score"] for one in training.outputs] == [20.0, 40.0, 80.0]
    with recording(plan, tmp_path) as (recorder, _, display):
        assert (recorder.standing.remaining, display.tally.done) == ([], 1)


@pytest.mark.parametrize("how", ["failed", "never promoted", "interrupted"])
def test_sizes_of_a_training_that_does_not_finish_end_as_it_does_without_scores(tmp_path: Path, how: str) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]")
    training, other = plan.trials
    with recording(plan, tmp_path) as (recorder, heard, _):
        recorder.started(training.key)
        recorder.progressed(training.key, {"step": 1, "metrics": {"search_score": 7.0}})
        if how == "failed":
            recorder.ended(TrialResult(training.key, "failed", error="the loss is nan", retryable=True))
        elif how == "interrupted":
            recorder.interrupted()
        else:
            recorder.paused(training.key)
            assert [key for (key,) in heard.of("trial_paused")] == [one.key for one in training.outputs]
            recorder.not_promoted({})
    results = Ledger(tmp_path).results()
    if how == "interrupted":
        assert results.keys() == {training.key}
        return
    assert {results[one.key].error for one in training.outputs} == {"the loss is nan" if how == "failed" else None}
    assert [results[one.key].metrics for one in training.sizes] == [{}, {}]
    assert results[training.key].metrics == ({} if how == "failed" else {"search_score": 7.0})
    assert len(results) == (3 if how == "failed" else 6)
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == ([training.key, other.key] if how == "failed" else [])


def worked(folder: Path, training: Trial, train: Any) -> list[dict[str, Any]]:
    """The reports of a worker; its last checkpoint is kept as storage would."""
    settings, reports = WorkerSettings(str(folder / "storage"), str(folder / "scratch"), 1, train=train), list[dict[str, Any]]()
    attempt = len(list((folder / "storage").glob("attempt-*"))) + 1

    def report(metrics: dict[str, Any], checkpoint: Path | None) -> None:
        if checkpoint is not None:
            place = folder / "storage" / f"attempt-{attempt}" / training.key / f"checkpoint_{len(reports):06d}"
            shutil.copytree(checkpoint, place)
        reports.append(json.loads(json.dumps(metrics)))

    work(training.key, json.dumps(training.to_json()), settings, report)
    return reports


def test_a_worker_keeps_sizes_with_their_adapters_and_tells_them_again(tmp_path: Path) -> None:
    (training,) = sized_plan(tmp_path).trials
    log = tmp_path / "log"
    last = worked(tmp_path, training, stand_in(str(log), {}))[-1]
    assert [(one["key"], one["metrics"]["score"], one["seconds"]) for one in last["sizes"]] == [
        (training.sizes[0].key, 20.0, 1.0),
        (training.sizes[1].key, 40.0, 1.0),
    ]
    (kept,) = (tmp_path / "storage" / "attempt-1" / training.key).glob("*/sizes")
    for one in training.sizes:
        verify(kept / one.key / "adapter")
        assert json.loads((kept / one.key / "adapter" / "run.json").read_text()) == {"size": size_of(one)}
    # The driver died before it wrote any of this down; the next worker tells it again and trains nothing.
    again = worked(tmp_path, training, stand_in(str(log), {}))[-1]
    assert again["result"] == last["result"]
    assert sorted(again["sizes"], key=str) == sorted(last["sizes"], key=str)
    assert log.read_text().count("start") == 1


def test_sizes_that_a_file_asks_for_later_are_cut_from_the_finished_adapter(tmp_path: Path, tiny_bert: str) -> None:
    """They are the same as those that are cut in the training, bit for bit; smaller micro-batches change no name."""
    training = {"max_steps": 2, "train_examples": 16, "eval_examples": 16, "max_length": 24, "batch_size": 8}
    run = RunSpec(model=tiny_bert, task="toy/sentiment", method="lora", parameters={"rank": 4}, training=training)
    cuts = tuple(Trial(run.cut_to(f"parameters:{size}", RECOVERY), f"cut{size}", "") for size in (200, 500))
    asked: list[int] = []

    def train(spec: RunSpec, directory: Path, **how: Any) -> Any:
        asked.append(spec.training.batch_size)
        if spec.training.batch_size == 8:
            raise RuntimeError("CUDA out of memory.")
        return train_run(spec, directory, **how)

    at_once = worked(tmp_path / "one", Trial(run, "c", "", sizes=cuts), train)[-1]
    assert [one["key"] for one in at_once["sizes"]] == [one.key for one in cuts]
    assert all("micro-batch" in note for one in at_once["sizes"] for note in one["notes"])
    worked(tmp_path / "two", Trial(run, "c", "", sizes=cuts[:1]), train)
    later = worked(tmp_path / "two", Trial(run, "c", "", sizes=cuts), train)[-1]
    assert asked == [8, 4, 8, 4]
    (kept,) = (tmp_path / "two" / "storage" / "attempt-2").glob("*/checkpoint_*")
    for adapter in (kept / "adapter", *kept.glob("sizes/*/adapter")):
        verify(adapter)
    for one, other in zip(
        at_once["sizes"], sorted(later["sizes"], key=lambda one: one["counts"]["trainable_parameters"]), strict=True
    ):
        assert {"key": one["key"], "metrics": one["metrics"], "counts": one["counts"]}.items() <= other.items()


def run_all(plan: Plan, folder: Path, score: Callable[[Trial], float]) -> list[Trial]:
    """Runs what the plan asks for, one training at a time, without Ray; returns the trainings that Ray would have seen."""
    ran: list[Trial] = []
    with recording(plan, folder) as (recorder, _, _):
        proposer = Replicating(propose(plan, folder), plan, recorder)
        source = TrialSource(proposer, lambda one: plan.trials_of(one.id), recorder.standing.is_settled)
        while (config := source.suggest(str(len(ran)))) not in (Searcher.FINISHED, None):
            trial = Trial.from_json(json.loads(config["trial"]))
            recorder.started(trial.key)
            result, sizes = finished(trial, score)
            recorder.ended(result, None, sizes)
            source.on_trial_complete(str(len(ran)))
            ran.append(trial)
    return ran


RATES = "learning_rate: {values: [0.001, 0.01, 0.1]}, sizes: [20, 40]"


def seeds_by_rate(ran: list[Trial]) -> dict[float, list[int]]:
    seeds: dict[float, list[int]] = {}
    for one in ran:
        seeds.setdefault(one.run.training.learning_rate, []).append(one.run.seed)
    return seeds


def test_a_training_gets_further_seeds_if_one_of_its_outputs_may_be_on_the_front(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path, RATES, "replication: {seeds: [1], margin: 1.0}\n")
    best = {20: 0.001, 40: 0.001, 80: 0.01}  # the rate under which each size is best
    ran = run_all(
        plan, tmp_path, lambda one: size_of(one) / 10 + (90 if one.run.training.learning_rate == best[size_of(one)] else 60)
    )
    assert seeds_by_rate(ran) == {0.001: [0, 1], 0.01: [0, 1], 0.1: [0]}
    assert set(Ledger(tmp_path).finished()) == {one.key for one in plan.outputs}


def test_a_rate_is_chosen_for_a_training_by_the_area_under_its_outputs(tmp_path: Path) -> None:
    plan = sized_plan(
        tmp_path, RATES, "replication: {seeds: [1, 2], choose: best, tuned: [learning_rate]}\nbudget: {trials: 5}\n"
    )
    assert plan.most_trials == 3 + 2
    scores = {0.001: {20: 90, 40: 50, 80: 50}, 0.01: {20: 70, 40: 70, 80: 70}, 0.1: {20: 10, 40: 75, 80: 90}}
    ran = run_all(plan, tmp_path, lambda one: scores[one.run.training.learning_rate][size_of(one)])
    assert seeds_by_rate(ran) == {0.001: [0], 0.01: [0, 1, 2], 0.1: [0]}, "the best of each output alone is elsewhere"
    found = summarize(plan.outputs, Ledger(tmp_path).results(), plan.counts)
    chosen = [one for one in found if not one.tunes]
    assert [(one.complete, one.value("trainable_parameters")) for one in chosen] == [(True, 20.0), (True, 40.0), (True, 80.0)]
    assert {(one.tuning.candidates, one.tuning.trials, one.tuning.choice) for one in chosen if one.tuning} == {
        (3, 3, "learning_rate 0.01")
    }


def test_the_area_by_hand() -> None:
    points = [(8000.0, 80.0), (1000.0, 60.0), (2000.0, 70.0)]
    assert area(points) == pytest.approx((65 * math.log(2) + 75 * math.log(4)) / math.log(8))
    assert area(points[:1]) == 80.0
    assert area([(0, 57.0)]) == 57, "the control has no parameters"


def test_a_searcher_is_told_the_area_once_and_a_target_counts_each_output(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]", more="budget: {target: {score: 95}}\n")
    told: list[tuple[Any, ...]] = []

    class Listening:
        def tell(self, *values: Any) -> None:
            told.append(values)

    with recording(plan, tmp_path) as (recorder, _, _):
        watch = Watch(plan.sweep.budget, plan.sweep.objectives)
        recorder.listeners.append(Exchange(plan, recorder, Listening(), watch).configuration_ended)  # type: ignore[arg-type]
        for training in plan.trials:
            result, sizes = finished(training, lambda one: {20: 50, 40: 70, 80: 80}[size_of(one)] + one.run.seed * 20)
            recorder.started(training.key)
            recorder.ended(result, None, sizes)
    expected = (70 + 85) / 2  # each pair of neighbours spans one doubling
    assert told == [(plan.configurations[0].id, {"score": pytest.approx(expected), "trainable_parameters": 80.0}, "complete")]
    assert watch.spent is None, "no mean over seeds reached 95"
