"""`audit`: an adapter at several sizes, and which of them is enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from orchestrator.results.report import Number, Part, Report

if TYPE_CHECKING:
    from craft.audit.verdict import Audit, Size


class SizePart(Part):
    """The adapter at one size."""

    parameters: int = Field(description="Parameters of the LoRA, without a task head.")
    ranks: dict[str, int] = Field(description="The rank of each module; 0 where nothing is left.")
    score: Number = Field(description="Its score on the held-out rows, in points.")
    difference: Number = Field(description="Its score less that of the whole adapter, in points.")
    low: Number = Field(description="The lower end of the 95 % interval of that, over rows.")
    high: Number = Field(description="The upper end.")
    p_within: Number = Field(
        description="The least probability that neither this size nor a larger one loses more than `within` points on new rows."
    )


class AuditReport(Report):
    """What came of an audit."""

    report: Literal["audit"] = Field("audit", description="The kind of this report.")
    adapter: str = Field(description="The folder of the adapter.")
    method: str = Field(description="PEFT's name of its method.")
    base: str = Field(description="Its base model.")
    cut_from: str | None = Field(description="The run from whose adapter this package cut it. Null if it is no such cut.")
    metric: str = Field(description="The score.")
    rows: int = Field(description="The number of held-out rows.")
    trained: bool = Field(description="Whether the cuts were trained on.")
    parameters: int = Field(description="Parameters of the adapter, without a task head.")
    score: Number = Field(description="The adapter's score, in points.")
    without: Number = Field(description="The score without its change of weights: of the base, or of the head alone.")
    form: str | None = Field(description="How pairs of a language model were read, if the audit chose it. Null if it did not.")
    within: float = Field(description="The points that may be lost; of a likelihood at most a tenth of the gain.")
    sure: float = Field(description="The probability with which at most these are lost.")
    sizes: list[SizePart] = Field(description="From large to small.")
    helps: bool = Field(description="Whether the rows show that the adapter's change helps by more than `within`.")
    enough: int | None = Field(
        description="The parameters of the smallest size whose `p_within` is at least `sure`. Null if none has it, or nothing "
        "`helps`."
    )
    seen: int = Field(description="The held-out rows whose texts the adapter was trained on, where its run is known.")
    path: str | None = Field(description="Where it was written. Null if it was not.")
    shares: dict[str, float] = Field(description="Each module's share of the change's squared singular values.")
    warnings: list[str] = Field(description="What is odd about the change, in sentences.")
    text: str = Field(description="The verdict as the terminal shows it.")


def audit_report(audit: Audit, to: Path | None) -> AuditReport:
    """Returns the report on an audit; `to` is where the smallest that is enough was to be written."""
    enough, cut = audit.enough, audit.folder.cut
    return AuditReport.fill(
        audit,
        adapter=str(audit.folder.path),
        method=audit.folder.peft_type,
        base=audit.folder.base,
        cut_from=cut[0] if cut else None,
        sizes=[_size(audit, size) for size in audit.sizes],
        enough=enough.parameters if enough else None,
        path=str(to) if to is not None and enough else None,
        text=audit.verdict,
    )


def _size(audit: Audit, size: Size) -> SizePart:
    gap = size.difference
    return SizePart.fill(size, difference=gap.mean, low=gap.low, high=gap.high, p_within=audit.probability(size))
