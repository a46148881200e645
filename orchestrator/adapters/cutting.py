"""Cuts the adapters of a configuration to fewer parameters.

Nothing is trained and nothing is scored; `sizes` in the sweep file, and `--resume`, does both.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.adapters.taking import slug
from orchestrator.plan.configuration import CUT
from orchestrator.results.summary import Entry, Summary
from orchestrator.results.table import describe_trials, full_label
from orchestrator.review.past_sweep import PastSweep
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.sweepfile.space.sizes import size_labels


def cut_adapters(
    record: PastSweep, trained: Summary, sizes: Sequence[str], to: Path, base: str | None = None
) -> Iterator[tuple[str, float]]:
    """Cuts the adapters of all trials of a configuration to every size, into `to`/SIZE, with a folder for each task and seed
    where there are several. Yields the label of each cut with the most parameters that one of its adapters has.

    Args:
        sizes: a rank as text, or `parameters:N` for the whole adapter.
        base: the place of the base model, if it is not found under its name in the sweep.

    Raises:
        NothingMeets: the configuration is not complete.
        ValueError: a size is wrong, or the method has no cuts.
    """
    from craft.trainer.cutting import Cut
    from craft.trainer.rescoring import cut_and_score

    if not trained.complete:
        raise NothingMeets(
            f"{full_label(trained)} is not complete ({describe_trials(trained)}): all its tasks and seeds are cut. Finish the "
            "sweep (--resume), or pick a complete one"
        )
    entries = record.trials(trained.configuration)
    with tempfile.TemporaryDirectory(prefix="craft-cut-") as scratch:
        for cut in dict.fromkeys(Cut.read(text, trained.method) for text in sizes):
            most = 0.0
            for entry in entries:
                adapter = record.adapter(entry.key, Path(scratch) / "whole" / entry.key)
                place = Path(scratch) / slug(str(cut)) / entry.key
                _, result = cut_and_score(adapter, cut, place, score=False, base=base)
                most = max(most, result.counts.trainable_parameters)
                shutil.copytree(result.adapter, to.joinpath(slug(str(cut)), *_parts(entry, entries)))
            size = int(trained.value("trainable_parameters"))
            share = f"r{cut.rank}" if cut.parameters is None else size_labels([cut.parameters], size)[0]
            yield full_label(trained) + CUT + share, most


def _parts(entry: Entry, entries: Sequence[Entry]) -> list[str]:
    tasks, seeds = ({getattr(entry.trial, name) for entry in entries} for name in ("task", "seed"))
    return [slug(entry.trial.task)] * (len(tasks) > 1) + [f"seed-{entry.trial.seed}"] * (len(seeds) > 1)
