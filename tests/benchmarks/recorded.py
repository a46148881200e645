"""Trials of recorded sweeps, by task: of a sweep's folder, or of a CSV that `orchestrator.export --format trials` wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from orchestrator.results.summary import Entry
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.trials_table import read_trials


def finished_trials(paths: Iterable[Path]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for path in paths:
        for one in read_trials(path) if path.suffix == ".csv" else read_folder(path).entries:
            if one.result is not None and one.result.status == "finished":
                found[one.task].append(one)
    return dict(found)
