"""`take` and `cut`: adapters of a sweep, in a folder or a model registry; `audit`: could an adapter of anybody be smaller?"""

from __future__ import annotations

import shlex
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field
from rich.table import Table
from rich.text import Text

from orchestrator.commands.options import AsJson, Empty, Folders, Pick, Record, Sweep, check_empty, check_points, plain_screen
from orchestrator.results.report import Number, Part, Report
from orchestrator.tools.filling import filled
from orchestrator.tools.quiet import write_report

if TYPE_CHECKING:
    from craft.audit.verdict import Audit


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
        sizes=[
            SizePart.fill(size, difference=gap.mean, low=gap.low, high=gap.high, p_within=audit.probability(size))
            for size in audit.sizes
            if (gap := size.difference)
        ],
        enough=enough.parameters if enough else None,
        path=str(to) if to is not None and enough else None,
        text=audit.verdict,
    )


Form = Literal["adapter", "lora", "merged"]
Base = Annotated[str | None, typer.Option(metavar="FOLDER|ID", help="The base model, if it is not found under its name.")]


def take(
    sweep: Sweep,
    pick: Pick = "answer",
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=check_empty, help="Where to write. The folder is made, and must be empty."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Take this task's adapter only.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The trial with this seed, instead of the best by the search score.")
    ] = None,
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            metavar="FORM",
            help="adapter: as it was trained; lora: the same change of weights as a LoRA, for programs that load nothing else; "
            "merged: a full model in float32.",
        ),
    ] = "adapter",
    base: Base = None,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also (or only) make it a version of this registered model.")
    ] = None,
    tracking_uri: Record = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Take an adapter out of a sweep, with a model card.

    It is written to a folder (as trained, as a LoRA, or merged into the base model), or becomes a registered model.

    \b
    --pick takes
      answer               the configuration that the answer names, enough or not; the default
      enough               the smallest configuration that is enough by the file's rule (`enough`)
      knee                 the front's knee: beyond it, more parameters gain little
      best                 the best mean search score
      smallest-within:2    the smallest configuration within 2 points of the best
      under:70000          the best search score with at most 70,000 trainable parameters
      CONFIGURATION        its id, its label in the table, or a part that no other id or label has

    `best`, `under` and the choice of a seed (unless --seed is given) go by the search score, so the reported score stays
    honest. `answer`, `knee` and `enough` are rows of the table, which shows reported scores. Under the customary protocol,
    where the search saw the reported split, the seed with the middle score is taken.

    Exit status: 0 written; 1 no such trial has finished; 2 the call is wrong, or the adapter is gone.
    """
    from orchestrator.adapters.model_card import CARD_FILE
    from orchestrator.adapters.taking import how_to_load, register_adapters, take_adapters, take_report
    from orchestrator.results.metrics import full_label
    from orchestrator.review.past_sweep import find_sweep

    if to is None and register is None:
        raise ValueError("say where it goes: --to DIR, --register NAME, or both")
    record, console = find_sweep(sweep, tracking_uri, storage), plain_screen(quiet=as_json)
    chosen = record.pick(pick)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    with tempfile.TemporaryDirectory(prefix="craft-registered-") as scratch:
        folder = to or Path(scratch) / "adapter"
        with take_adapters(record, chosen, folder, task=task, seed=seed, form=form, base=base) as adapters:
            for adapter in adapters:
                console.print(f"{adapter.entry.trial.task}: {adapter.reasons[-1]}")
            registered = [] if register is None else list(register_adapters(record, adapters, register, tracking_uri))
            for line in registered:
                console.print(line)
        for adapter in adapters if to is not None else ():
            task = adapter.entry.trial.task
            console.print(f"{task}: written to {adapter.folder} ({CARD_FILE} says what it is); load it with")
            for line in how_to_load(adapter, form):
                console.print(f"    {line}")
        if as_json:
            report = take_report(record, chosen, adapters, form=form, written=to is not None, registered=registered)
            write_report(report.to_json())


def cut(
    sweep: Sweep,
    pick: Pick,
    size: Annotated[
        list[str], typer.Option(metavar="SIZE", help="parameters:N for the whole adapter, or a rank R. Repeatable.")
    ],
    to: Empty,
    base: Base = None,
    tracking_uri: Record = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Cut the adapters of a configuration to fewer parameters, by SVD.

    The adapters of all its tasks and seeds are cut. Nothing is trained and no data are needed. To train cut adapters further
    and score them, give `sizes` in the sweep file and run it with --resume.

    Exit status: 0 written; 1 no such trial has finished; 2 the call is wrong, or the adapter is gone.
    """
    from orchestrator.adapters.taking import CutReport, cut_adapters
    from orchestrator.results.metrics import amount, full_label
    from orchestrator.review.past_sweep import find_sweep

    record, console = find_sweep(sweep, tracking_uri, storage), plain_screen(quiet=as_json)
    chosen = record.pick(pick)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    trained = record.trained(chosen.summary)
    if trained is not chosen.summary:
        console.print(f"It is a cut: {full_label(trained)} ({trained.configuration}), which was trained, is cut instead")
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("configuration", overflow="fold", min_width=16)
    table.add_column("parameters", justify="right", no_wrap=True)
    sizes = dict(cut_adapters(record, trained, size, to, base))
    for label, parameters in sizes.items():
        table.add_row(Text(label), amount("trainable_parameters", parameters))
    console.print(table)
    console.print(f"written to {to}; to train cuts on and score them, give the block sizes and continue with --resume")
    if as_json:
        names = {"sweep": record.name, "configuration": trained.configuration, "reason": chosen.reason, "path": str(to)}
        write_report(CutReport(**names, sizes=sizes).to_json())


