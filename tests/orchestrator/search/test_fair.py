"""`compare: fair` tunes by seeds and scores that are not reported, on each task for itself, and says what that took; a rate
that is tuned at one rank is transferred to the others. Sweeps run without Ray, by scores that are known."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from craft.scoring.predictions import SEARCH_CREDITS, credits_of
from craft.spec import RunSpec
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult, Why
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.record.state import Entry
from orchestrator.results.front import mark_front
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.results.tuning import Tuning
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.review.front_tables import write_csv
from orchestrator.review.past_sweep import read_folder
from orchestrator.sweepfile.fair import write_out
from orchestrator.tracking.desired import CONFIGURATION_KIND, TUNES
from tests.orchestrator.plans import rank, run_some, toy_plan, toy_sweep

TASKS = ["toy/paraphrase", "toy/sentiment"]
RATES = [0.001, 0.01, 0.1]
FAIR = f"""
seeds: [0, 1, 2]
compare: fair
tuned: {{learning_rate: {{values: {RATES}}}}}
space:
  - {{method: lora, rank: {{values: [1, 2]}}}}
  - {{method: lora, rank: 4, learning_rate: 0.005, tuned: false}}
"""
HAND = f"""
seeds: [1000]
replication: {{seeds: [0, 1, 2], tuned: [learning_rate]}}
space:
  - {{method: lora, rank: {{values: [1, 2]}}, learning_rate: {{values: {RATES}}}}}
  - {{method: lora, rank: 4, learning_rate: 0.005}}
"""
FIRST_STAGE = 2 * (2 * 3 + 3)
"""Trials before the choice: two tasks; two ranks with three rates and one seed that tunes, and three seeds of what is fixed."""
MEASURED = 2 * 2 * 3
CHOICE = {1: [0.01, 0.001], 2: [0.001, 0.001], 4: [0.005]}
"""The best rates of each rank by task: of rank 1 another one on each."""


def by_rate(trial: PlannedTrial) -> float | None:
    """Rank 2 diverges at 0.1."""
    rate, rank = trial.run.training.learning_rate, trial.run.parameters["rank"]
    if (rank, rate) == (2, 0.1):
        return None
    best = CHOICE[rank][TASKS.index(trial.run.task) % len(CHOICE[rank])]
    return 80.0 - 10 * abs(math.log10(rate / best)) + trial.run.seed % 10


def plan_of(folder: Path, text: str, more: str = "") -> Plan:
    folder.mkdir(exist_ok=True)
    return toy_plan(folder, f"tasks: {TASKS}\nstorage: {folder}\n{text}{more}", rank)


def run(
    plan: Plan,
    score: Callable[[PlannedTrial], float | None] = by_rate,
    notes: list[str] | None = None,
    loss: Callable[[PlannedTrial], float] = lambda trial: 0.5,
    facts: Callable[[PlannedTrial], dict[str, str]] = lambda trial: {},
) -> list[PlannedTrial]:
    """Runs what the plan still asks for; a score of None is a training that diverged, without cuts. Each trial takes 10 s."""
    folder = plan.sweep.folder
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yaml").write_text(plan.sweep.to_yaml())

    def end(job: Job) -> list[Outcome]:
        if score(job.training) is None:
            return [Outcome(TrialResult(job.key, "failed", seconds=10.0, error="training diverged"))]
        outcomes = []
        for trial in job.trials:
            value = score(trial)
            # The reported score says the opposite: nothing may be chosen by it.
            metrics = {"search_score": value, "search_loss": loss(trial), "score": 100 - value}
            outcomes.append(Outcome(TrialResult(trial.key, "finished", metrics, seconds=10.0, facts=dict(facts(trial)))))
        return outcomes

    return run_some(plan, folder, end, notes=notes)


def judged(plan: Plan) -> list[Summary]:
    state = read_state(SweepFolder(plan.sweep.folder).record)
    return mark_front(summarize_entries(state.requested), plan.sweep.objectives)


def chosen(plan: Plan) -> dict[int, list[float]]:
    """The rates of each rank's complete configuration, by task."""
    rates = {}
    for summary in judged(plan):
        if summary.complete:
            by_task = summary.tuning.values.get("learning_rate") or {"": summary.parameters["learning_rate"]}
            rates[summary.parameters["rank"]] = list(map(float, by_task.values()))
    return rates


def test_it_runs_the_trials_of_two_stages_written_by_hand(tmp_path: Path) -> None:
    fair, hand = plan_of(tmp_path / "fair", FAIR), plan_of(tmp_path / "hand", HAND)
    ran = run(fair)
    assert [trial.key for trial in ran] == [trial.key for trial in run(hand)]
    assert [(summary.scores, summary.on_front) for summary in judged(fair)] == [
        (summary.scores, summary.on_front) for summary in judged(hand)
    ]
    assert chosen(fair) == chosen(hand) == CHOICE
    assert len(ran) == len({trial.key for trial in ran}) == FIRST_STAGE + MEASURED


