"""`take`: the adapters that were written, and how to load them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from craft.trainer.adapter_folder import RUN_FILE
from orchestrator.reports.base import Count, Number, Part, Report
from orchestrator.results.metrics import SIZE
from orchestrator.results.table import full_label
from orchestrator.review.merging import RECORD_FILE, reads_pairs
from orchestrator.review.model_card import loading
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.pick import Pick
from orchestrator.state.entry import Entry


class Taken(Protocol):
    """A trial whose adapter was taken, and the reasons."""

    @property
    def entry(self) -> Entry: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...


class AdapterPart(Part):
    """One adapter, or one merged model."""

    task: str = Field(description="The task that it was trained on.")
    seed: int = Field(description="The seed of its trial.")
    trial: str = Field(description="The key of its trial.")
    score: Number = Field(description="The reported score of this trial, in points.")
    search_score: Number = Field(description="Its score on the split that may choose, in points.")
    reasons: list[str] = Field(description="Why it is this configuration and this trial, in sentences.")
    path: str = Field(description="The folder that has it.")
    files: list[str] = Field(description="The files in that folder.")
    load: list[str] = Field(description="Lines of Python that load it.")
    registered: str | None = Field(description="The registered model, `models:/NAME/VERSION`. Null if there is none.")


class TakeReport(Report):
    """Adapters that were written for one configuration."""

    report: Literal["take"] = Field("take", description="The kind of this report.")
    sweep: str = Field(description="The name of the sweep.")
    configuration: str = Field(description="The id of the configuration.")
    label: str = Field(description="Its name for people.")
    trainable_parameters: Count = Field(description="Trainable parameters of the adapter, without the task head.")
    merged: bool = Field(description="Whether models were written, with the adapters merged into them.")
    adapters: list[AdapterPart] = Field(description="What was written, one for each task.")


def take_report(
    record: PastSweep,
    chosen: Pick,
    adapters: Iterable[tuple[Taken, Path]],
    *,
    merged: bool = False,
    registered: Mapping[str, str] | None = None,
) -> TakeReport:
    """Returns the report on adapters that have been written, each with its folder.

    Args:
        registered: registered models by task, as `models:/NAME/VERSION`.
    """
    handles = registered or {}
    return TakeReport(
        sweep=record.name,
        configuration=chosen.summary.configuration,
        label=full_label(chosen.summary),
        trainable_parameters=chosen.summary.value(SIZE),
        merged=merged,
        adapters=[_adapter(taken, folder, merged, handles.get(taken.entry.task)) for taken, folder in adapters],
    )


def _adapter(taken: Taken, folder: Path, merged: bool, registered: str | None) -> AdapterPart:
    entry = taken.entry
    metrics = entry.result.metrics if entry.result else {}
    run = json.loads((folder / (RECORD_FILE if merged else RUN_FILE)).read_text(encoding="utf-8"))
    return AdapterPart(
        task=entry.task,
        seed=entry.seed,
        trial=entry.key,
        score=metrics.get("score"),
        search_score=metrics.get("search_score"),
        reasons=list(taken.reasons),
        path=str(folder),
        files=sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
        load=loading(run, pair=reads_pairs(run), merged=merged, folder=str(folder)).splitlines(),
        registered=registered,
    )
