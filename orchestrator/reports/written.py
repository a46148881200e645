"""What commands have written: `suggest`, `export` and `cut`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.reports.base import Count, Number, Report


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
    rows: int = Field(0, description="With `--rows reported`, the number of rows in the files of the folder `path`.")


class CutReport(Report):
    """Adapters of a configuration that were cut."""

    report: Literal["cut"] = Field("cut", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    configuration: str = Field(description="The id of the configuration whose adapters were cut.")
    reason: str = Field(description="Why it is this one, in a sentence.")
    path: str = Field(description="The folder that has a folder for each size.")
    sizes: dict[str, Count] = Field(description="By the name of a size for people: the most parameters of one of its adapters.")
