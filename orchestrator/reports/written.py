"""What commands have written: `take` (adapters, and how to load them), `suggest`, `export` and `cut`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from orchestrator.adapters.taking import Form, Taken, how_to_load
from orchestrator.results.metrics import SIZE
from orchestrator.results.report import Count, Number, Part, Report
from orchestrator.results.table import full_label
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.pick import Pick


class AdapterPart(Part):
    """One adapter, or one merged model."""

    task: str = Field(description="The task that it was trained on.")
    seed: int = Field(description="The seed of its trial.")
    trial: str = Field(description="The key of its trial.")
    score: Number = Field(description="The reported score of this trial, in points.")
    search_score: Number = Field(description="Its score on the split that may choose, in points.")
    reasons: list[str] = Field(description="Why it is this configuration and this trial, in sentences.")
    path: str | None = Field(description="The folder that has it. Null if it was registered only.")
    files: list[str] = Field(description="The files in that folder.")
    load: list[str] = Field(description="Lines of Python that load it from there.")


class TakeReport(Report):
    """Adapters that were written for one configuration."""

    report: Literal["take"] = Field("take", description="The kind of this report.")
    sweep: str = Field(description="The name of the sweep.")
    configuration: str = Field(description="The id of the configuration.")
    label: str = Field(description="Its name for people.")
    trainable_parameters: Count = Field(description="Trainable parameters of the adapter, without the task head.")
    form: Form = Field(description="What was written: the adapter, the same change of weights as a LoRA, or a merged model.")
    adapters: list[AdapterPart] = Field(description="What was taken, one for each task.")
    registered: list[str] = Field(description="What the model registry got, in sentences. Empty if nothing was registered.")


def take_report(
    record: PastSweep,
    chosen: Pick,
    adapters: Sequence[Taken],
    *,
    form: Form = "adapter",
    written: bool = True,
    registered: Sequence[str] = (),
) -> TakeReport:
    """Returns the report on adapters that have been taken."""
    return TakeReport(
        sweep=record.name,
        configuration=chosen.summary.configuration,
        label=full_label(chosen.summary),
        trainable_parameters=chosen.summary.value(SIZE),
        form=form,
        adapters=[_adapter(adapter, form, written) for adapter in adapters],
        registered=list(registered),
    )


def _adapter(adapter: Taken, form: Form, written: bool) -> AdapterPart:
    entry, folder = adapter.entry, adapter.folder
    metrics = entry.result.metrics if entry.result else {}
    files = (path for path in folder.rglob("*") if path.is_file()) if written else ()
    return AdapterPart.fill(
        entry.trial,
        trial=entry.key,
        score=metrics.get("score"),
        search_score=metrics.get("search_score"),
        reasons=list(adapter.reasons),
        path=str(folder) if written else None,
        files=sorted(str(path.relative_to(folder)) for path in files),
        load=how_to_load(adapter, form) if written else [],
    )


class SuggestReport(Report):
    """A sweep file for data of one's own."""

    report: Literal["suggest"] = Field("suggest", description="The kind of this report.")
    sweep_file: str = Field(description="The text of the file, with its comments: write it to a file.")
    seconds: Number = Field(description="How long its sweep takes on this machine, as forecast.")


class ExportReport(Report):
    """The table of a sweep's finished trials."""

    report: Literal["export"] = Field("export", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    path: str = Field(description="The CSV. `craft-sweeps judge` reads it.")
    trials: int = Field(description="The number of its lines, one for each finished trial.")


class CutReport(Report):
    """Adapters of a configuration that were cut."""

    report: Literal["cut"] = Field("cut", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    configuration: str = Field(description="The id of the configuration whose adapters were cut.")
    reason: str = Field(description="Why it is this one, in a sentence.")
    path: str = Field(description="The folder that has a folder for each size.")
    sizes: dict[str, Count] = Field(description="By the name of a size for people: the most parameters of one of its adapters.")
