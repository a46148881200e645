"""Prepares what trials share, once, before the first trial starts: model files, data, one decomposition for each projection.

A missing model or a data file without a column is found here, where it costs nothing, and not in every trial. Workers find the
prepared files in the caches on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from craft.methods import METHODS
from craft.methods.method import BuildContext, refuse_elsewhere
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.plan.trial import TrialSpec


def prepare(trials: Sequence[TrialSpec]) -> dict[str, str]:
    """Loads every task's data and the model once, and decomposes at the largest ranks asked, smaller ones being slices.

    Returns:
        The data's fingerprint by task.

    Raises:
        ValueError: the model or the data cannot be had, or are wrong, or a method cannot run on this machine.
    """
    from craft.tasks.splits import load_splits

    runs = [trial.run for trial in trials]
    for name in dict.fromkeys(run.method for run in runs):
        refuse_elsewhere(METHODS[name])
    by_task = {run.task: run for run in runs}
    fingerprints = {
        name: load_splits(find_task(name, run.data), run.data, protocol=run.protocol).fingerprint
        for name, run in by_task.items()
    }
    for run in {(run.model, run.revision): run for run in runs}.values():
        _prepare_model(run, [other for other in runs if (other.model, other.revision) == (run.model, run.revision)])
    return fingerprints


def _prepare_model(run: RunSpec, runs: Sequence[RunSpec]) -> None:
    from craft.models.heads import TASK_TYPES
    from craft.models.loading import load_model, load_tokenizer
    from craft.models.quiet import quiet_libraries

    task = find_task(run.task, run.data)
    load_tokenizer(run.model, revision=run.revision)
    for precision, parameters in _largest(runs).items():
        model = load_model(run.model, task.kind, task.labels, revision=run.revision, precision=precision)
        with quiet_libraries():
            METHODS["craft"].build(
                model, METHODS["craft"].parameters.model_validate(parameters), BuildContext(TASK_TYPES[task.kind])
            )


def _largest(runs: Sequence[RunSpec]) -> dict[str, dict[str, Any]]:
    """The CRAFT parameters that cover all of `runs`, by their precision: every projection at the largest rank of each mode."""
    largest: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.method not in ("craft", "craft_star"):
            continue
        cover = largest.setdefault(run.training.precision, {"ranks": [1, 1, 1], "projections": []})
        cover["ranks"] = [_larger(one, other) for one, other in zip(cover["ranks"], run.parameters["ranks"], strict=True)]
        cover["projections"] += [one for one in run.parameters["projections"] if one not in cover["projections"]]
    return largest


def _larger(one: int | str, other: int | str) -> int | str:
    return "all" if "all" in (one, other) else max(int(one), int(other))
