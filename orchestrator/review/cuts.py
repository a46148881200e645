"""Adapters of a finished configuration, cut to fewer parameters, trained on and scored: more points of the front.

    PastSweep --> every trial of the configuration --> cut (`craft.trainer.cutting`) --> scored --> folder, table, record

A cut configuration is one of its own: all tasks and seeds of the trained one, cut alike. In the sweep's record its trials are
trials with the parameter `cut_from`, so everything that reads sweeps shows them. They have no training costs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.disk import replacing
from orchestrator.plan.configuration import CUT, cut_id
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.checkpoints import ADAPTER_FOLDER
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.record.lock import one_driver
from orchestrator.record.tracker import Tracker
from orchestrator.results.front import marks
from orchestrator.results.summary import Entry, Summary, summarize_entries
from orchestrator.review.front_tables import markdown, write_front
from orchestrator.review.front_words import full_label, trials
from orchestrator.review.past_sweep import PastSweep, read_folder
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.sweepfile.space.sizes import size_labels
from orchestrator.tools.journal import events_of

if TYPE_CHECKING:
    from craft.trainer.cutting import Cut

SHIP_SECONDS = 120.0


@dataclass(frozen=True)
class CutTrial:
    """A cut adapter, in `folder`, with what the record says of it: its trial and its result (no score if it has none yet)."""

    trial: TrialSpec
    result: TrialResult
    folder: Path


def refuse_uncuttable(chosen: Summary) -> None:
    """Checks that a configuration can be cut."""
    if not chosen.complete:
        raise NothingMeets(
            f"{full_label(chosen)} is not complete ({trials(chosen)}): a cut configuration has every task and seed of the "
            "trained one. Finish the sweep (--resume), or pick a complete one"
        )


def cut_configuration(
    record: PastSweep,
    chosen: Summary,
    cut: Cut,
    label: str,
    scratch: Path,
    *,
    score: bool,
    base: str | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> list[CutTrial]:
    """Cuts the adapters of all trials of a configuration; `label` is that of the cut one."""
    from craft.trainer.rescoring import cut_and_score

    name = cut_id(chosen.configuration, str(cut), cut.recovery)
    done = []
    for entry in record.trials(chosen.configuration):
        place = scratch / name / entry.key
        adapter = record.adapter(entry.key, scratch / "whole" / entry.key)
        run, size = cut_and_score(adapter, cut, place, score=score, base=base)
        if score:
            tell(f"  {entry.task}, seed {entry.seed}: {size.metrics['score']:.2f}")
        trial = TrialSpec(run, name, label)
        done.append(CutTrial(trial, TrialResult.of_size(run.key, size), size.adapter))
    return done


def summaries_of(cuts: Sequence[CutTrial]) -> list[Summary]:
    return summarize_entries(Entry.of(one.trial, one.result) for one in cuts)


def write_down(folder: Path, name: str, cuts: Sequence[CutTrial], uri: str) -> list[Summary]:
    """Records scored cuts in the sweep's folder and its tracking store, and judges the front anew.

    Returns:
        All configurations of the sweep, marked.

    Raises:
        ValueError: the sweep is running.
    """
    with one_driver(folder):
        home, ledger = SweepFolder(folder), Ledger(folder)
        status, tracker = _last_status(folder), Tracker(uri, name, folder)
        try:
            for one in cuts:
                place = home.adapters / one.trial.key
                with replacing(place) as aside:
                    shutil.copytree(one.folder.parent, aside)
                adapter = place / ADAPTER_FOLDER
                result = one.result.with_facts(adapter=str(adapter))
                tracker.trial_started(one.trial)
                ledger.add(result)
                tracker.trial_ended(result, adapter)
            _note(folder, cuts)
            now = read_folder(folder, uri)
            ours = {one.trial.configuration for one in cuts}
            for summary in now.summaries:
                if summary.configuration in ours:
                    tracker.configuration_ended(summary.configuration, summary.label, summary.parameters, summary.tracked())
            if status is not None:  # a sweep that has not ended marks its front when it does
                objectives = now.sweep.objectives
                files = write_front(now.summaries, objectives, folder, now.name)
                content = {"description": markdown(now.summaries, objectives), **marks(now.summaries, objectives)}
                tracker.sweep_ended(status, content, files)
        finally:
            ledger.close()
            tracker.close(SHIP_SECONDS)
    return now.summaries


def recorded_cuts(folder: Path, trained: Collection[str], planned: Collection[str] = ()) -> list[Summary]:
    """The configurations in a sweep's record that were cut from the trials `trained`, by their keys, and are not `planned`, by
    their ids. Without any it reads nothing but the folder's list of names."""
    if not SweepFolder(folder).cuts.is_file():
        return []
    entries = read_folder(folder).entries
    ours = {entry.configuration for entry in entries if entry.parameters.get("cut_from") in trained} - {*planned}
    return [summary for summary in summarize_entries(entries) if summary.configuration in ours]


def as_json(summaries: Sequence[Summary], cuts: Sequence[CutTrial]) -> list[dict[str, Any]]:
    """A row for each cut configuration: what it is, its parameters, its mean scores, and those of each trial."""
    rows = []
    for summary in summaries:
        trials = [one for one in cuts if one.trial.configuration == summary.configuration]
        scores = {name: summary.value(name) for name in ("search_score", "score")}
        rows.append(
            {
                "configuration": summary.configuration,
                "label": full_label(summary),
                "cut_to": summary.parameters["cut_to"],
                "trainable_parameters": summary.value("trainable_parameters"),
                **{name: score if math.isfinite(score) else None for name, score in scores.items()},
                "trials": [
                    {"key": one.trial.key, "task": one.trial.run.task, "seed": one.trial.run.seed, **one.result.metrics}
                    for one in trials
                ],
            }
        )
    return rows


def cut_labels(chosen: Summary, cuts: Sequence[Cut]) -> list[str]:
    """The labels of a configuration's cuts, as the sweep itself names its sizes."""
    sizes = [cut.parameters for cut in cuts if cut.parameters is not None]
    shares = iter(size_labels(sizes, int(chosen.value("trainable_parameters"))))
    return [chosen.label + CUT + (f"r{cut.rank}" if cut.parameters is None else next(shares)) for cut in cuts]


def _note(folder: Path, cuts: Sequence[CutTrial]) -> None:
    file = SweepFolder(folder).cuts
    rows = {one["configuration"]: one for one in (json.loads(file.read_text(encoding="utf-8")) if file.is_file() else [])}
    rows |= {row["configuration"]: row for row in as_json(summaries_of(cuts), cuts)}
    with replacing(file) as aside:
        aside.write_text(json.dumps([*rows.values()], indent=1), encoding="utf-8")


def _last_status(folder: Path) -> str | None:
    """How the sweep's own run last ended; None if it never has."""
    ends = [event["status"] for event in events_of(SweepFolder(folder).journal, "sweep_ended")]
    return ends[-1] if ends else None
