"""Is one sweep better than another? Two configurations over the tasks and seeds that both finished.

    find_sweep, twice  -->  compare_sweeps  -->  CompareReport  -->  show_comparison, or JSON

Trials of one task and seed saw the same examples in both sweeps, so their scores are paired, and the interval is that of the
difference. All configurations of both sweeps show how seeds spread. The best configuration of each sweep is taken unless the
call names another, by the search score: the reported scores, which are compared, decide nothing. Sweeps whose numbers mean
different things (another model, protocol or other data) are not compared.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import Field, InstanceOf
from rich.console import Console

from craft.results import EXAMPLES, METRIC, POSITIVE, SEARCHED
from craft.scoring.predictions import Prediction
from craft.tasks import TASKS
from craft.tasks.metrics import METRICS
from craft.words import list_some, plural
from orchestrator.plan.trial import TrialResult
from orchestrator.results.intervals import Comparison, compare
from orchestrator.results.luck import difference, luck_of_both
from orchestrator.results.metrics import SIZE, full_label, sized
from orchestrator.results.probabilities import spread_between, spreads
from orchestrator.results.report import Count, Estimate, Number, Part, Report
from orchestrator.results.summary import Entry, Summary, score_step
from orchestrator.results.tuning import Tuning
from orchestrator.review.front_tables import metric_column
from orchestrator.review.past_sweep import PastSweep
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.tools.filling import write_table

Spreads = Mapping[str, tuple[float, float]]
"""`orchestrator.results.probabilities.spreads` of a sweep."""
ROWS_SHOWN = 5
DATA_FACTS = ("data_fingerprint", "train_examples", "search_examples", "reported_examples")


class SidePart(Part):
    """One of the two configurations."""

    sweep: str = Field(description="The name of its sweep.")
    configuration: str = Field(description="Its id.")
    label: str = Field(description="Its name for people.")
    reason: str = Field(description="Why it is this configuration of the sweep.")
    complete: bool = Field(description="Whether all of its trials have finished.")
    trainable_parameters: Count = Field(description="Trainable parameters of the adapter, without the task head.")
    score: Estimate = Field(description="Its reported score, in points, over all of its own tasks and seeds.")
    record: InstanceOf[PastSweep] = Field(exclude=True, description="Its sweep.")
    summary: InstanceOf[Summary] = Field(exclude=True, description="The configuration; `scores` are what is compared.")

    @property
    def name(self) -> str:
        return f"{self.label} ({self.sweep})"

    @property
    def entries(self) -> list[Entry]:
        return self.record.trials(self.configuration)


class CompareReport(Report):
    """The difference of two configurations over the tasks and seeds that both have finished."""

    report: Literal["compare"] = Field("compare", description="The kind of this report.")
    first: SidePart = Field(description="The first configuration.")
    second: SidePart = Field(description="The second configuration.")
    metric: str = Field(description="What is compared: `score`, in points, or the name of a metric.")
    difference: Estimate = Field(description="First minus second, in the metric's unit, paired by seed.")
    higher: Literal["first", "second"] | None = Field(
        description="The side whose metric is shown to be higher: the interval is on one side of 0. Null where no difference "
        "is shown, which does not mean that there is none, and with one seed: `difference` has its sign."
    )
    over: str = Field(description="What the interval is over, in words. Empty without an interval.")
    tasks: dict[str, Estimate] = Field(description="The difference on each shared task, with the interval that it has there.")
    p_value: Number = Field(description="Two-sided p-value of a paired t test over the seeds. Null with one seed.")
    sentence: str = Field(description="The verdict, in words.")
    advice: str = Field(description="What would narrow the interval most. Empty if that is not known.")
    warnings: list[str] = Field(description="What weakens the verdict, in sentences.")


def compare_sweeps(
    first: PastSweep,
    second: PastSweep,
    configuration_a: str = "best",
    configuration_b: str = "best",
    metric: str = "score",
    flags: tuple[str, str] = ("--configuration-a", "--configuration-b"),
) -> CompareReport:
    """Compares a configuration of each sweep, by its id, its label or a rule of `orchestrator.review.pick`."""
    sides = _side(first, configuration_a, flags[0], metric), _side(second, configuration_b, flags[1], metric)
    names = [side.name for side in sides]
    same = first is second or "" != first.state.sweep_id == second.state.sweep_id  # a table has no id
    if same and sides[0].configuration == sides[1].configuration:
        raise ValueError(f"{names[0]} would be compared with itself; name two by {' and '.join(dict.fromkeys(flags))}")
    if unlike := list(_differences(metric, *sides)):
        raise ValueError(
            "\n  ".join([f"{names[0]} and {names[1]} do not compare, their scores mean different things:", *unlike])
        )
    spread_of = [partial(spreads, side.record.summaries if metric == "score" else ()) for side in sides[: 1 if same else 2]]
    compare_on = partial(compare_summaries, sides[0].summary, sides[1].summary, spread_of)
    comparison = compare_on()
    if not comparison.difference.n:
        raise NothingMeets(_nothing_shared(metric, *sides))
    return CompareReport(
        first=sides[0],
        second=sides[1],
        metric=metric,
        difference=Estimate.of(comparison.difference),
        higher=comparison.higher,
        over=comparison.over,
        tasks={task: Estimate.of(compare_on(task).difference) for task in comparison.tasks},
        p_value=comparison.p,
        sentence=comparison.sentence(names[0], names[1], "points" if metric == "score" else metric),
        advice=_advice(comparison),
        warnings=[*_warnings(comparison, *sides)],
    )


def show_comparison(compared: CompareReport, console: Console, rows: Path | None = None) -> None:
    """Prints a comparison, and which rows the two answer differently; `rows` gets them all as CSV."""
    console.print(compared.sentence)
    for task, gap in compared.tasks.items() if len(compared.tasks) > 1 else ():
        ends = f"{gap.low:+.2f} to {gap.high:+.2f}, {gap.seeds} seeds" if gap.seeds > 1 else "one seed"
        console.print(f"  {task}: {gap.value:+.2f} ({ends})")
    if compared.advice:
        console.print(compared.advice)
    for side in (compared.first, compared.second):
        score = metric_column("score").text(side.summary)
        console.print(f"{side.name}{sized(side.summary)}: {side.reason}; score {score}")
    for warning in compared.warnings:
        console.print(warning)
    show_differing(compared.first, compared.second, rows, console)


def compare_summaries(
    first: Summary, second: Summary, spread_of: Sequence[Callable[[tuple[str, ...]], Spreads]], task: str | None = None
) -> Comparison:
    """Compares the scores of two configurations over all their tasks, or over one: with the luck of the examples, over the
    trials that have stored answers, and with that of both tunings.

    Args:
        spread_of: says how seeds spread over some tasks in their sweep, or in each of both sweeps.
    """
    rows = (first, second)
    scores = [{key: score for key, score in row.scores.items() if task in (None, key[0])} for row in rows]
    shared = (*sorted({task for task, _ in scores[0].keys() & scores[1].keys()}),)
    credits = [{key: values for key, values in row.credits.items() if key[0] in shared} for row in rows]
    spread = [of(shared).get(row.configuration) for of, row in zip((spread_of[0], spread_of[-1]), rows, strict=True)]
    pooled = spread_between(spread[0], spread[1], len(spread_of) == 1)
    luck, choice = difference(credits[0], credits[1], first.graded), luck_of_both(first, second, shared)
    return compare(scores[0], scores[1], luck, choice, score_step(rows, shared), pooled)


def _differences(metric: str, *sides: SidePart) -> Iterator[str]:
    sweeps = [side.record.sweep for side in sides]
    models, protocols = [(sweep.model, sweep.revision) for sweep in sweeps], [sweep.protocol for sweep in sweeps]
    if models[0] != models[1]:
        yield "model: " + " against ".join(" at ".join(filter(None, model)) for model in models)
    if protocols[0] != protocols[1]:
        yield f"protocol: {protocols[0]} against {protocols[1]}"
    facts = [_data(side, (*DATA_FACTS, METRIC, POSITIVE) if metric == "score" else DATA_FACTS) for side in sides]
    for task in sorted(facts[0].keys() & facts[1].keys()):
        for name in sorted(facts[0][task].keys() & facts[1][task].keys()):
            values = [by_task[task][name] for by_task in facts]
            if values[0] != values[1]:
                yield f"data of {task}: {name.replace('_', ' ')} {values[0][:12]} against {values[1][:12]}"
    kinds = {row.kind for task in facts[0] if (row := sweeps[0].data.own(task) or TASKS.get(task)) is not None}
    if sweeps[0].data.generation != sweeps[1].data.generation and "generation" in kinds:
        yield "data: how answers are generated and scored (data.generation)"


def _side(record: PastSweep, which: str, flag: str, metric: str) -> SidePart:
    try:
        chosen = record.pick(which)
    except NothingMeets as error:
        raise NothingMeets(f"{record.name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{record.name}: {str(error).replace('--pick', flag)}") from error
    summary = chosen.summary
    if metric != "score":  # what is known of the luck of scores does not hold for it
        finished = [(entry.trial, result) for entry in record.trials(summary.configuration) if (result := entry.finished)]
        scores = {(trial.task, trial.seed): run.metrics[metric] for trial, run in finished if metric in run.metrics}
        rounding = max((_step(metric, run) for _, run in finished), default=0.0)
        summary = replace(summary, scores=scores, credits={}, graded={}, tuning=Tuning(), rounding=rounding)
    return SidePart.fill(
        summary,
        sweep=record.name,
        label=full_label(summary),
        reason=chosen.reason,
        trainable_parameters=summary.value(SIZE),
        score=Estimate.of(summary.score),
        record=record,
        summary=summary,
    )


def _data(side: SidePart, names: Sequence[str]) -> dict[str, dict[str, str]]:
    by_task = {entry.trial.task: result.facts for entry in side.entries if (result := entry.finished)}
    return {task: {name: str(facts[name]) for name in names if name in facts} for task, facts in by_task.items()}


def _advice(comparison: Comparison) -> str:
    """Returns what would narrow the interval most; empty if that is not known."""
    gap = comparison.difference
    if comparison.luck is None or gap.n < 2:
        return ""
    few = "More examples" if sum(comparison.luck) / 2 > gap.half / math.sqrt(2) else "More seeds"
    return f"{few} would tell more of this difference."


def _step(metric: str, run: TrialResult) -> float:
    """Returns what one row adds to a metric whose rows are each right or wrong; 0 for any other number, such as a loss."""
    name, examples = metric.removeprefix("search_"), run.facts.get(SEARCHED if metric.startswith("search_") else EXAMPLES)
    name = str(run.facts.get(METRIC)) if name == "score" else name
    graded = any(row.graded for prefix, row in METRICS.items() if name.startswith(prefix))
    return 100 / examples if graded and examples else 0.0


def _warnings(comparison: Comparison, *sides: SidePart) -> Iterator[str]:
    if not math.isnan(comparison.p):
        yield f"t test over the seeds: p = {comparison.p:.2g}."
    tries = [len(side.record.summaries) for side in sides]
    if tries[0] != tries[1] and all("best" in side.reason for side in sides):
        yield f"Chosen among {tries[0]} and {tries[1]} configurations: the longer search had more tries to find a good one."
    if sides[0].record.sweep.protocol == "customary":
        yield "Under the customary protocol the search saw the reported split, so the best of many scores is too high."
    for side in sides:
        if not side.complete:
            done = f"{side.summary.finished} of {side.summary.planned} trials have finished"
            yield f"{side.name} is incomplete: {'it ran only to choose another' if side.summary.tunes else done}."


def _nothing_shared(metric: str, *sides: SidePart) -> str:
    def keys(side: SidePart) -> str:
        return ", ".join(f"{task} seed {seed}" for task, seed in sorted(side.summary.scores)[:6]) or f"none with {metric}"

    names, held = [side.name for side in sides], [f"{side.record.name} has {keys(side)}" for side in sides]
    return f"nothing to compare: {names[0]} and {names[1]} share no finished task and seed. {'; '.join(held)}"


def confusions(lines: Sequence[Prediction]) -> tuple[list[str], list[list[int]]]:
    """Counts rows by label and answer; returns the classes in order, and for each label its counts by answer."""
    names = sorted({str(line[side]) for line in lines for side in ("label", "answer")})
    counts = Counter((str(line["label"]), str(line["answer"])) for line in lines)
    return names, [[counts[label, answer] for answer in names] for label in names]


def worth(line: Prediction) -> float:
    """Returns 1 for a right answer and 0 for a wrong one; for a value, minus its error."""
    return float(line["right"]) if "right" in line else -abs(line["answer"] - line["label"])


def differing(first: Sequence[Sequence[Prediction]], second: Sequence[Sequence[Prediction]]) -> list[tuple[int, float]]:
    """Returns the places of the rows that two sides answer differently, each with the first side's mean `worth` minus the
    second's, the largest first. Each side has the lines of its trials, and all have the same rows in the same order."""
    if len({tuple((line["row"], line["label"]) for line in lines) for lines in (*first, *second)}) > 1:
        raise ValueError("the trials were scored on different rows")
    means = [[sum(map(worth, row)) / len(row) for row in zip(*side, strict=True)] for side in (first, second)]
    gaps = [(place, a - b) for place, (a, b) in enumerate(zip(*means, strict=True)) if a != b]
    return sorted(gaps, key=lambda gap: -abs(gap[1]))


