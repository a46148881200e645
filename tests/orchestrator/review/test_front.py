"""From trial results to the front people read: nothing averaged over fewer tasks, the same rows in every form."""

from __future__ import annotations

import csv
import html
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from craft.settings import TrainingSettings
from craft.spec import RunSpec
from orchestrator.plan.trial import PlannedTrial, TrialResult, Why
from orchestrator.record.state import Entry
from orchestrator.results.front import knee, mark_front, not_shown_to_beat_head
from orchestrator.results.metrics import flat_cells
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.review.front_tables import caption, latex, markdown, terminal_table, write_csv, write_front
from tests.golden import check_golden
from tests.orchestrator.recorded import printed, summarize

OBJECTIVES = {"score": "maximize", "trainable_parameters": "minimize"}
TASKS = ("glue/cola", "glue/rte")


def trial(rank: int, task: str, seed: int, method: str = "craft") -> PlannedTrial:
    parameters = {"craft": {"ranks": ["all", rank, rank]}, "head": {}, "full": {}}.get(method, {"rank": rank})
    run = RunSpec(
        model="m", task=task, method=method, parameters=parameters, seed=seed, training=TrainingSettings(learning_rate=3e-4)
    )
    return PlannedTrial(run, f"{method}{rank}", f"{method} r{rank} qv lr 3e-4")


def result(
    spec: PlannedTrial, score: float, parameters: float, status: str = "finished", error: str | None = None
) -> TrialResult:
    metrics = {"score": score, ("matthews" if spec.run.task == "glue/cola" else "accuracy"): score}
    counts = {
        "trainable_parameters": parameters,
        "peak_memory_bytes": 1e6 * (spec.run.seed + 1),
        "step_seconds": 0.1 * (spec.run.seed + 1),
    }
    return TrialResult(spec.key, status, metrics, counts, 30, 10.0, error)  # type: ignore[arg-type]


def sweep(
    scores: dict[tuple[str, int], tuple[float, float]], seeds: int = 3
) -> tuple[list[PlannedTrial], dict[str, TrialResult]]:
    """A sweep of (method, rank) -> (mean score, parameters); seeds spread it by a point (LoRA's backwards), tasks by 20."""
    trials, results = [], {}
    for (method, rank), (score, parameters) in scores.items():
        for task in TASKS:
            for seed in range(seeds):
                spec = trial(rank, task, seed, method)
                trials.append(spec)
                offset = (10 if task == TASKS[1] else -10) + (seed - (seeds - 1) / 2) * (-1 if method == "lora" else 1)
                results[spec.key] = result(spec, score + offset, parameters)
    return trials, results


FOUR = {
    ("craft", 8): (60.0, 300.0),
    ("craft", 64): (75.0, 16000.0),
    ("lora", 8): (74.0, 70000.0),
    ("lora", 16): (77.0, 150000.0),
}


@pytest.fixture
def four() -> list[Summary]:
    return mark_front(summarize(*sweep(FOUR)), OBJECTIVES)


def test_the_head_alone_is_the_control_and_bends_no_axis(four: list[Summary], tmp_path: Path) -> None:
    points = {("head", 0): (74.2, 0.0)} | FOUR
    del points["lora", 16]
    for scores in (points, points | {("lora", 16): (87.0, 150000.0)}):
        summaries = mark_front(summarize(*sweep(scores)), OBJECTIVES)
        idle = "not shown to beat no adapter: craft r8 qv lr 3e-4, lora r8 qv lr 3e-4"
        assert idle in caption(summaries, OBJECTIVES)
    assert "head alone" not in caption(four, OBJECTIVES)
    assert next(summary for summary in summaries if summary.method == "head").on_front
    chosen = knee(summaries, OBJECTIVES)
    assert chosen.method != "head", "what costs nothing is no knee on a logarithmic axis"
    assert any(path.suffix == ".png" for path in write_front(summaries, OBJECTIVES, tmp_path, "control"))


@pytest.mark.parametrize(("score", "named"), [(73.0, True), (75.0, False)])
def test_without_an_interval_the_means_are_compared_with_the_head(score: float, named: bool) -> None:
    found = summarize(*sweep({("head", 0): (74.0, 0.0), ("lora", 8): (score, 70000.0)}, seeds=1))
    found = [replace(one, scores={key: value for key, value in one.scores.items() if key[0] == TASKS[0]}) for one in found]
    assert [one.method for one in not_shown_to_beat_head(found)] == (["lora"] if named else [])


