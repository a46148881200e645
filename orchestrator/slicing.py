"""`python -m orchestrator.adapters SWEEP --pick RULE --slice SIZE`: cuts a configuration's adapters, and scores them.

find_sweep --> pick a configuration --> cut all its trials to every SIZE --> [score] --> table, DIR, the sweep's record
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from craft.spec import RECOVERY
from orchestrator.command import refuse_full, slug
from orchestrator.record.folder import SweepFolder
from orchestrator.record.lock import one_driver
from orchestrator.results.summary import Summary
from orchestrator.review.cuts import (
    CutTrial,
    as_json,
    cut_configuration,
    cut_labels,
    refuse_uncuttable,
    summaries_of,
    write_down,
)
from orchestrator.review.front_words import full_label, shown
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.review.pick import pick

CUTS_FILE = "cuts.json"


def cut_and_tell(given: argparse.Namespace, console: Console) -> None:
    """Does what the command's flags ask; with --score, and the sweep's folder at hand, its record gets the cuts."""
    _refuse_others(given)
    record = find_sweep(given.sweep, given.tracking_uri, given.storage)
    home = Path(record.where) if SweepFolder(Path(record.where)).effective.is_file() else None
    if home is None and given.to is None:
        raise ValueError(
            f"{record.name} was read from {record.where}, and its folder is not here: say where to write, --to DIR"
        )
    chosen = pick(given.pick, record.summaries, record.sweep.objectives)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    trained = record.trained(chosen.summary)
    if trained is not chosen.summary:
        console.print(f"It is a cut: {full_label(trained)} ({trained.configuration}), which was trained, is cut instead")
    refuse_uncuttable(trained)
    recorded = home if given.score else None
    if recorded is not None and record.uri is None:
        raise ValueError("the sweep's record keeps no passwords, so its tracking store is not known: give --tracking-uri")
    # Before anything is scored: a sweep that runs writes its own record.
    with one_driver(recorded) if recorded else nullcontext(), tempfile.TemporaryDirectory(prefix="craft-cut-") as scratch:
        done = _cut(record, trained, Path(scratch), given, console)
        cuts = summaries_of(done)
        if given.to is not None:
            _write(given.to, cuts, done)
        console.print(_table([trained, *cuts]))
        if recorded is not None:
            _record(record, recorded, done, given, console)
        elif given.score:
            console.print(f"not on the sweep's front: {record.name} was read from {record.where}, and its folder is not here")


def _cut(record: PastSweep, chosen: Summary, scratch: Path, given: argparse.Namespace, console: Console) -> list[CutTrial]:
    from craft.trainer.cutting import Cut

    done: list[CutTrial] = []
    recovery = RECOVERY if given.score else 0.0
    cuts = list(dict.fromkeys(Cut.read(text, chosen.method, recovery) for text in given.slice))
    for cut, label in zip(cuts, cut_labels(chosen, cuts), strict=True):
        console.print(f"cutting to {cut}" + (", training on and scoring" if given.score else ""))
        done += cut_configuration(record, chosen, cut, label, scratch, score=given.score, base=given.base, tell=console.print)
    return done


def _refuse_others(given: argparse.Namespace) -> None:
    for flag in ("merge", "register", "task", "seed"):
        if getattr(given, flag) is not None and getattr(given, flag) is not False:
            raise ValueError(f"--slice cuts all tasks and seeds of a configuration; leave --{flag} out")
    if given.to is None and not given.score:
        raise ValueError("say where the cut adapters go: --to DIR; or --score, which puts them on the sweep's front")
    if given.to is not None:
        refuse_full(given.to)


def _write(to: Path, cuts: Sequence[Summary], done: Sequence[CutTrial]) -> None:
    """DIR/SIZE, with a folder for each task and seed where there are several, and the scores as JSON."""
    tasks, seeds = ({getattr(one.trial.run, name) for one in done} for name in ("task", "seed"))
    for one in done:
        run = one.trial.run
        assert run.cut_from is not None
        parts = [slug(run.cut_from.to)] + [slug(run.task)] * (len(tasks) > 1) + [f"seed-{run.seed}"] * (len(seeds) > 1)
        shutil.copytree(one.folder, to.joinpath(*parts))
    (to / CUTS_FILE).write_text(json.dumps(as_json(cuts, done), indent=1), encoding="utf-8")


def _table(rows: Sequence[Summary]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("configuration", overflow="fold", min_width=16)
    for name in ("parameters", "search score", "score"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in rows:
        table.add_row(
            escape(full_label(one)), *(shown(one, name) for name in ("trainable_parameters", "search_score", "score"))
        )
    return table


def _record(record: PastSweep, home: Path, done: Sequence[CutTrial], given: argparse.Namespace, console: Console) -> None:
    assert record.uri is not None
    marked = {one.configuration: one for one in write_down(home, record.name, done, record.uri)}
    ours = dict.fromkeys(one.trial.configuration for one in done)
    on_front = [full_label(marked[one]) for one in ours if marked[one].on_front]
    console.print(f"recorded in {home}; on the front: {', '.join(on_front) or 'none of them'}")
    store = f" --tracking-uri {given.tracking_uri}" if given.tracking_uri else ""
    console.print(f"the page anew: python -m dashboards export {record.name}{store} --to {SweepFolder(home).page}")
