"""`audit`: how much smaller could an adapter be that somebody trained, and what would that cost?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from craft.stdout import write_report
from craft.words import redact
from orchestrator.commands.options import AsJson, check_empty, check_points, plain_screen

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
    labels: Annotated[str | None, typer.Option(metavar="'NAME ...'", help="The classes in the order of the head.")] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="accuracy, macro_f1, pearson, likelihood, exact_match, cloze, ...")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="Longer inputs are cut; as the adapter was trained, or 256 by default."),
    ] = None,
    within: Annotated[float, typer.Option(metavar="POINTS", callback=check_points, help="The points that may be lost.")] = 1.0,
    sure: Annotated[float, typer.Option(min=0.5, max=0.999, metavar="P", help="The probability that no more is lost.")] = 0.9,
    base: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The base model, if it is not found under its name.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=check_empty, help="Where to write the smallest size that is enough.")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="Also write it to this MLflow store, into the experiment `audits`.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Ask whether an adapter could be smaller, and at what cost.

    The adapter may be of any PEFT method whose change of weights can be merged, trained by any program. It is cut to smaller
    sizes by SVD, and each size is scored on the same held-out rows as the full adapter.

    Exit status: 0 a smaller size is enough; 1 no smaller size is, or the rows are too few to tell; 2 the call is wrong.
    """
    from craft.audit.audit import audit_adapter
    from craft.audit.data import Data
    from orchestrator.reports.audit import audit_report
    from orchestrator.tracking.client import check_store
    from orchestrator.tracking.uri import resolve_uri

    screen = plain_screen(quiet=as_json)
    store = resolve_uri(tracking_uri) if tracking_uri is not None else None
    if store is not None:
        check_store(store)
    columns = Data(
        data, train, tuple(text or ()), label, tuple(prompt or ()), response, messages,
        tuple(labels.split()) if labels else None, metric, max_length, plain,
    )  # fmt: skip
    result = audit_adapter(folder, columns, base=base, within=within, sure=sure, to=to, tell=screen.print)
    report = audit_report(result, to)
    if store is not None:
        from orchestrator.tracking.audited import record_audit

        run = record_audit(report.model_dump(), to if report.path else None, store)
        screen.print(f"Recorded in {redact(store)}: experiment audits, run {run}")
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
                screen.print(f"vllm serve {result.folder.base} --enable-lora --max-lora-rank {result.served_rank}")
    return 0 if result.enough is not None else 1
