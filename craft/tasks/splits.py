"""A task's data under a protocol: what a run trains on, what selection may see, what its score is read from.

    honest      train ──┬── train (1 - search_fraction)      search: carved from train, seeded, the same for every trial
                        └── search (search_fraction)          reported: the public dev set, scored once, at the end
                            whole groups: equal texts, and what else belongs together (`data.search_groups`);
                            of SST-2's phrases the whole sentences, which are what the dev set has
    customary   train ───── train                             search = reported = the public dev set

The seed of every cut is a constant: trials that differ in method or seed see the very same examples, so their scores are
paired. Loaded data stay in the process for the trials that follow, as long as the files behind them do not change.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from craft.settings import DataSettings, Protocol
from craft.tasks.files import DataError
from craft.tasks.hub_splits import file_stamp
from craft.tasks.rows import numbered
from craft.tasks.task import RawData, Task

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")
SPLIT_SEED = 20260117
_LAST = 16


@dataclass(frozen=True)
class Splits:
    """Datasets with the columns `text`, `text_pair` (for pairs) and `label`. Trials share them and must not change them.

    `reported` maps a suffix (`""`, or MNLI's `_matched` and `_mismatched`) to its rows. `fingerprint` is that of the whole
    published data, before any cut. `seen` counts search rows that are training rows too, by their texts, and
    reported rows that are one of these.
    """

    train: Dataset
    search: Dataset
    reported: Mapping[str, Dataset]
    fingerprint: str
    seen: Mapping[str, int]

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores must know of these rows."""
        counts = {"search": len(self.search), "reported": sum(map(len, self.reported.values()))}
        return [
            f"{count:,} of {counts[name]:,} {name} rows are training rows too (equal texts): their score may be learnt by heart"
            for name, count in self.seen.items()
            if count
        ]


_computed: dict[str, OrderedDict[tuple[object, ...], Any]] = {}


def load_splits(
    task: Task,
    data: DataSettings,
    *,
    protocol: Protocol = "honest",
    train_examples: int | None = None,
    eval_examples: int | None = None,
    search_examples: int | None = None,
) -> Splits:
    """Loads the splits of a task. Training rows, and each split that is scored, are cut to a seeded sample, which is the
    beginning of every larger one."""
    raw = load_raw(task, data)
    cuts = train_examples, eval_examples, eval_examples if search_examples is None else search_examples
    key = ("splits", task, str(data), raw.fingerprint, protocol, *cuts)
    return remembered(key, lambda: _splits(task, data, raw, protocol, cuts))


def _splits(task: Task, data: DataSettings, raw: RawData, protocol: Protocol, cuts: tuple[int | None, ...]) -> Splits:
    from datasets import concatenate_datasets

    train = raw.train
    if protocol == "honest":
        key = ("groups", task, str(data), raw.fingerprint)
        groups = remembered(key, lambda: groups_of(task, train)) if data.search_groups else None
        train, search = set_apart(task, train, data.search_fraction, SPLIT_SEED, groups, "search")
        if task.chooses_by_holders and groups is not None:
            search = search.select([row for row, holder in enumerate(groups_of(task, search)) if row == holder])
    else:
        search = concatenate_datasets(list(raw.reported.values()))
    train, reported = (
        take_sample(train, cuts[0]),
        {suffix: take_sample(split, cuts[1]) for suffix, split in raw.reported.items()},
    )
    same = protocol == "customary" and len(reported) == 1 and cuts[1] == cuts[2]
    search = next(iter(reported.values())) if same else take_sample(search, cuts[2])
    taught, searched = {*read_texts(task, train)}, read_texts(task, search) if protocol == "honest" else []
    seen = {"search": sum(texts in taught for texts in searched)}
    taught |= {*searched}
    seen["reported"] = count_seen(task, reported.values(), taught)
    return Splits(train, search, reported, raw.fingerprint, seen)


def set_apart(
    task: Task, rows: Dataset, fraction: float, seed: int, groups: Sequence[int] | None, part: str
) -> tuple[Dataset, Dataset]:
    """Separates rows that train and a `fraction` of `rows` that is scored, by `carve`. Raises DataError, which names `part`."""
    stay, apart = carve(_strata(task, rows), fraction, seed, groups)
    if not apart and task.suite != "custom":  # published data stay as they are; `Splits.notes` says which rows are seen
        stay, apart = carve(_strata(task, rows), fraction, seed)
    if stay and apart:
        return rows.select(stay), rows.select(apart)
    different, texts = len(set(groups or range(len(rows)))), "prompts" if task.kind == "generation" else "texts"
    if different == len(rows):
        raise DataError(
            f"{task.name}: {len(rows)} training rows cannot be split into a train and a {part} part; give more rows"
        )
    same = f"all {len(rows)} {texts} are equal" if different == 1 else f"{len(rows)} rows have {different} different {texts}"
    raise DataError(
        f"{task.name}: {same}, and equal {texts} are either learnt or scored, so no {part} part can be held out. If another "
        "column tells them apart, name it too, as in prompt: [instruction, input]"
    )


def carve(
    strata: Sequence[object], fraction: float, seed: int, groups: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Cuts row numbers into those that stay and a seeded `fraction` of every stratum, both in order.

    A stratum of two or more rows gives at least one row to each side; a single row is kept. With `groups`, which give for each
    row the row whose group and whose stratum it is in, a group is on one side, and a stratum's share is at most `fraction`, or
    its smallest group.
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
        remaining_rows = min(max(1, math.floor(fraction * rows + 0.5)), rows - 1)
        if len(drawn) > 1 and all(len(unit) > remaining_rows for unit in drawn):
            remaining_rows = min(map(len, drawn))
        for unit in drawn:
            if len(unit) <= remaining_rows:
                apart.update(unit)
                remaining_rows -= len(unit)
    return [row for row in range(len(strata)) if row not in apart], sorted(apart)


def take_sample(split: Dataset, examples: int | None) -> Dataset:
    """Takes a seeded sample of `examples` rows, a beginning of every larger one."""
    if examples is None or examples >= len(split):
        return split
    order = list(range(len(split)))
    random.Random(SPLIT_SEED).shuffle(order)
    return split.select(order[:examples])


def _strata(task: Task, split: Dataset) -> Sequence[object]:
    column = {"classification": "label", "generation": "family"}.get(task.kind)
    return split[column][:] if column in split.column_names else [None] * len(split)


def groups_of(task: Task, rows: Dataset) -> Sequence[int]:
    if task.groups is not None:
        return task.groups(rows["text"][:])
    first: dict[tuple[str, ...], int] = {}
    return [first.setdefault(meaning, row) for row, meaning in enumerate(read_texts(task, rows))]


def read_texts(task: Task, rows: Dataset) -> list[tuple[str, ...]]:
    """Returns each row's texts, folded so that rows that a model cannot tell apart are equal."""
    columns = [rows[name][:] for name in ("text", "text_pair", "input") if name in rows.column_names]
    return [tuple(map(task.meaning, texts)) for texts in zip(*columns, strict=True)]


def count_seen(task: Task, splits: Iterable[Dataset], taught: Collection[tuple[str, ...]]) -> int:
    return sum(texts in taught for split in splits for texts in read_texts(task, split))


def remembered(key: tuple[object, ...], compute: Callable[[], T]) -> T:
    """Returns the result of `compute` for `key`, from this process's memory if it is among the last few of its first word."""
    results = _computed.setdefault(str(key[0]), OrderedDict())
    value: T = results[key] if key in results else compute()
    results[key] = value
    results.move_to_end(key)
    if len(results) > _LAST:
        results.popitem(last=False)
    return value


def load_raw(task: Task, data: DataSettings) -> RawData:
    """Calls `task.load`, or takes its result from memory while the files it read keep their size and time of change."""

    def load() -> tuple[RawData, list[object]]:
        raw = task.load(task, data)
        raw = replace(raw, reported={suffix: numbered(split) for suffix, split in raw.reported.items()})
        return raw, [*map(file_stamp, raw.files)]

    key = ("raw", task, data.model_dump_json())
    raw, stamps = remembered(key, load)
    if stamps != [*map(file_stamp, raw.files)]:
        _computed["raw"].pop(key)
        raw, _ = remembered(key, load)
    return raw