def show_differing(first: SidePart, second: SidePart, file: Path | None, console: Console) -> None:
    """Prints for each task which rows each side answers better over the seeds that both have; writes them all to `file`."""
    names = [first.name, second.name if second.name != first.name else f"{second.name}, the second"]
    columns, table = ["task", "row", "label", *names, "difference", "text", "text_pair"], list[Prediction]()
    for place, total, rows in _differing_rows(first, second):
        better = [[str(row["row"]) for gap, row, _ in rows if sign * gap > 0] for sign in (1, -1)]
        sides = [
            f"{name} is better on {plural(len(side), 'row')} {list_some(side, ROWS_SHOWN)}"
            for name, side in zip(names, better, strict=True)
            if side
        ]
        console.print(f"{place}: {len(rows)} of {total:,} rows differ; {'; '.join(sides)}.", markup=False, soft_wrap=True)
        for gap, *lines in rows:
            answers = {name: each["answer"] for name, each in zip(names, lines, strict=True)}
            row = lines[0] | lines[1] | {"task": place, "difference": gap} | answers
            table.append({name: row.get(name) for name in columns})
    if file is not None:
        write_table(file, table, columns)
        console.print(f"{len(table)} rows written to {file}", markup=False, soft_wrap=True)


def _differing_rows(*sides: SidePart) -> Iterator[tuple[str, int, list[tuple[float, Prediction, Prediction]]]]:
    """Yields, for each task and split with rows that differ, its name, the number of all its rows, and of each that differs
    `differing`'s gap and a line of each side."""
    keys = [{(entry.trial.task, entry.trial.seed): entry.key for entry in side.entries if entry.finished} for side in sides]
    shared = sorted(keys[0].keys() & keys[1].keys())
    for task, group in itertools.groupby(shared, key=lambda key: key[0]):
        seeds = list(group)
        with TemporaryDirectory() as scratch:
            answers = [
                [side.record.predictions(trial_keys[key], Path(scratch) / str(at) / trial_keys[key]) for key in seeds]
                for at, (side, trial_keys) in enumerate(zip(sides, keys, strict=True))
            ]
        splits = [set(answer) for side in answers for answer in side]
        for split in sorted(set.intersection(*splits)):
            first, second = ([answer[split] for answer in side] for side in answers)
            if all("answer" in line for line in first[0]) and (gaps := differing(first, second)):
                rows = [(gap, _with_texts(first, row), _with_texts(second, row)) for row, gap in gaps]
                yield task if split == "reported" else f"{task} ({split})", len(first[0]), rows


def _with_texts(trials: Sequence[Sequence[Prediction]], row: int) -> Prediction:
    return {**{name: lines[row][name] for lines in trials for name in lines[row] if name.startswith("text")}, **trials[0][row]}
