"""When two sweep files are one sweep: what may change between a start and a `--resume`, and what may not.

A trial is named by its content, so work that is done is known again wherever it stands in the file. What a sweep *is*, then,
is what gives all its numbers one meaning: model, data, protocol, training settings, objectives, and how configurations are
drawn. Those may not change under a name. What it *covers* may: seeds, tasks, blocks, values, constraints;
only what is new runs, and results that are no longer asked for stay in the ledger, out of the front. How it runs (resources,
scheduler, budget, tracking store, storage) is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.folder import SweepFolder
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError, dotted, shown
from orchestrator.sweepfile.sweep import Sweep

MEANING = ("name", "model", "revision", "protocol", "objectives", "training", "task_training", "data")
DRAWING = ("algorithm", "seed")


def contradictions(before: Sweep, now: Sweep) -> list[str]:
    """What `now` says against `before`, one `path: was X, is Y` for each difference that a resume cannot bridge."""
    lines = []
    for name in MEANING:
        old, new = _plain(before, name), _plain(now, name)
        if name == "data":
            # Tasks of the user's own may join; those that are there must stay what they were.
            new = {**new, "custom": {key: one for key, one in new["custom"].items() if key in old["custom"]}}
            # The folder may have moved; that it holds the same rows is seen from their fingerprints (`check_data`).
            old, new = ({**data, "root": None} for data in (old, new))
        lines += _differences(old, new, (name,), now)
    for name in DRAWING:
        old, new = getattr(before.search, name), getattr(now.search, name)
        if before.search.algorithm != "grid" or name == "algorithm":
            lines += _differences(old, new, ("search", name), now)
    return lines


def check_resume(folder: Path, sweep: Sweep) -> None:
    """Holds `sweep` against the effective file that `folder` has.

    Raises:
        SweepError: it is another sweep; with the differences.
    """
    stored = SweepFolder(folder).effective
    if not stored.exists():
        return
    try:
        before = load_sweep(stored)
    except SweepError as error:
        raise SweepError([f"{stored} is what this sweep ran with, but it cannot be read any more:", *error.lines]) from None
    lines = contradictions(before, sweep)
    if lines:
        advice = "seeds, tasks, space and search.trials may change; for anything else give the sweep another --name"
        raise SweepError([f"{folder} holds another sweep of this name:", *(f"  {line}" for line in lines), advice])


def check_data(results: Iterable[TrialResult], trials: Iterable[TrialSpec], fingerprints: Mapping[str, str]) -> None:
    """Holds the data that are there now against those that finished trials were trained on.

    Args:
        results: what the ledger has.
        trials: the plan's, by which a result's task is known.
        fingerprints: of the data now, by task.

    Raises:
        SweepError: a task's rows are others now.
    """
    tasks = {trial.key: trial.run.task for trial in trials}
    for result in results:
        task, before = tasks.get(result.key), result.facts.get("data_fingerprint")
        if task is not None and task in fingerprints and before is not None and fingerprints[task] != before:
            raise SweepError(
                [
                    f"the data of {task} are not those that this sweep's finished trials used (rows hash to "
                    f"{fingerprints[task][:12]}, then {before[:12]})",
                    "give back the data as they were, or start afresh with another --name",
                ]
            )


def _plain(sweep: Sweep, name: str) -> Any:
    return sweep.model_dump(mode="json")[name]


def _differences(old: Any, new: Any, path: tuple[str, ...], now: Sweep) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in _differences(old.get(key), new.get(key), (*path, key), now)]
    return [] if old == new else [f"{dotted(path)}: was {shown(old)}, is {shown(new)} ({now.where(path)})"]