def test_what_tunes_is_in_no_reported_number(tmp_path: Path) -> None:
    """Its trials report 500 points more than the others, and nothing shows it."""

    def score(trial: PlannedTrial) -> float | None:
        value = by_rate(trial)
        return value if value is None or trial.trial.is_reported else value - 500.0

    plan = plan_of(tmp_path / "here", FAIR)
    ran = run(plan, score)
    assert {trial.run.seed for trial in ran if not trial.trial.is_reported} == {1000}
    assert [trial.run.search_only for trial in ran] == [not trial.trial.is_reported for trial in ran]
    summaries = judged(plan)
    assert {seed for summary in summaries for _, seed in summary.scores} == {0, 1, 2}
    assert [(summary.label, summary.seeds, summary.planned, summary.complete) for summary in summaries] == [
        ("LoRA r4, q v", 3, 6, True),
        ("LoRA r1, q v", 3, 6, True),
        ("LoRA r2, q v", 3, 6, True),
    ]
    write_csv(summaries, plan.sweep.objectives, tmp_path / "front.csv")
    rows = list(csv.DictReader((tmp_path / "front.csv").open()))
    assert all(float(row["score"]) < 100 and row["seeds"] == "3" for row in rows)
    found = {row.configuration: (row.score, row.metrics["search_score"]) for row in read_folder(plan.sweep.folder).summaries}
    assert found == {summary.configuration: (summary.score, summary.metrics["search_score"]) for summary in summaries}
    desired = DesiredRuns(plan.sweep.folder, "")
    changed = desired.update(read_state(SweepFolder(plan.sweep.folder).record), None)
    places = [place for place in changed if place[0] == CONFIGURATION_KIND]
    stored = {key: one for (_, key), one in zip(places, desired.runs(places), strict=True)}
    candidates = [one for one in stored.values() if one.tags.get(TUNES)]
    assert len(candidates) == 6
    assert not any("score" in one.metrics for one in candidates)
    assert all(stored[summary.configuration].metrics["score"] == pytest.approx(summary.score.mean) for summary in summaries)


def test_several_seeds_tune_where_the_file_says_so(tmp_path: Path) -> None:
    """Seed 1000 alone would choose a rate at which seed 1001 collapses."""

    def score(trial: PlannedTrial) -> float | None:
        value = by_rate(trial)
        luck = {(0.1, 1000): 30.0, (0.1, 1001): -60.0}.get((trial.run.training.learning_rate, trial.run.seed), 0.0)
        return None if value is None else value + luck

    one, two = plan_of(tmp_path / "one", FAIR), plan_of(tmp_path / "two", FAIR, "tuning_seeds: [1000, 1001]\n")
    run(one, score)
    assert two.most_jobs == len(run(two, score)) == FIRST_STAGE + 2 * 6 + MEASURED
    assert (chosen(one)[1], chosen(two)[1]) == ([0.1, 0.1], [0.01, 0.001])
    (found,) = [summary for summary in judged(two) if summary.complete and summary.parameters["rank"] == 1]
    assert (found.seeds, found.tuning.candidates, found.tuning.trials) == (3, 3, 3 * 2 * 2)


def test_what_was_cut_from_an_adapter_has_the_budget_of_its_tuning(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, FAIR)
    run(plan)
    entries = read_state(SweepFolder(plan.sweep.folder).record).requested
    source = next(entry.trial for entry in entries if entry.trial.parameters["rank"] == 1 and entry.trial.is_reported)
    cut = RunSpec(model="m", task=source.task, method="lora", cut_from={"run": source.key, "to": "parameters:9"})  # type: ignore[arg-type]
    entry = Entry(PlannedTrial(cut, "cut", "cut", why=Why("cut", source.key)).trial)
    summaries = {summary.configuration: summary for summary in summarize_entries([*entries, entry])}
    tunings = [summaries[name].tuning for name in ("cut", source.configuration)]
    assert tunings[0]
    assert tunings[1]
    assert len({(tuning.candidates, tuning.trials, tuning.seconds, tuning.seeds) for tuning in tunings if tuning}) == 1
    assert {*tunings[0].values["learning_rate"].values()} == {str(cut.training.learning_rate)}, "its own"
    assert summarize_entries([entry])[0].tuning == Tuning(), "its training is not at hand"


Scores = Callable[[str, float], float | None]


