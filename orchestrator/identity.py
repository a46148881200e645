"""When two sweep files are one sweep: what may change between a start and a `--resume`, and what may not.

A trial is named by its content, so work that is done is known again wherever it stands in the file. What a sweep *is*, then,
is what gives all its numbers one meaning: model, data, protocol, training settings, objectives, and how configurations are
drawn. Those may not change under a name. What it *covers* may: seeds, tasks, blocks, values, constraints;
only what is new runs, and results that are no longer asked for stay in the ledger, out of the front. How it runs (resources,
scheduler, budget, tracking store, storage) is free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.mistakes import SweepError, dotted, shown
from orchestrator.sweep import Sweep, load_sweep

EFFECTIVE_FILE = "sweep.yaml"
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
    stored = folder / EFFECTIVE_FILE
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


def _plain(sweep: Sweep, name: str) -> Any:
    return sweep.model_dump(mode="json")[name]


def _differences(old: Any, new: Any, path: tuple[str, ...], now: Sweep) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in _differences(old.get(key), new.get(key), (*path, key), now)]
    return [] if old == new else [f"{dotted(path)}: was {shown(old)}, is {shown(new)} ({now.where(path)})"]
