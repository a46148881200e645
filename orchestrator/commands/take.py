"""`take` and `cut`: adapters of a sweep, in a folder or a model registry."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from craft.stdout import write_report
from orchestrator.commands.options import AsJson, Empty, Folders, Pick, Record, Sweep, check_empty, plain_screen

Form = Literal["adapter", "lora", "merged"]
Base = Annotated[
    str | None, typer.Option(metavar="FOLDER|ID", help="The base model, if it is not found under its name in the sweep.")
]


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

    Exit status: 0 written; 1 the sweep has no such adapter; 2 the call is wrong.
    """
    from orchestrator.adapters.model_card import CARD_FILE
    from orchestrator.adapters.registering import register_adapters
    from orchestrator.adapters.taking import how_to_load, take_adapters
    from orchestrator.results.table import full_label
    from orchestrator.review.past_sweep import find_sweep
    from orchestrator.review.pick import pick as choose

    if to is None and register is None:
        raise ValueError("say where it goes: --to DIR, --register NAME, or both")
    record, console = find_sweep(sweep, tracking_uri, storage), plain_screen(quiet=as_json)
    chosen = choose(pick, record.summaries, record.sweep.objectives, record.sweep.enough, record.answer)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    with tempfile.TemporaryDirectory(prefix="craft-registered-") as scratch:
        folder = to or Path(scratch) / "adapter"
        with take_adapters(record, chosen, folder, task=task, seed=seed, form=form, base=base) as adapters:
            for adapter in adapters:
                console.print(f"{adapter.entry.trial.task}: {adapter.reasons[-1]}")
            name, merged = register, form == "merged"
            registered = list(register_adapters(record, adapters, name, merged, tracking_uri)) if name is not None else []
            for line in registered:
                console.print(line)
        for adapter in adapters if to is not None else ():
            task = adapter.entry.trial.task
            console.print(f"{task}: written to {adapter.folder} ({CARD_FILE} says what it is); load it with")
            for line in how_to_load(adapter, form):
                console.print(f"    {line}")
        if as_json:
            from orchestrator.reports.written import take_report

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

    Exit status: 0 written; 1 the sweep has no such adapter; 2 the call is wrong.
    """
    from orchestrator.adapters.cutting import cut_adapters
    from orchestrator.results.metrics import amount
    from orchestrator.results.table import full_label
    from orchestrator.review.past_sweep import find_sweep
    from orchestrator.review.pick import pick as choose

    record, console = find_sweep(sweep, tracking_uri, storage), plain_screen(quiet=as_json)
    chosen = choose(pick, record.summaries, record.sweep.objectives, record.sweep.enough, record.answer)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    trained = record.trained(chosen.summary)
    if trained is not chosen.summary:
        console.print(f"It is a cut: {full_label(trained)} ({trained.configuration}), which was trained, is cut instead")
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("configuration", overflow="fold", min_width=16)
    table.add_column("parameters", justify="right", no_wrap=True)
    sizes = dict(cut_adapters(record, trained, size, to, base))
    for label, parameters in sizes.items():
        table.add_row(escape(label), amount("trainable_parameters", parameters))
    console.print(table)
    console.print(f"written to {to}; to train cuts on and score them, give the block sizes and continue with --resume")
    if as_json:
        from orchestrator.reports.written import CutReport

        names = {"sweep": record.name, "configuration": trained.configuration, "reason": chosen.reason, "path": str(to)}
        write_report(CutReport(**names, sizes=sizes).to_json())
