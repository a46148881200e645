"""The rules of `--resume`: what may change in a sweep file between two sessions, and what may not.

A trial is named by its content, so finished work is recognised wherever it stands in the file. Three kinds of settings follow:

- Model, data, protocol, training settings, measurements, objectives and how configurations are drawn give all numbers of a
  sweep one meaning. They may not change under a name.
- So does what is tuned, with which seeds: a trial is on record as one that tunes or as one that is reported.
- Seeds, tasks, blocks, values and constraints say what the sweep covers. They may change: only new trials run, and results that
  the file no longer asks for stay in the log but not on the front.
- The place of a model, of data and of a text on this machine means nothing; what they hold may not change.
- Resources, scheduler, budget, tracking store and storage say how it runs. They are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from craft.plugins import LOADED
from craft.results import MODEL_DIGEST, TEXT_DIGEST
from craft.settings import paths_to_read, without_places
from craft.words import list_some, nearest
from orchestrator.record.folder import SweepFolder, sweeps_in
from orchestrator.record.log import read_state
from orchestrator.record.state import Entry, State
from orchestrator.sweepfile.load import read_effective
from orchestrator.sweepfile.mistakes import SweepError, YamlPath, dotted, shown
from orchestrator.sweepfile.sweep import Sweep

MEANING = (
    *("name", "model", "revision", "projection_map", "protocol", "objectives"),
    *("training", "task_training", "data", "measure"),
)
DRAWING = ("algorithm", "seed")


def contradictions(recorded: Sweep, sweep: Sweep) -> list[str]:
    """Returns the differences that a resume does not allow, each as `path: was X, is Y`."""
    lines = []
    # Files and folders may have moved; `check_data` compares what they hold.
    plain = [without_places(_plain(file)) for file in (recorded, sweep)]
    for name in MEANING:
        old, new = plain[0][name], plain[1][name]
        if name == "data":
            # The user's own tasks may be added to, but none may change.
            new = {**new, "custom": {key: task for key, task in new["custom"].items() if key in old["custom"]}}
            old, new = ({**data, "root": None} for data in (old, new))
        lines += describe_differences(old, new, sweep, (name,))
    lines += describe_differences(_tuning(recorded), _tuning(sweep), sweep)
    for name in DRAWING:
        old, new = getattr(recorded.search, name), getattr(sweep.search, name)
        if recorded.search.row.samples or name == "algorithm":
            lines += describe_differences(old, new, sweep, ("search", name))
    return lines


def recorded_sweep(folder: Path) -> Sweep | None:
    stored = SweepFolder(folder).effective
    if not stored.exists():
        return None
    try:
        return read_effective(yaml.safe_load(stored.read_text(encoding="utf-8")))
    except (SweepError, yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:
        lines = getattr(error, "lines", [" ".join(str(error).split())])
        raise SweepError([f"{stored} is what this sweep ran with, but it cannot be read any more:", *lines]) from None


def check_resume(folder: Path, sweep: Sweep, recorded: Sweep | None = None) -> None:
    """Raises SweepError if `sweep` is another one than that of the effective file in `folder`, or `recorded`."""
    recorded = recorded or recorded_sweep(folder)
    if recorded is not None and (lines := contradictions(recorded, sweep)):
        advice = "seeds, tasks, space and search.configurations may change; for anything else give the sweep another --name"
        raise SweepError([f"{folder} holds another sweep of this name:", *(f"  {line}" for line in lines), advice])


def check_name(folder: Path, state: State, name: str | None = None) -> None:
    if name is None:
        effective = SweepFolder(folder).effective
        lines = effective.read_text(encoding="utf-8").splitlines() if effective.is_file() else []
        name = next((line.partition(": ")[2].strip("'\"") for line in lines if line.startswith("name: ")), state.name)
    if state.name not in ("", name):
        log = SweepFolder(folder).record
        raise SweepError([f"{log} is the log of the sweep {shown(state.name)} and not of {shown(name)}: put back its own log"])


def check_begun(sweep: Sweep, problem: str, advice: str) -> None:
    folder = SweepFolder(sweep.folder.absolute())
    if not (folder.effective.exists() or folder.record.exists()):
        storage = folder.path.parent
        names = sweeps_in(storage)
        has = f"it has {list_some(names, 20) or 'no sweep'}.{nearest(sweep.name, names)}"
        raise SweepError([f"{problem} {storage}; {has}", advice])


def copied_from(folder: Path, state: State) -> Path | None:
    """Returns the folder of the sweep of which this one is a copy; None if it is where it began, or was moved."""
    place = Path(state.started.folder) if state.started and state.started.folder else folder
    log = SweepFolder(place).record
    try:
        if log.samefile(SweepFolder(folder).record) or read_state(log).sweep_id != state.sweep_id:
            return None
    except (OSError, ValueError):  # nothing is there any more, or nothing that could be continued
        return None
    return place


def has_moved(recorded: Sweep, sweep: Sweep) -> bool:
    """Returns whether a file or folder that trials read has another place than it had."""
    old, new = ({path: section[path[-1]] for path, section in paths_to_read(_plain(file))} for file in (recorded, sweep))
    return any(place != old.get(path, place) for path, place in new.items())


def recorded_digests(sweep: Sweep, entries: Iterable[Entry]) -> dict[str, str]:
    """Returns the digests of what finished trials have read: the model, a text and the rows of tasks, by their present names.

    Where trials differ, as those of a record that two models share, it is the digest of the last one.
    """
    return {name: digest for entry in entries for name, digest, _ in _read_by(sweep, entry)}


def check_data(sweep: Sweep, entries: Iterable[Entry], digests: Mapping[str, str]) -> None:
    """Compares the base model, the data and the text of `forgetting` that are there now with those of finished trials.

    Args:
        digests: of what is there now: of the data by task, of the model and of a text by their names.
    """
    for entry in entries:
        for name, earlier, subject in _read_by(sweep, entry):
            if (digest := digests.get(name, earlier)) != earlier:
                raise SweepError(
                    [
                        f"{subject} not what this sweep's finished trials used (SHA-256 {digest[:12]}, then {earlier[:12]})",
                        "put back what it was, or begin a new sweep with another --name",
                    ]
                )


def _read_by(sweep: Sweep, entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Yields what a finished trial has read: its name, its digest among the facts of the result, and a sentence's beginning."""
    task, text, facts = entry.trial.task, sweep.measure.forgetting, entry.finished.facts if entry.finished else {}
    read = [
        (sweep.model, MODEL_DIGEST, f"model {sweep.model}: its weights, configuration or tokenizer are"),
        (task, "data_fingerprint", f"the data of {task} are"),
        *([(text.name, TEXT_DIGEST, f"measure.forgetting: the text {text.name} is")] if text else []),
    ]
    yield from ((name, str(facts[fact]), subject) for name, fact, subject in read if facts.get(fact))


