"""The rules of `--resume`: what may change in a sweep file between two sessions, and what may not.

A trial is named by its content, so finished work is recognised wherever it stands in the file. Three kinds of settings follow:

- Model, data, protocol, training settings, measurements, objectives and how configurations are drawn give all numbers of a
  sweep one meaning. They may not change under a name.
- So does what is tuned, with which seeds: a trial is on record as one that tunes or as one that is reported.
- Seeds, tasks, blocks, values and constraints say what the sweep covers. They may change: only new trials run, and results that
  the file no longer asks for stay in the log but not on the front.
- Resources, scheduler, budget, tracking store and storage say how it runs. They are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from craft.models.gguf import MODEL_DIGEST
from craft.results import TEXT, TEXT_DIGEST
from orchestrator.plan.trial import Trial
from orchestrator.record.folder import SweepFolder
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.load import read_effective
from orchestrator.sweepfile.mistakes import SweepError, dotted, shown
from orchestrator.sweepfile.sweep import Sweep

MEANING = ("name", "model", "revision", "protocol", "objectives", "training", "task_training", "data", "measure")
DRAWING = ("algorithm", "seed")


def contradictions(before: Sweep, now: Sweep) -> list[str]:
    """Returns the differences that a resume does not allow, each as `path: was X, is Y`."""
    lines = []
    for name in MEANING:
        old, new = _plain(before, name), _plain(now, name)
        if name == "data":
            # The user's own tasks may be added to, but none may change.
            new = {**new, "custom": {key: task for key, task in new["custom"].items() if key in old["custom"]}}
            # The folder may have moved; `check_data` compares the fingerprints of its rows.
            old, new = ({**data, "root": None} for data in (old, new))
        lines += _differences(old, new, (name,), now)
    lines += _differences(_tuning(before), _tuning(now), (), now)
    for name in DRAWING:
        old, new = getattr(before.search, name), getattr(now.search, name)
        if before.search.row.samples or name == "algorithm":
            lines += _differences(old, new, ("search", name), now)
    return lines


def recorded_sweep(folder: Path) -> Sweep | None:
    """Returns the sweep of the effective file in `folder`; None if there is none.

    Raises:
        SweepError: it cannot be read.
    """
    stored = SweepFolder(folder).effective
    if not stored.exists():
        return None
    try:
        return read_effective(yaml.safe_load(stored.read_text(encoding="utf-8")))
    except (SweepError, yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:
        lines = getattr(error, "lines", [" ".join(str(error).split())])
        raise SweepError([f"{stored} is what this sweep ran with, but it cannot be read any more:", *lines]) from None


def check_resume(folder: Path, sweep: Sweep, before: Sweep | None = None) -> None:
    """Compares `sweep` with the effective file in `folder`, or with `before`.

    Raises:
        SweepError: they are two sweeps; the message lists the differences.
    """
    before = before or recorded_sweep(folder)
    if before is not None and (lines := contradictions(before, sweep)):
        advice = "seeds, tasks, space and search.configurations may change; for anything else give the sweep another --name"
        raise SweepError([f"{folder} holds another sweep of this name:", *(f"  {line}" for line in lines), advice])


def check_data(results: Iterable[TrialResult], trials: Iterable[Trial], fingerprints: Mapping[str, str]) -> None:
    """Compares the data, a model's GGUF file and the text of `forgetting` that are there now with those of finished trials.

    Args:
        results: those of the state.
        trials: those of the plan, which say the task of a result.
        fingerprints: of the present data, by task; of a GGUF file, by the model's name; of a text, by its name.

    Raises:
        SweepError: the rows of a task have changed, or the file has.
    """
    runs = {trial.key: trial.run for trial in trials}
    tasks = {key: run.task for key, run in runs.items()}
    for result in results:
        model, facts = runs[result.key].model if result.key in runs else "", result.facts
        for name, digest in ((model, facts.get(MODEL_DIGEST)), (facts.get(TEXT, ""), facts.get(TEXT_DIGEST))):
            if digest is not None and fingerprints.get(name, digest) != digest:
                raise SweepError(
                    [
                        f"{name} is not the file that this sweep's finished trials used (its SHA-256 is "
                        f"{fingerprints[name][:12]}, then {digest[:12]})",
                        "give back the file as it was, or start afresh with another --name",
                    ]
                )
        task, before = tasks.get(result.key), result.facts.get("data_fingerprint")
        if task is not None and task in fingerprints and before is not None and fingerprints[task] != before:
            raise SweepError(
                [
                    f"the data of {task} are not those that this sweep's finished trials used (rows hash to "
                    f"{fingerprints[task][:12]}, then {before[:12]})",
                    "give back the data as they were, or start afresh with another --name",
                ]
            )


def _tuning(sweep: Sweep) -> dict[str, Any]:
    """Returns the settings that decide whether a trial only tunes; the record of a trial depends on them."""
    return {"tuning_seeds": list(sweep.seeds) if sweep.tunes else None, "tuned": sorted(sweep.tuned_settings)}


def _plain(sweep: Sweep, name: str) -> Any:
    return sweep.model_dump(mode="json")[name]


def _differences(old: Any, new: Any, path: tuple[str, ...], now: Sweep) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in _differences(old.get(key), new.get(key), (*path, key), now)]
    return [] if old == new else [f"{dotted(path)}: was {shown(old)}, is {shown(new)} ({now.where(path)})"]