LAYERS_SHOWN = 12


def audit(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The adapter: a folder with adapter_config.json.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Held-out rows that are scored: CSV, JSONL or parquet. If not given, the reported rows of the adapter's run.",
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of classes or numbers.")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A text column; twice for pairs. All but the label's if not given."),
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Of a language model: the prompts.")] = None,
    response: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a language model: the answers.")] = None,
    messages: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a language model: the chats.")] = None,
    plain: Annotated[
        bool | None,
        typer.Option(
            "--plain/--chat",
            help="Read pairs as they are, or in the tokenizer's chat template (Alpaca's form if it has none). If not given, "
            "the form in which the adapter finds the answers likelier.",
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rows for training each cut adapter further; none if not given."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="'NAME ...'", help="The classes in the order of the head; names with blanks in quotes."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="accuracy, macro_f1, pearson, likelihood, exact_match, cloze, ...")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="Longer inputs are cut; as the adapter was trained, or 256 by default."),
    ] = None,
    within: Annotated[float, typer.Option(metavar="POINTS", callback=check_points, help="The points that may be lost.")] = 1.0,
    sure: Annotated[float, typer.Option(min=0.5, max=0.999, metavar="P", help="The probability that no more is lost.")] = 0.9,
    base: Base = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=check_empty, help="Where to write the smallest size that is enough.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Ask whether an adapter could be smaller, and at what cost.

    The adapter may be of any PEFT method whose change of weights can be merged, trained by any program. It is cut to smaller
    sizes by SVD, and each size is scored on the same held-out rows as the full adapter.

    Exit status: 0 a smaller size is enough; 1 no smaller size is, or the rows are too few to tell; 2 the call is wrong.
    """
    from craft.audit.audit import audit_adapter
    from craft.audit.folder import Data
    from craft.audit.verdict import served_rank

    screen = plain_screen(quiet=as_json)
    columns = Data(
        data, train, tuple(text or ()), label, tuple(prompt or ()), response, messages,
        _split(labels) if labels else None, metric, max_length, plain,
    )  # fmt: skip
    with filled(to) if to is not None else nullcontext() as aside:
        result = audit_adapter(folder, columns, base=base, within=within, sure=sure, to=aside, tell=screen.print)
    report = audit_report(result, to)
    if as_json:
        write_report(report.to_json())
    else:
        for line in result.picture(LAYERS_SHOWN):
            screen.print(line)
        for warning in result.warnings:
            screen.print(warning)
        screen.print(result.verdict)
        if to is not None and result.enough is not None:
            screen.print(f"Written to {to}: PeftModel.from_pretrained(base, {str(to)!r})")
            if result.folder.is_language_model and not result.folder.config.get("modules_to_save"):
                rank = served_rank(max(result.enough.ranks.values()))
                screen.print(f"vllm serve {result.folder.base} --enable-lora --max-lora-rank {rank}")
    return 0 if result.enough is not None else 1


def _split(labels: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(labels))
    except ValueError as error:
        raise ValueError(f"--labels {labels}: {error}; put a name with blanks or a quote in quotes of the other kind") from None