def _tuning(sweep: Sweep) -> dict[str, Any]:
    """Returns the settings that decide whether a trial only tunes; the record of a trial depends on them."""
    return {"tuning_seeds": list(sweep.seeds) if sweep.tunes else None, "tuned": sorted(sweep.tuned_settings)}


def _plain(sweep: Sweep) -> dict[str, Any]:
    return sweep.model_dump(mode="json")


def describe_differences(recorded: Any, present: Any, sweep: Sweep, path: YamlPath = ()) -> list[str]:
    """Returns the differences of two plain values as `path: was X, is Y (file:line)`."""
    changes = differences(recorded, present, path)
    return [f"{dotted(place)}: was {shown(old)}, is {shown(new)} ({sweep.where(place)})" for place, old, new in changes]


def differences(old: Any, new: Any, path: YamlPath = ()) -> Iterator[tuple[YamlPath, Any, Any]]:
    """Yields the places where two plain values differ, as deep as both are mappings or lists of mappings: path, old and new
    value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key), new.get(key), (*path, str(key)))
    elif all(isinstance(value, list) and value and all(isinstance(item, dict) for item in value) for value in (old, new)):
        for index, (item, other) in enumerate(zip_longest(old, new)):
            yield from differences(item, other, (*path, index))
    elif old != new:
        yield path, old, new


def changed_plugins(state: State) -> list[str]:
    """Returns a sentence for each plugin that is another one than in the last session."""
    recorded = state.started.manifest.get("plugins", {}) if state.started is not None else {}
    return [
        f"plugin {name} is another one than in the last session: what it computes may differ between trials before and now"
        for name, plugin in LOADED.items()
        if recorded.get(name, plugin.record) != plugin.record
    ]
