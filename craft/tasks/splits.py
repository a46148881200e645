"""A task's data under a protocol: what a run trains on, what selection may see, what its score is read from.

    honest      train ──┬── train (1 - search_fraction)      search: carved from train, seeded, the same for every trial
                        └── search (search_fraction)          reported: the public dev set, scored once, at the end
                            whole groups, where the task's rows have them (`data.search_groups`)
    customary   train ───── train                             search = reported = the public dev set

The seed of every cut is a constant: trials that differ in method or seed see the very same examples, so their scores are
paired. Loaded data stay in the process for the trials that follow, as long as the files behind them do not change.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from craft.settings import DataSettings, Protocol
from craft.tasks.files import DataError
from craft.tasks.rows import numbered
from craft.tasks.task import RawData, Task

if TYPE_CHECKING:
    from datasets import Dataset

SPLIT_SEED = 20260117
_KEPT = 16


@dataclass(frozen=True)
class Splits:
    """Datasets with the columns `text`, `text_pair` (for pairs) and `label`. Trials share them and must not change them.

    `reported` maps a suffix (`""`, or MNLI's `_matched` and `_mismatched`) to its rows. `fingerprint` is that of the whole
    published data, before any cut.
    """

    train: Dataset
    search: Dataset
    reported: Mapping[str, Dataset]
    fingerprint: str


_loaded: OrderedDict[tuple[Task, str], tuple[RawData, tuple[object, ...]]] = OrderedDict()
_grouped: dict[str, Sequence[int]] = {}
_lock = Lock()


def load_splits(
    task: Task,
    data: DataSettings,
    *,
    protocol: Protocol = "honest",
    train_examples: int | None = None,
    eval_examples: int | None = None,
    search_examples: int | None = None,
) -> Splits:
    """The splits of `task` under `protocol`.

    Args:
        train_examples: train on a seeded sample of this size; a smaller sample is the beginning of a larger one.
        eval_examples: the same for the search split and for each reported split.
        search_examples: for the search split alone; `eval_examples` if None.
    """
    raw = _load(task, data)
    train = raw.train
    if protocol == "honest":
        groups = _groups(task, raw) if data.search_groups else None
        kept, apart = carve(_strata(task, train), data.search_fraction, SPLIT_SEED, groups)
        if not kept or not apart:
            raise DataError(f"{task.name}: {len(train)} training rows cannot be split into a train and a search part")
        train, search = raw.train.select(kept), raw.train.select(apart)
    else:
        search = _joined(list(raw.reported.values()))
    searched = eval_examples if search_examples is None else search_examples
    reported = {suffix: cut(split, eval_examples) for suffix, split in raw.reported.items()}
    same = protocol == "customary" and len(reported) == 1 and searched == eval_examples
    found = next(iter(reported.values())) if same else cut(search, searched)
    return Splits(cut(train, train_examples), found, reported, raw.fingerprint)


def carve(
    strata: Sequence[object], fraction: float, seed: int, groups: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Row numbers (kept, apart), both in order, with `fraction` of every stratum apart; seeded.

    A stratum of two or more rows gives at least one row to each side; a single row is kept. With `groups`, which give for each
    row the row whose group and whose stratum it is in, a group is on one side, and a stratum's share is at most `fraction`.
    """
    units: dict[object, dict[int, list[int]]] = {}
    for row in range(len(strata)):
        group = row if groups is None else groups[row]
        units.setdefault(strata[group], {}).setdefault(group, []).append(row)
    draw = random.Random(seed)
    apart: set[int] = set()
    for stratum in units.values():
        drawn, rows = list(stratum.values()), sum(map(len, stratum.values()))
        draw.shuffle(drawn)
        left = min(max(1, math.floor(fraction * rows + 0.5)), rows - 1)
        for unit in drawn:
            if len(unit) <= left:
                apart.update(unit)
                left -= len(unit)
    return [row for row in range(len(strata)) if row not in apart], sorted(apart)


def cut(split: Dataset, examples: int | None) -> Dataset:
    """A seeded sample of `examples` rows, a beginning of every larger one; the split itself if it has no more."""
    if examples is None or examples >= len(split):
        return split
    order = list(range(len(split)))
    random.Random(SPLIT_SEED).shuffle(order)
    return split.select(order[:examples])


def _strata(task: Task, split: Dataset) -> Sequence[object]:
    column = {"classification": "label", "generation": "family"}.get(task.kind)
    return split[column][:] if column in split.column_names else [None] * len(split)


def _groups(task: Task, raw: RawData) -> Sequence[int] | None:
    """The groups of the training rows, remembered in this process; None if each row is one."""
    if task.groups is None:
        return None
    with _lock:
        if raw.fingerprint not in _grouped:
            _grouped.clear()
            _grouped[raw.fingerprint] = task.groups(raw.train["text"][:])
        return _grouped[raw.fingerprint]


def _joined(splits: list[Dataset]) -> Dataset:
    from datasets import concatenate_datasets

    return splits[0] if len(splits) == 1 else concatenate_datasets(splits)


def _load(task: Task, data: DataSettings) -> RawData:
    """`task.load`, remembered in this process while the files it read keep their size and time of change."""
    key = (task, data.model_dump_json())
    with _lock:
        if key in _loaded:
            raw, stamps = _loaded[key]
            if stamps == _stamps(raw.files):
                _loaded.move_to_end(key)
                return raw
        raw = task.load(task, data)
        raw = replace(raw, reported={suffix: numbered(split) for suffix, split in raw.reported.items()})
        _loaded[key] = (raw, _stamps(raw.files))
        while len(_loaded) > _KEPT:
            _loaded.popitem(last=False)
        return raw


def _stamps(files: Sequence[Path]) -> tuple[object, ...]:
    return tuple((path, path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else path for path in files)
