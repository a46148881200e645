"""From trial results to the front people read: nothing averaged over fewer tasks, the same rows in every form, and its picture,
whose numbers can be read."""

from __future__ import annotations

import csv
import html
import math
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from craft.settings import TrainingSettings
from craft.spec import RunSpec
from orchestrator.plan.trial import PlannedTrial, TrialResult, Why
from orchestrator.record.state import Entry
from orchestrator.results.front import knee, mark_front, not_shown_to_beat_head, pareto_front
from orchestrator.results.intervals import Interval
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.results.tuning import Tuning
from orchestrator.review.front_picture import LABELS, draw
from orchestrator.review.front_tables import (
    caption,
    describe_intervals,
    latex,
    markdown,
    terminal_table,
    write_csv,
    write_front,
)
from tests.golden import check_golden
from tests.orchestrator.recorded import printed

OBJECTIVES = {"score": "maximize", "trainable_parameters": "minimize"}
TASKS = ("glue/cola", "glue/rte")


def ended(rank: int, task: str, seed: int, score: float, size: float, method: str = "craft") -> Entry:
    parameters = {"craft": {"ranks": ["all", rank, rank]}, "head": {}, "full": {}}.get(method, {"rank": rank})
    training = TrainingSettings(learning_rate=3e-4)
    run = RunSpec(model="m", task=task, method=method, parameters=parameters, seed=seed, training=training)
    metrics = {"score": score, ("matthews" if task == "glue/cola" else "accuracy"): score}
    counts = {"trainable_parameters": size, "peak_memory_bytes": 1e6 * (seed + 1), "step_seconds": 0.1 * (seed + 1)}
    trial = PlannedTrial(run, f"{method}{rank}", f"{method} r{rank} qv lr 3e-4").trial
    return Entry(trial, TrialResult(trial.key, "finished", metrics, counts, 30, 10.0))


def sweep(scores: dict[tuple[str, int], tuple[float, float]], seeds: int = 3) -> list[Entry]:
    """A sweep of (method, rank) -> (mean score, parameters); seeds spread it by a point (LoRA's backwards), tasks by 20."""
    entries = []
    for (method, rank), (score, size) in scores.items():
        for task, seed in product(TASKS, range(seeds)):
            offset = (10 if task == TASKS[1] else -10) + (seed - (seeds - 1) / 2) * (-1 if method == "lora" else 1)
            entries.append(ended(rank, task, seed, score + offset, size, method))
    return entries


def waiting(scores: dict[tuple[str, int], tuple[float, float]]) -> list[Entry]:
    return [replace(entry, result=None) for entry in sweep(scores)]


def judged(entries: Iterable[Entry]) -> list[Summary]:
    return mark_front(summarize_entries(entries), OBJECTIVES)


FOUR = {
    ("craft", 8): (60.0, 300.0),
    ("craft", 64): (75.0, 16000.0),
    ("lora", 8): (74.0, 70000.0),
    ("lora", 16): (77.0, 150000.0),
}


@pytest.fixture
def four() -> list[Summary]:
    return judged(sweep(FOUR))


def test_the_head_alone_is_the_control_and_bends_no_axis(four: list[Summary], tmp_path: Path) -> None:
    points = {("head", 0): (74.2, 0.0)} | FOUR
    del points["lora", 16]
    for scores in (points, points | {("lora", 16): (87.0, 150000.0)}):
        summaries = judged(sweep(scores))
        idle = "not shown to be better than the head alone: craft r8 qv lr 3e-4, lora r8 qv lr 3e-4"
        assert idle in caption(summaries, OBJECTIVES)
    assert "head alone" not in caption(four, OBJECTIVES)
    assert next(summary for summary in summaries if summary.method == "head").on_front
    chosen = knee(summaries, OBJECTIVES)
    assert chosen.method != "head", "what costs nothing is no knee on a logarithmic axis"
    assert any(path.suffix == ".png" for path in write_front(summaries, OBJECTIVES, tmp_path, "control"))


def test_the_caption_says_that_an_interval_has_the_luck_of_tuning(four: list[Summary]) -> None:
    tuned = [replace(row, tuning=Tuning(3, lucks=dict.fromkeys(TASKS, 1.0))) for row in four]
    said = [describe_intervals(rows) for rows in (four, tuned)]
    assert said[1] == f"{said[0]}, tuning included"


def test_nothing_is_said_of_intervals_before_a_configuration_is_complete() -> None:
    one = {("lora", 8): (74.0, 70000.0)}
    begun = judged([*waiting(one)[:-1], sweep(one)[-1]])
    assert caption(begun, OBJECTIVES) == "● 0 of 1 configuration on the front; 1 incomplete, not ranked"
    assert "seed" not in latex(begun, OBJECTIVES)


@pytest.mark.parametrize(("score", "named"), [(73.0, True), (75.0, False)])
def test_without_an_interval_the_means_are_compared_with_the_head(score: float, named: bool) -> None:
    found = summarize_entries(sweep({("head", 0): (74.0, 0.0), ("lora", 8): (score, 70000.0)}, seeds=1))
    found = [replace(one, scores={key: value for key, value in one.scores.items() if key[0] == TASKS[0]}) for one in found]
    assert [one.method for one in not_shown_to_beat_head(found)] == (["lora"] if named else [])


