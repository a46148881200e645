"""docs/reports.schema.json: the JSON Schema of all reports. `python -m orchestrator.commands.schema` writes it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from orchestrator.adapters.taking import CutReport, TakeReport
from orchestrator.commands.adapters import AuditReport
from orchestrator.commands.check import CheckReport
from orchestrator.commands.errors import ErrorReport
from orchestrator.driver.change import ApplyReport
from orchestrator.driver.request import RequestReport
from orchestrator.review.comparing import CompareReport
from orchestrator.review.front_report import FrontReport
from orchestrator.review.listing import ListReport, RemoveReport
from orchestrator.review.prospect import PlanReport
from orchestrator.review.status import Progress
from orchestrator.review.trials_file import ExportReport
from orchestrator.suggest.suggest import SuggestReport
from orchestrator.sweepfile.reference import DOCS, json_text

SCHEMA_FILE = "reports.schema.json"

AnyReport = Annotated[
    PlanReport
    | CheckReport
    | ApplyReport
    | RequestReport
    | Progress
    | ListReport
    | RemoveReport
    | FrontReport
    | CompareReport
    | TakeReport
    | SuggestReport
    | ExportReport
    | CutReport
    | AuditReport
    | ErrorReport,
    Field(discriminator="report"),
]


def reports_schema() -> dict[str, Any]:
    """Returns the schema; the field `report` says which of its parts holds."""
    schema = TypeAdapter(AnyReport).json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Reports of CRAFT sweeps",
        "description": "What commands print with --json.",
    }
    return head | _on_one_line(schema)


def _on_one_line(schema: Any) -> Any:
    """Returns a schema whose descriptions, written as docstrings, have no line breaks."""
    if isinstance(schema, dict):
        return {name: _on_one_line(value) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_on_one_line(value) for value in schema]
    return " ".join(schema.split()) if isinstance(schema, str) and "\n" in schema else schema


def schema_text() -> str:
    return json_text(reports_schema(), lines=4) + "\n"


def main() -> None:
    (DOCS / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
    print(f"wrote {DOCS / SCHEMA_FILE}")


if __name__ == "__main__":
    main()
