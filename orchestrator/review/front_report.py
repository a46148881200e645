"""`front` and `judge`: every configuration with its scores, probabilities and cost, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, create_model

from orchestrator.plan.configuration import text
from orchestrator.results.answer import Answer
from orchestrator.results.front import knee
from orchestrator.results.metrics import COLUMNS
from orchestrator.results.report import Count, Estimate, Number, Part, Report
from orchestrator.results.summary import Summary, metric_among
from orchestrator.review.comparing import CompareReport
from orchestrator.review.front_tables import caption, legend, ranked
from orchestrator.review.past_sweep import PastSweep
from orchestrator.sweepfile.settings import Direction

KINDS: dict[str, Any] = {"flag": bool, "text": str, "texts": list[str], "count": Count}


class _Row(Part):
    """One configuration, over all of its tasks and seeds."""

    model_config = ConfigDict(extra="allow")

    parameters: dict[str, str] = Field(description="Its settings that are equal in all of its trials, flat, as text.")
    tasks: dict[str, Estimate] = Field(description="The reported score on each task, in points.")
    metrics: dict[str, Estimate] = Field(description="All other metrics that every task has, such as `accuracy`.")


def row_model() -> type[_Row]:
    """Returns the model of a row: a field for each of COLUMNS."""
    fields: dict[str, Any] = {
        name: (Estimate if column.interval else KINDS.get(column.kind, Number), Field(description=column.about))
        for name, column in COLUMNS.items()
    }
    return create_model("Row", __base__=_Row, __doc__=_Row.__doc__, **fields)


if TYPE_CHECKING:
    Row = _Row
else:
    Row = row_model()


def row_of(summary: Summary) -> Row:
    cells: dict[str, Any] = {
        name: Estimate.of(summary.bounds(name)) if column.interval else column.cell(summary) for name, column in COLUMNS.items()
    }
    return Row(
        **{name: "" if cell is None else cell for name, cell in cells.items()},
        parameters={name: text(value) for name, value in summary.parameters.items()},
        tasks={name: Estimate.of(value) for name, value in summary.tasks.items()},
        metrics={name: Estimate.of(value) for name, value in summary.metrics.items() if name not in COLUMNS},
    )


class FrontReport(Report):
    """The configurations of a sweep that runs or has run, and its answer."""

    report: Literal["front"] = Field("front", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    source: str = Field(description="The folder or the tracking store that it was read from.")
    model: str = Field(description="The base model; empty if it is not known.")
    protocol: str = Field(
        description="`honest`: the data of the reported score chose nothing. `customary`: they did. Empty if it is not known."
    )
    metric: str = Field(description="What the score is on all tasks, such as `accuracy`. Empty if tasks differ.")
    objectives: dict[str, Direction] = Field(description="The metrics over which the front is, in order, with their direction.")
    rows: list[Row] = Field(description="The configurations, by their cost, smallest first. Incomplete ones come last.")
    knee: str | None = Field(description="The id of the knee of the front: above it, more parameters add little.")
    caption: str = Field(description="The line under the table of the terminal: what the intervals are over.")
    legend: str = Field(description="What the probabilities are about. Empty if there are none.")
    answer: Answer = Field(description="The sweep's answer, or in `kind` why there is none.")
    read: list[str] = Field([], description="`judge`: how the columns of the table were read, in sentences.")
    lacks: list[str] = Field([], description="`judge`: what the table lacks, and what it would add, in sentences.")
    comparison: CompareReport | None = Field(None, description="`judge`: the verdict on the two that --compare names.")


def front_report(record: PastSweep, **of_table: Any) -> FrontReport:
    """Returns the report on a sweep's front; `of_table` are the fields of a table that `judge` read."""
    sweep, summaries = record.sweep, record.summaries
    best = knee(summaries, sweep.objectives)
    return FrontReport(
        **of_table,
        sweep=record.name,
        source=record.where,
        model="" if of_table else sweep.model,
        protocol="" if of_table else sweep.protocol,
        metric=metric_among(summaries),
        objectives=dict(sweep.objectives),
        rows=[row_of(summary) for summary in ranked(summaries, sweep.objectives)],
        knee=best.configuration if best else None,
        caption=caption(summaries, sweep.objectives) if summaries else "",
        legend=legend(summaries, sweep.objectives, sweep.enough.within),
        answer=record.answer,
    )