def test_the_normalized_mean_is_between_the_head_alone_and_full() -> None:
    entries = sweep({("head", 0): (40.0, 0.0), ("lora", 8): (70.0, 70000.0), ("full", 0): (80.0, 1e7)})
    for entry in entries:  # on RTE full is twice as far from the head, and LoRA is as good
        if entry.trial.task == TASKS[1] and entry.trial.method != "head":
            entry.result.metrics["score"] += 40 if entry.trial.method == "full" else 50
    found = {summary.method: summary for summary in judged(entries)}
    assert {name: round(one.value("normalized"), 6) for name, one in found.items()} == {"head": 0, "lora": 87.5, "full": 100}
    # Seeds lie a point apart: 2.5 of the scale of CoLA's 40 points, and 1.25 of RTE's 80.
    lora = found["lora"].bounds("normalized")
    assert lora.half == pytest.approx(4.302653 * 1.875 / math.sqrt(3), rel=1e-5)


@pytest.mark.parametrize("left", [("head", "lora"), ("lora", "full")])
def test_without_both_ends_there_is_no_normalized_mean(left: tuple[str, ...]) -> None:
    every = {("head", 0): (40.0, 0.0), ("lora", 8): (70.0, 70000.0), ("full", 0): (80.0, 1e7)}
    summaries = judged(sweep({key: one for key, one in every.items() if key[0] in left}))
    assert "normalized" not in markdown(summaries, OBJECTIVES)
    # nor where full fine-tuning is not shown to be above the head alone, or is below it on a task
    for change, task in ((-40, None), (-45, TASKS[0]), (-39.5, TASKS[0])):  # on that task not shown, though by all together
        entries = sweep(every)
        for entry in entries:
            if entry.trial.method == "full" and task in (None, entry.trial.task):
                entry.result.metrics["score"] += change + 3 * (entry.trial.seed % 2)
        assert not any("normalized" in summary.metrics for summary in judged(entries))


def mixed() -> list[Summary]:
    """A sweep with everything that a table shows: a control, full fine-tuning, tuning, a failure, a stop, what waits."""
    points = {("head", 0): (40.0, 0.0)} | FOUR | {("full", 0): (80.0, 1e7), ("dora", 4): (50.0, 5000.0)}
    entries = sweep(points)
    names = [entry.trial.configuration for entry in entries]
    broken, stopped = names.index("craft64"), names.index("dora4")
    failed = TrialResult(entries[broken].key, "failed", {}, {}, 3, 1.0, "the loss became NaN at step 3")
    entries[broken] = replace(entries[broken], result=failed)
    entries[stopped] = replace(entries[stopped], result=replace(entries[stopped].result, status="stopped"))
    for entry in entries:
        entry.result.facts.update(reported_examples=277.0, random_guessing=50.0)
    for entry in [entry for entry in entries if entry.trial.configuration == "lora16"]:
        for rate in (1e-4, 3e-4, 1e-3):
            parameters = {**entry.trial.parameters, "learning_rate": rate, "seed": 9}
            result = replace(entry.result, metrics={"search_score": 50 + rate}, key=f"{entry.key}{rate}")
            named = {"key": result.key, "configuration": f"candidate{rate}", "seed": 9}
            candidate = replace(entry.trial, **named, parameters=parameters, why=Why("candidate", "lora16"))
            entries.append(Entry(candidate, result))
    return judged(entries)


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


def test_a_tie_in_all_but_the_last_bit_is_a_tie() -> None:
    entries = []
    # (a + b) / 2 of these differs by one unit in the last place from seed order to seed order.
    for rank, scores, size in ((8, (158.0 / 3, 152.0 / 3), 300.0), (16, (52.0, 154.0 / 3), 600.0)):
        entries += [ended(rank, TASKS[0], seed, score, size) for seed, score in enumerate(scores)]
    small, large = judged(entries)
    assert small.score.mean == pytest.approx(large.score.mean, abs=1e-9)
    assert (small.on_front, large.on_front) == (True, False)


def test_a_task_that_never_finished_leaves_no_suite_score() -> None:
    one = {("craft", 8): (60.0, 300.0)}
    entries = [done if done.trial.task == "glue/cola" else left for done, left in zip(sweep(one), waiting(one), strict=True)]
    (half,) = summarize_entries(entries)
    assert math.isnan(half.score.mean)
    assert half.tasks["glue/cola"].mean == 50.0
    assert (half.finished, half.planned, half.seeds) == (3, 6, 0)
    planned = {"trainable_parameters": 300.0}
    (none,) = judged(replace(entry, trial=replace(entry.trial, planned=planned)) for entry in waiting(one))
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
    for summaries in ([], judged(waiting({("craft", 8): (60.0, 300.0)}))):
        assert all(
            path.stat().st_size for path in write_front(summaries, OBJECTIVES, tmp_path, "nothing") if path.suffix != ".csv"
        )
        assert "0 of" in markdown(summaries, OBJECTIVES)
        assert knee(summaries, OBJECTIVES) is None