def test_the_normalized_mean_is_between_the_head_alone_and_full(tmp_path: Path) -> None:
    trials, results = sweep({("head", 0): (40.0, 0.0), ("lora", 8): (70.0, 70000.0), ("full", 0): (80.0, 1e7)})
    for spec in trials:  # on RTE full is twice as far from the head, and LoRA is as good
        if spec.run.task == TASKS[1] and spec.run.method != "head":
            results[spec.key].metrics["score"] += 40 if spec.run.method == "full" else 50
    found = {summary.method: summary for summary in mark_front(summarize(trials, results), OBJECTIVES)}
    assert {name: round(one.value("normalized"), 6) for name, one in found.items()} == {"head": 0, "lora": 87.5, "full": 100}
    # Seeds lie a point apart: 2.5 of the scale of CoLA's 40 points, and 1.25 of RTE's 80.
    lora = found["lora"].bounds("normalized")
    assert lora.half == pytest.approx(4.302653 * 1.875 / math.sqrt(3), rel=1e-5)
    summaries = list(found.values())
    assert all("87.5 ± 4.7" in text for text in (rendered(summaries), markdown(summaries, OBJECTIVES)))
    assert "normalized: 0 is no adapter" in caption(summaries, OBJECTIVES)
    write_csv(summaries, OBJECTIVES, tmp_path / "front.csv")
    assert [float(row["normalized"]) for row in csv.DictReader((tmp_path / "front.csv").open())] == pytest.approx(
        [0, 87.5, 100]
    )


@pytest.mark.parametrize("left", [("head", "lora"), ("lora", "full")])
def test_without_both_ends_there_is_no_normalized_mean(left: tuple[str, ...]) -> None:
    every = {("head", 0): (40.0, 0.0), ("lora", 8): (70.0, 70000.0), ("full", 0): (80.0, 1e7)}
    summaries = mark_front(summarize(*sweep({key: one for key, one in every.items() if key[0] in left})), OBJECTIVES)
    assert "normalized" not in markdown(summaries, OBJECTIVES)
    # nor where full fine-tuning is not shown to be above the head alone, or is below it on a task
    trials, results = sweep(every)
    for change, task in ((-40, None), (-45, TASKS[0])):
        worse = dict(results)
        for spec in trials:
            if spec.run.method == "full" and task in (None, spec.run.task):
                old = results[spec.key]
                worse[spec.key] = replace(old, metrics=old.metrics | {"score": old.metrics["score"] + change})
        assert not any("normalized" in summary.metrics for summary in mark_front(summarize(trials, worse), OBJECTIVES))


def mixed() -> list[Summary]:
    """A sweep with everything that a table shows: a control, full fine-tuning, tuning, a failure, a stop, what waits."""
    points = {("head", 0): (40.0, 0.0)} | FOUR | {("full", 0): (80.0, 1e7), ("dora", 4): (50.0, 5000.0)}
    trials, results = sweep(points)
    broken, stopped = (next(trial for trial in trials if trial.configuration == name) for name in ("craft64", "dora4"))
    results[broken.key] = TrialResult(broken.key, "failed", {}, {}, 3, 1.0, "the loss became NaN at step 3")
    results[stopped.key] = replace(results[stopped.key], status="stopped")
    for spec in trials:
        results[spec.key].facts["reported_examples"], results[spec.key].facts["random_guessing"] = 277.0, 50.0
    entries = [Entry(spec.trial, results[spec.key]) for spec in trials]
    for entry in [entry for entry in entries if entry.trial.configuration == "lora16"]:
        for rate in (1e-4, 3e-4, 1e-3):
            parameters = {**entry.trial.parameters, "learning_rate": rate, "seed": 9}
            result_ = replace(entry.result, metrics={"search_score": 50 + rate}, key=f"{entry.key}{rate}")
            names = {"key": result_.key, "configuration": f"candidate{rate}", "seed": 9}
            trial = replace(entry.trial, **names, parameters=parameters, why=Why("candidate", "lora16"))
            entries.append(Entry(trial, result_))
    return mark_front(summarize_entries(entries), OBJECTIVES)


def test_every_form_of_the_front_is_as_the_golden_files_have_it(tmp_path: Path) -> None:
    summaries = mixed()
    write_csv(summaries, OBJECTIVES, tmp_path / "front.csv")
    check_golden("front/terminal.txt", rendered(summaries, 220) + caption(summaries, OBJECTIVES))
    check_golden(
        "front/front.csv",
        re.sub(r"\d+\.\d{7,}", lambda digits: f"{float(digits[0]):.6g}", (tmp_path / "front.csv").read_text()),
    )
    check_golden("front/front.md", markdown(summaries, OBJECTIVES))
    check_golden("front/front.tex", latex(summaries, OBJECTIVES))


def rendered(summaries: list[Summary], width: int = 160) -> str:
    return printed(lambda console: console.print(terminal_table(summaries, OBJECTIVES, "front")), width)


def test_a_summary_is_the_mean_over_tasks_and_seeds(four: list[Summary]) -> None:
    craft8 = four[0]
    assert (craft8.score.mean, craft8.score.n, craft8.complete) == (60.0, 3, True)
    assert craft8.tasks["glue/cola"].mean == 50.0
    assert craft8.tasks["glue/rte"].mean == 70.0
    # Suite averages of the seeds are 59, 60, 61, and those of LoRA fall: seeds do nothing to all alike. Finding that takes a
    # quarter of the 2 degrees of freedom. The four variances are equal, so each counts as 4 times 1.5: t(0.975, 6) = 2.44691.
    assert craft8.score.half == pytest.approx(2.44691 * math.sqrt(2 / 1.5 / 3), rel=1e-5)
    assert craft8.counts["peak_memory_bytes"] == 3e6, "the largest"
    assert craft8.counts["step_seconds"] == pytest.approx(0.2), "the mean"
    assert "accuracy" not in craft8.metrics, "only one of the tasks has it"
    assert craft8.parameters["ranks"] == "all,8,8"
    assert "task" not in craft8.parameters
    assert flat_cells(craft8)["score/glue/rte"] == 70.0


