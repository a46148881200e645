"""`front`: every configuration of a sweep with its scores, chances and cost, and the answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.plan.parameters import text
from orchestrator.reports.answer import AnswerPart
from orchestrator.reports.base import Count, Estimate, Number, Part, Report
from orchestrator.results.front import knee
from orchestrator.results.metrics import EXPECTED, LUCK, P_ENOUGH, P_FRONT, SIZE
from orchestrator.results.summary import Summary
from orchestrator.results.table import full_label, metric_among, ranked
from orchestrator.review.front_words import caption, legend
from orchestrator.review.past_sweep import PastSweep
from orchestrator.sweepfile.objectives import Direction

SHOWN = {SIZE, P_FRONT, P_ENOUGH, EXPECTED, LUCK, "seconds"}
"""Counts with a field of their own."""


class TuningPart(Part):
    """What the choice of a configuration's settings took."""

    tuned: bool = Field(description="Whether there was anything to choose.")
    choice: str = Field(description="What was chosen, in words.")
    trials: int = Field(description="The trainings that tuned.")
    seconds: Number = Field(description="Their training time, in seconds.")
    at_end: list[str] = Field(description="Settings whose best value is the lowest or highest that was tried.")


class Row(Part):
    """One configuration, over all of its tasks and seeds."""

    configuration: str = Field(description="Its id: 10 hexadecimal digits, a hash of its content.")
    label: str = Field(description="Its name for people.")
    method: str = Field(description="Its method, such as `craft` or `lora`.")
    parameters: dict[str, str] = Field(description="Its settings that are equal in all of its trials, flat, as text.")
    cut_from: str | None = Field(description="The id of the configuration from whose adapters its own are cut.")
    on_front: bool = Field(description="Whether no other complete configuration is better in the objectives.")
    may_be_on_front: bool = Field(description="Whether its chance to be on the front is not small.")
    enough: bool = Field(description="Whether it is the smallest that is enough. At most one configuration is.")
    complete: bool = Field(description="Whether all planned trials have finished. Only complete configurations are ranked.")
    tunes: str | None = Field(description="The id of the configuration for which it is a candidate, with search scores alone.")
    score: Estimate = Field(description="The reported score, in points, on data that chose nothing (`protocol: honest`).")
    search_score: Estimate = Field(description="The score on the split that may choose, in points. Choose by this one.")
    tasks: dict[str, Estimate] = Field(description="The reported score on each task, in points.")
    metrics: dict[str, Estimate] = Field(description="All other metrics that every task has, such as `accuracy`.")
    p_front: Number = Field(
        description="P(front): the chance, from 0 to 1, that nothing of at most its cost is better. Null with one seed."
    )
    p_enough: Number = Field(
        description="P(enough): the chance, from 0 to 1, that nothing at all is better by more than `within` points. Null with "
        "one seed."
    )
    expected: Number = Field(
        description="The expected true score, in points. The highest of many scores is too high on average; this is not."
    )
    trainable_parameters: Count = Field(description="Trainable parameters of the adapter, without the task head.")
    seconds: Number = Field(description="Training time of one trial, in seconds. Null for what is cut from another adapter.")
    costs: dict[str, Number] = Field(
        description="Other counts of one trial. A name ends in its unit: `_bytes`, `_seconds`, `_parameters`, `_per_second`."
    )
    planned: int = Field(description="The number of its trials: tasks times seeds.")
    finished: int = Field(description="The number of trials that have finished.")
    failed: int = Field(description="The number of trials that have failed.")
    stopped: int = Field(description="The number of trials that were never promoted.")
    reasons: list[str] = Field(description="The distinct reasons of failures.")
    notes: list[str] = Field(description="What its trials noted.")
    tuning: TuningPart | None = Field(description="What the choice of its settings took. Null in a sweep that does not tune.")

    @classmethod
    def of(cls, summary: Summary) -> Row:
        own = ("configuration", "method", "on_front", "may_be_on_front", "enough", "complete", "tunes")
        fields = {name: getattr(summary, name) for name in (*own, "planned", "finished", "failed", "stopped")}
        spent = summary.tuning
        return cls(
            **fields,
            label=full_label(summary),
            parameters={name: text(value) for name, value in summary.parameters.items()},
            cut_from=summary.source,
            score=Estimate.of(summary.score),
            search_score=Estimate.of(summary.bounds("search_score")),
            tasks={name: Estimate.of(value) for name, value in summary.tasks.items()},
            metrics={
                name: Estimate.of(value) for name, value in summary.metrics.items() if name not in ("score", "search_score")
            },
            p_front=summary.value(P_FRONT),
            p_enough=summary.value(P_ENOUGH),
            expected=summary.value(EXPECTED),
            trainable_parameters=summary.value(SIZE),
            seconds=summary.value("seconds"),
            costs={name: value for name, value in summary.counts.items() if name not in SHOWN},
            reasons=list(summary.reasons),
            notes=list(summary.notes),
            tuning=None
            if spent is None
            else TuningPart(
                tuned=spent.tuned, choice=spent.choice, trials=spent.trials, seconds=spent.seconds, at_end=list(spent.at_end)
            ),
        )


class FrontReport(Report):
    """The configurations of a sweep that runs or has run, and its answer."""

    report: Literal["front"] = Field("front", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    source: str = Field(description="The folder or the tracking store that it was read from.")
    model: str = Field(description="The base model.")
    protocol: str = Field(description="`honest`: the data of the reported score chose nothing. `customary`: they did.")
    metric: str = Field(description="What the score is on all tasks, such as `accuracy`. Empty if tasks differ.")
    objectives: dict[str, Direction] = Field(description="The metrics over which the front is, in order, with their direction.")
    rows: list[Row] = Field(description="The configurations, by their cost, smallest first. Incomplete ones come last.")
    knee: str | None = Field(description="The id of the knee of the front: above it, more parameters add little.")
    caption: str = Field(description="The line under the table of the terminal: what the intervals are over.")
    legend: str = Field(description="What the chances are about. Empty if there are none.")
    answer: AnswerPart | None = Field(description="The sweep's answer. Null before any configuration is complete.")


def front_report(record: PastSweep) -> FrontReport:
    """Returns the report on a sweep's front. `PastSweep.with_within` judges by other points."""
    sweep, summaries = record.sweep, record.summaries
    best = knee(summaries, sweep.objectives)
    return FrontReport(
        sweep=sweep.name,
        source=record.where,
        model=sweep.model,
        protocol=sweep.protocol,
        metric=metric_among(summaries),
        objectives=dict(sweep.objectives),
        rows=[Row.of(summary) for summary in ranked(summaries, sweep.objectives)],
        knee=best.configuration if best else None,
        caption=caption(summaries, sweep.objectives) if summaries else "",
        legend=legend(summaries, sweep.objectives),
        answer=AnswerPart.of(record.answer, summaries, sweep.enough),
    )