@pytest.mark.parametrize(
    ("score", "by_loss", "rates"),
    [
        (lambda task, rate: 70.0, False, [0.01, 0.01]),  # the middle of equal ones
        (lambda task, rate: 79.9 if rate == 0.1 else 80.0, True, [0.01, 0.01]),  # the loss decides between equal ones alone
        (lambda task, rate: {0.001: 70.0, 0.1: 69.0}.get(rate), False, [0.001, 0.001]),  # a failed one never
        (lambda task, rate: 50.0 if rate != 0.1 else None if task == TASKS[1] else 99.0, False, [0.1, 0.01]),  # but elsewhere
    ],
)
def test_which_candidate_is_chosen(tmp_path: Path, score: Scores, by_loss: bool, rates: list[float]) -> None:
    plan = plan_of(tmp_path, FAIR)
    run(
        plan,
        lambda trial: score(trial.run.task, rate) if (rate := trial.run.training.learning_rate) in RATES else 50.0,
        loss=lambda trial: 1 - trial.run.training.learning_rate if by_loss else 0.5,
    )
    assert chosen(plan) == {1: rates, 2: rates, 4: [0.005]}


@pytest.mark.parametrize(("differ", "rate"), [(40, 0.1), (4, 0.001)])
def test_a_lead_inside_the_noise_of_the_rows_that_choose_is_a_tie(tmp_path: Path, differ: int, rate: float) -> None:
    """0.001 leads by 2 of 100 rows: noise where 40 rows differ, and none where 4 do. Of tied ones the smaller loss decides."""
    plan, scores = plan_of(tmp_path, FAIR), {0.001: 82.0, 0.01: 50.0, 0.1: 80.0}

    def facts(trial: PlannedTrial) -> dict[str, str]:
        lead = trial.run.training.learning_rate == 0.001
        rows = np.zeros(100)  # the rows on which 0.001 is right and 0.1 is not, and the other way round
        rows[: differ // 2 + 1], rows[differ // 2 + 1 : differ] = lead, not lead
        return credits_of(lambda mask: 100 * float(rows[mask].mean()), len(rows), SEARCH_CREDITS)

    run(
        plan,
        lambda trial: scores.get(trial.run.training.learning_rate, 50.0),
        loss=lambda trial: 1 - trial.run.training.learning_rate,
        facts=facts,
    )
    assert chosen(plan) == {1: [rate] * 2, 2: [rate] * 2, 4: [0.005]}


CUT = FAIR.replace("{values: [1, 2]}}", "2, sizes: [100]}")


def test_each_size_is_tuned_by_its_own_score(tmp_path: Path) -> None:
    """The whole adapter is best at 0.1 on both tasks; what is cut from it at 0.001, but on one task at 0.1, too."""
    plan = plan_of(tmp_path, CUT)

    def score(trial: PlannedTrial) -> float:
        rate, cut = trial.run.training.learning_rate, trial.run.cut_from is not None
        best = 0.001 if cut and trial.run.task == "toy/sentiment" else 0.1
        return 90.0 - 10 * (rate != best) + trial.run.seed % 10

    ran = run(plan, score)
    (whole, cut) = [summary for summary in judged(plan) if summary.complete and summary.parameters["rank"] == 2]
    if "cut_to" in whole.parameters:
        whole, cut = cut, whole
    rates = [
        {task: float(rate) for task, rate in row.tuning.values["learning_rate"].items()} for row in (whole, cut) if row.tuning
    ]
    assert rates == [{"toy/paraphrase": 0.1, "toy/sentiment": 0.1}, {"toy/paraphrase": 0.1, "toy/sentiment": 0.001}]
    assert (whole.seeds, cut.seeds, whole.planned, cut.planned) == (3, 3, 6, 6)
    assert len({*whole.scores.values(), *cut.scores.values()}) == 3, "each at its best rate: 100 - 90 - seed"
    sources = [trial for trial in ran if trial.trial.serves]
    assert {(trial.run.task, trial.run.training.learning_rate, trial.run.seed) for trial in sources} == {
        ("toy/sentiment", 0.001, seed) for seed in (0, 1, 2)
    }
    assert cut.source == whole.configuration == sources[0].configuration
    record = read_folder(plan.sweep.folder)
    assert len(record.trials(whole.configuration)) == whole.planned, "without trainings to be cut"
    assert len({trial.key for trial in ran}) == len(ran)
    assert run(plan_of(tmp_path, CUT), score) == [], "a resumed sweep chooses the same"


def test_a_configuration_that_fails_with_every_rate_stands_without_a_score(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, FAIR)
    ran = run(plan, lambda trial: None if trial.run.parameters["rank"] == 2 else 70.0)
    assert set(chosen(plan)) == {1, 4}
    assert len(ran) == FIRST_STAGE + 2 * 3
    failed = [summary for summary in judged(plan) if summary.parameters["rank"] == 2]
    assert [one.failed for one in failed] == [2, 2, 2], "the candidates stand for it, with their reasons"
    assert not any(one.complete or one.on_front for one in failed)


def test_a_seed_or_a_value_added_later_runs_what_is_new_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, FAIR)
    assert len(run(plan)) == FIRST_STAGE + MEASURED
    more = plan_of(tmp_path, FAIR.replace("[0, 1, 2]", "[0, 1, 2, 3]"))
    assert {trial.run.seed for trial in run(more)} == {3}
    wider = plan_of(tmp_path, FAIR.replace("[0, 1, 2]", "[0, 1, 2, 3]").replace("[0.001", "[0.0001, 0.001"))
    better = run(wider, lambda trial: 99.0 if trial.run.training.learning_rate == 0.0001 else by_rate(trial))
    assert {trial.run.training.learning_rate for trial in better} == {0.0001}
    assert len(better) == 3 + 3 * 4  # of rank 1 on paraphrase the best is 0.01, so the search does not come to 0.0001
    assert chosen(wider) == {1: [0.01, 0.0001], 2: [0.0001] * 2, 4: [0.005]}
    assert [summary.configuration for summary in judged(wider)] == [summary.configuration for summary in judged(more)]


