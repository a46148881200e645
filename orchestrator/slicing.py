"""`python -m orchestrator.adapters SWEEP --pick RULE --slice SIZE --to DIR`: writes a configuration's adapters, cut to fewer
parameters. Nothing is trained and nothing is scored; `sizes` in the sweep file, and `--resume`, does both.

find_sweep --> pick a configuration --> cut the adapters of all its trials to every SIZE --> DIR
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.command import refuse_full, slug
from orchestrator.plan.configuration import CUT
from orchestrator.results.metrics import amount
from orchestrator.results.summary import Entry, Summary
from orchestrator.results.table import describe_trials, full_label
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.review.pick import pick
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.sweepfile.space.sizes import size_labels


def cut_adapters(flags: argparse.Namespace, console: Console) -> None:
    """Does what the command's flags ask."""
    _refuse_flags(flags)
    record = find_sweep(flags.sweep, flags.tracking_uri, flags.storage)
    chosen = pick(flags.pick, record.summaries, record.sweep.objectives, record.sweep.enough)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    trained = record.trained(chosen.summary)
    if trained is not chosen.summary:
        console.print(f"It is a cut: {full_label(trained)} ({trained.configuration}), which was trained, is cut instead")
    if not trained.complete:
        raise NothingMeets(
            f"{full_label(trained)} is not complete ({describe_trials(trained)}): all its tasks and seeds are cut. Finish the "
            "sweep (--resume), or pick a complete one"
        )
    with tempfile.TemporaryDirectory(prefix="craft-cut-") as scratch:
        _cut(record, trained, Path(scratch), flags, console)


def _refuse_flags(flags: argparse.Namespace) -> None:
    for flag in ("merge", "register", "task", "seed"):
        if getattr(flags, flag) is not None and getattr(flags, flag) is not False:
            raise ValueError(f"--slice cuts all tasks and seeds of a configuration; leave --{flag} out")
    if flags.to is None:
        raise ValueError("say where the cut adapters go: --to DIR")
    refuse_full(flags.to)


def _cut(record: PastSweep, trained: Summary, scratch: Path, flags: argparse.Namespace, console: Console) -> None:
    """Writes DIR/SIZE, with a folder for each task and seed where there are several, and shows the counts."""
    from craft.trainer.cutting import Cut
    from craft.trainer.rescoring import cut_and_score

    entries = record.trials(trained.configuration)
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("configuration", overflow="fold", min_width=16)
    table.add_column("parameters", justify="right", no_wrap=True)
    for cut in dict.fromkeys(Cut.read(text, trained.method) for text in flags.slice):
        most = 0.0
        for entry in entries:
            adapter = record.adapter(entry.key, scratch / "whole" / entry.key)
            place = scratch / slug(str(cut)) / entry.key
            _, result = cut_and_score(adapter, cut, place, score=False, base=flags.base)
            most = max(most, result.counts.trainable_parameters)
            shutil.copytree(result.adapter, flags.to.joinpath(slug(str(cut)), *_parts(entry, entries)))
        whole_size = int(trained.value("trainable_parameters"))
        share = f"r{cut.rank}" if cut.parameters is None else size_labels([cut.parameters], whole_size)[0]
        table.add_row(escape(full_label(trained) + CUT + share), amount("trainable_parameters", most))
    console.print(table)
    console.print(f"written to {flags.to}; to train cuts on and score them, give the block sizes and continue with --resume")


def _parts(entry: Entry, entries: Sequence[Entry]) -> list[str]:
    tasks, seeds = ({getattr(entry, name) for entry in entries} for name in ("task", "seed"))
    return [slug(entry.task)] * (len(tasks) > 1) + [f"seed-{entry.seed}"] * (len(seeds) > 1)
