"""`compare`: two configurations and their paired difference."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.results.metrics import SIZE
from orchestrator.results.report import Count, Estimate, Number, Part, Report
from orchestrator.results.table import full_label
from orchestrator.review.comparing import Compared, Side


class SidePart(Part):
    """One of the two configurations."""

    sweep: str = Field(description="The name of its sweep.")
    configuration: str = Field(description="Its id.")
    label: str = Field(description="Its name for people.")
    reason: str = Field(description="Why it is this configuration of the sweep.")
    complete: bool = Field(description="Whether all of its trials have finished.")
    trainable_parameters: Count = Field(description="Trainable parameters of the adapter, without the task head.")
    score: Estimate = Field(description="Its reported score, in points, over all of its own tasks and seeds.")

    @classmethod
    def of(cls, side: Side) -> SidePart:
        summary, size = side.summary, side.summary.value(SIZE)
        names = {"sweep": side.record.name, "label": full_label(summary), "reason": side.reason}
        return cls.fill(summary, **names, trainable_parameters=size, score=Estimate.of(summary.score))


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
    over: str = Field(description="What the interval is over, in words.")
    tasks: dict[str, Estimate] = Field(description="The difference on each shared task, with the interval that it has there.")
    p_value: Number = Field(description="Two-sided p-value of a paired t test over the seeds. Null with one seed.")
    sentence: str = Field(description="The verdict, in words.")
    advice: str = Field(description="What would narrow the interval most. Empty if that is not known.")
    warnings: list[str] = Field(description="What weakens the verdict, in sentences.")


def compare_report(compared: Compared) -> CompareReport:
    """Returns the report on two configurations."""
    comparison = compared.comparison
    return CompareReport.fill(
        compared,
        first=SidePart.of(compared.first),
        second=SidePart.of(compared.second),
        difference=Estimate.of(comparison.difference),
        higher=comparison.higher,
        over=comparison.over,
        tasks={task: Estimate.of(gap) for task, gap in compared.tasks.items()},
        p_value=comparison.p,
    )