def test_a_trial_that_starts_from_another_task_s_adapter_starts_from_the_tuned_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, FAIR, "warm_start: {toy/sentiment: toy/paraphrase}\n")
    ran = run(plan)
    measured = {trial.key: trial.run for trial in ran if trial.trial.is_reported and trial.run.parameters["rank"] == 1}
    assert {(run.task, run.training.learning_rate) for run in measured.values()} == {
        ("toy/paraphrase", 0.01),
        ("toy/sentiment", 0.001),
    }
    for one in measured.values():
        if one.warm_start is not None:
            source = measured[one.warm_start.run]
            assert (source.task, source.seed) == ("toy/paraphrase", one.seed)
    assert len(ran) == FIRST_STAGE + MEASURED


def test_a_searcher_that_learns_is_told_what_the_candidates_found(tmp_path: Path) -> None:
    text = (
        "\nseeds: [9]\nreplication: {seeds: [0, 1], tuned: [learning_rate]}\n"
        "search: {algorithm: tpe, configurations: 6}\nspace: [{method: lora, rank: {values: [1, 2]}, "
        "learning_rate: {values: [0.001, 0.01]}}]\n"
    )
    plan = plan_of(tmp_path, text)
    ran = run(plan)
    assert {(trial.run.seed, trial.trial.is_reported) for trial in ran} == {(9, False), (0, True), (1, True)}
    assert chosen(plan) == {1: [0.01, 0.001], 2: [0.001, 0.001]}
    assert run(plan_of(tmp_path, text)) == []


LORA = "{method: lora, rank: {values: [1, 2]}}"


@pytest.mark.parametrize(
    ("given", "overrides", "tune", "report"),
    [
        ("compare: fair\nseeds: [0, 1000]\n", [], (1001,), (0, 1000)),
        ("", ["compare=fair", "seeds=[0, 1]", "tuned={learning_rate: {values: [1e-3, 1e-2]}}"], (1000,), (0, 1)),
    ],
)
def test_the_seeds_that_tune_are_not_those_that_are_reported(
    tmp_path: Path, given: str, overrides: list[str], tune: tuple[int, ...], report: tuple[int, ...]
) -> None:
    sweep = toy_sweep(tmp_path, f"{given}space: [{LORA}]\n", *overrides)
    assert (sweep.seeds, sweep.replication.seeds, sweep.tuning_seeds) == (tune, report, None)
    assert sweep.replication.tuned == ("learning_rate",)


@pytest.mark.parametrize(
    ("tuned", "block", "expected"),
    [
        ("[learning_rate]", "{method: head}", False),
        ("[learning_rate]", "{method: head, learning_rate: {values: [1e-3, 1e-2, 1e-1, 1, 10]}}", True),
        ("{learning_rate: {}, head_learning_rate: {values: [1e-3]}}", "{method: head, head_learning_rate: 1e-2}", True),
    ],
)
def test_the_head_alone_has_no_rate_to_tune_but_its_own(tmp_path: Path, tuned: str, block: str, expected: bool) -> None:
    content = {"compare": "fair", "tuned": yaml.safe_load(tuned), "space": [yaml.safe_load(block)]}
    (written,) = write_out(content)[0]["space"]
    assert written.get("tuned", True) == expected
    assert expected or not toy_sweep(tmp_path, f"compare: fair\nspace: [{LORA}, {block}]\n").blocks[1].tuned