@pytest.mark.parametrize("metrics", [("accuracy", "accuracy"), ("likelihood", "likelihood"), ("matthews", "accuracy")])
def test_the_score_is_headed_by_its_metric(metrics: tuple[str, str], tmp_path: Path) -> None:
    entries = sweep(FOUR)
    for entry in entries:
        entry.result.facts["metric"] = metrics[TASKS.index(entry.trial.task)]
    summaries, same = judged(entries), len({*metrics}) == 1
    heading = f"{metrics[0]}, %" if same else "score"
    assert heading in rendered(summaries)
    assert f"| {heading} |" in markdown(summaries, OBJECTIVES)
    write_csv(summaries, OBJECTIVES, tmp_path / "front.csv")
    named = {row.get("metric", "") for row in csv.DictReader((tmp_path / "front.csv").open())}
    assert named == {metrics[0] if same else ""}


DEFAULT = ["head 0 53.2", *(f"craft {one}" for one in ("1932 81.5", "1940 81.6", "1948 74.8", "4016 89.2", "4016 81.4",
    "4016 88.0", "4108 89.3", "8136 91.9", "8136 90.9", "8132 83.4", "8228 96.9", "16456 92.1", "16456 91.3", "16388 98.2",
    "32912 98.7")), "lora 9216 92.3", "lora 18432 99.2", "lora 36864 99.2", "lora 73728 99.2"]  # fmt: skip
"""A recorded sweep: method, parameters and mean score. Members of its front lie on each other."""


def crowd(seed: int, count: int, a_decade: float) -> list[str]:
    draws = random.Random(seed)
    sizes = [int(10 ** draws.uniform(2, 6)) for _ in range(count)]
    means = [min(100, 40 + a_decade * math.log10(size) + draws.gauss(0, 5)) for size in sizes]
    return [f"{draws.choice(('craft', 'lora'))} {one} {mean}" for one, mean in zip(sizes, means, strict=True)]


def drawn(points: list[str], half: float | None = None, possible: str = "") -> tuple[Any, set[str]]:
    """The picture of such points with the ids of its front; those of the method `possible` may be on it."""
    (any_one,), found = summarize_entries(sweep({("craft", 8): (60.0, 300.0)})), []
    for place, (method, size, mean) in enumerate(map(str.split, points)):
        ends = [float(mean) + way * (half or 0) for way in (-1, 1)]
        metrics = {"score": Interval(float(mean), *ends, 3 if half else 1)}
        named = {"configuration": str(place), "method": method, "label": method, "metric": "accuracy"}
        found.append(replace(any_one, metrics=metrics, counts={"trainable_parameters": float(size)}, **named))
    values = [[one.value(name) for name in OBJECTIVES] for one in found]
    members = pareto_front(values, list(OBJECTIVES.values()))
    front = {one.configuration for one, member in zip(found, members, strict=True) if member}
    marked = [replace(one, on_front=one.configuration in front, may_be_on_front=one.method == possible) for one in found]
    return draw(marked, OBJECTIVES, "front"), front


def test_axes_reach_beyond_the_points_and_marks_are_explained() -> None:
    figure, _ = drawn(DEFAULT, possible="craft")
    (axes,) = figure.axes
    figure.canvas.draw()
    assert axes.get_xlim()[1] > 1.1 * 73_728, "the last mark is within the frame"
    assert [tick.get_text() for tick in axes.get_xticklabels() if tick.get_text()] == ["0", "2k", "5k", "10k", "20k", "50k"]
    assert axes.get_ylabel() == "accuracy, %"
    assert "may be on the front" in [entry.get_text() for entry in axes.get_legend().get_texts()]
    (plain,) = drawn(DEFAULT)[0].axes
    assert "may be on the front" not in [entry.get_text() for entry in plain.get_legend().get_texts()]


@pytest.mark.parametrize("half", [pytest.param(None, marks=pytest.mark.slow), 0.4, pytest.param(6.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "points",
    [DEFAULT, crowd(0, 30, 9), crowd(1, 200, 8), crowd(2, 60, 12), [f"lora {1000 + one} {50 + 3 * one}" for one in range(15)]],
    ids=["ranks", "few", "many", "at the top", "a wall"],
)
def test_numbers_of_the_picture_name_every_member_and_do_not_meet(points: list[str], half: float | None) -> None:
    figure, front = drawn(points, half)
    (axes,), renderer = figure.axes, figure.canvas.get_renderer()
    numbers = [text.get_window_extent(renderer) for text in axes.texts]
    assert not [one for place, one in enumerate(numbers) for other in numbers[:place] if other.overlaps(one)]
    ends = [[*map(int, text.get_text().split("–"))] for text in axes.texts]
    assert [place for one in ends for place in range(one[0], one[-1] + 1)] == [*range(1, min(LABELS, len(front)) + 1)]