def test_a_tie_in_all_but_the_last_bit_is_a_tie() -> None:
    trials, results = [], {}
    # (a + b) / 2 of these differs by one unit in the last place from seed order to seed order.
    for rank, scores, parameters in ((8, (158.0 / 3, 152.0 / 3), 300.0), (16, (52.0, 154.0 / 3), 600.0)):
        for seed, score in enumerate(scores):
            trials.append(trial(rank, TASKS[0], seed))
            results[trials[-1].key] = result(trials[-1], score, parameters)
    small, large = mark_front(summarize(trials, results), OBJECTIVES)
    assert small.score.mean == pytest.approx(large.score.mean, abs=1e-9)
    assert (small.on_front, large.on_front) == (True, False)


def test_certain_differences_rule_a_configuration_out(four: list[Summary]) -> None:
    trials, results = sweep({("craft", 8): (80.0, 300.0), ("lora", 8): (60.0, 300.0), ("lora", 16): (79.0, 400.0)})
    craft8, far, close = mark_front(summarize(trials, results), OBJECTIVES)
    assert (craft8.may_be_on_front, far.may_be_on_front, close.may_be_on_front) == (True, False, True)
    assert (craft8.on_front, far.on_front, close.on_front) == (True, False, False)


def test_a_task_that_never_finished_leaves_no_suite_score() -> None:
    trials, results = sweep({("craft", 8): (60.0, 300.0)})
    only_cola = {key: value for key, value in results.items() if "matthews" in value.metrics}
    (half,) = summarize(trials, only_cola)
    assert math.isnan(half.score.mean)
    assert half.tasks["glue/cola"].mean == 50.0
    assert (half.finished, half.planned, half.seeds) == (3, 6, 0)
    (none,) = mark_front(summarize(trials, {}, {"craft8": {"trainable_parameters": 300.0}}), OBJECTIVES)
    assert (none.finished, none.on_front, none.value("trainable_parameters")) == (0, False, 300.0)


def test_hostile_names_stay_text(four: list[Summary], tmp_path: Path) -> None:
    name = '=cmd|"/C calc"!A0 <script>alert(1)</script> ![p](http://e/p.png) [l](http://e) **b** ~~s~~ '
    name += "[red]x[/red] \\input{/etc/passwd} $x_1$ | % & ~ 日本"
    hostile = [replace(four[0], label=name, method=name), *four[1:]]
    assert "[red]x[/red]" in rendered(hostile, 400)
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown(hostile, OBJECTIVES))
    assert name in html.unescape(re.sub(r"</?(table|thead|tbody|tr|th|td|p)>", "", page)), "nothing of it became markup"
    assert "\\input" not in latex(hostile, OBJECTIVES).replace("\\textbackslash{}input", "")
    paths = write_front(hostile, OBJECTIVES, tmp_path, name)
    assert "\n'=cmd" in paths[0].read_text().replace(",", "\n").replace('"', "")


def test_an_empty_sweep_has_tables_and_a_picture_too(tmp_path: Path) -> None:
    trials, _ = sweep({("craft", 8): (60.0, 300.0)})
    for summaries in ([], mark_front(summarize(trials, {}), OBJECTIVES)):
        assert all(
            path.stat().st_size for path in write_front(summaries, OBJECTIVES, tmp_path, "nothing") if path.suffix != ".csv"
        )
        assert "0 of" in markdown(summaries, OBJECTIVES)
        assert knee(summaries, OBJECTIVES) is None


@pytest.mark.parametrize(
    ("metrics", "heading"),
    [
        (("accuracy", "accuracy"), "accuracy, %"),
        (("likelihood",) * 2, "likelihood, %"),
        (("matthews", "accuracy"), "score"),
        ((), "score"),
    ],
)
def test_the_score_is_headed_by_its_metric(metrics: tuple[str, ...], heading: str, tmp_path: Path) -> None:
    trials, results = sweep({("craft", 8): (60.0, 300.0), ("lora", 8): (70.0, 7000.0)})
    for spec in trials:
        if metrics:
            results[spec.key].facts["metric"] = metrics[TASKS.index(spec.run.task)]
    summaries = mark_front(summarize(trials, results), OBJECTIVES)
    assert heading in rendered(summaries)
    assert f"| {heading} |" in markdown(summaries, OBJECTIVES)
    write_csv(summaries, OBJECTIVES, tmp_path / "front.csv")
    named = {row.get("metric", "") for row in csv.DictReader((tmp_path / "front.csv").open())}
    assert named == ({metrics[0]} if heading != "score" else {""})
