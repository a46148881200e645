"""Tasks made of the user's own files: a row of TASKS from a `data.custom` block of the sweep file.

    data:
      custom:
        tickets: {train: tickets.csv, text: [subject, body], label: queue, metric: macro_f1}
        helpdesk: {kind: generation, train: chat.jsonl, prompt: question, response: answer}     (craft.tasks.instructions)
    tasks: [custom/tickets]

The training file is opened when the row is made, because the number of classes decides the size of the head: a missing file
or column is thus found while the sweep file is checked. Without a validation file a seeded tenth of the training rows is what
gets reported.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from craft.settings import CustomTask, DataSettings
from craft.tasks import instructions
from craft.tasks.files import DataError, Rows, read_rows
from craft.tasks.rows import class_index, fingerprint, label_name, to_dataset
from craft.tasks.task import RawData, Task

_REPORTED_SHARE = 0.1
_REPORTED_SEED = 20260118  # not the search split's: the two cuts must be drawn apart
_MOST_CLASSES = 1000


def row(name: str, given: CustomTask) -> Task:
    """The task `custom/NAME`."""
    from craft.tasks.metrics import METRICS

    rows = _read(given.train, _stamp(given.train))
    words = given.kind == "generation"
    label = given.label or ""
    for column in instructions.columns(given) if words else (*given.text, label):
        rows.column(column)
    labels = _labels(given, rows) if given.kind == "classification" else ()
    usual: tuple[str, ...] = instructions.METRICS if words else ("pearson", "spearman")
    if given.kind == "classification":
        usual = ("accuracy", "macro_f1", "matthews") if len(labels) > 2 else ("accuracy", "f1", "macro_f1", "matthews")
    if given.metric is not None and given.metric not in usual:
        known = "" if given.metric in METRICS or given.metric in instructions.METRICS else "unknown "
        raise ValueError(
            f"data.custom.{name}.metric: {known}metric {given.metric!r} does not fit; allowed are: {', '.join(usual)}"
        )
    if given.metric == "chrf" and find_spec("sacrebleu") is None:
        raise ValueError(f"data.custom.{name}.metric: chrf is computed by sacrebleu: pip install 'craft-sweeps[chrf]'")
    return Task(
        f"custom/{name}", f"{name} ({Path(given.train).name})", given.kind, given.text, label, labels, usual,
        given.metric or usual[0], load, groups=instructions.same_opening if words else None,
    )  # fmt: skip


def load(task: Task, data: DataSettings) -> RawData:
    """The user's rows, checked cell by cell. Raises DataError with file, row and column."""
    from craft.tasks.splits import carve

    given = data.custom[task.name.removeprefix("custom/")]
    parts = [given.train] if given.validation is None else [given.train, given.validation]
    tables = [_read(part, _stamp(part)) for part in parts]
    named = given.labels is not None
    splits = [
        instructions.to_dataset(table, given)
        if task.kind == "generation"
        else to_dataset(table, text=task.text, label=task.label, labels=task.labels, positions=named)
        for table in tables
    ]
    whole = fingerprint(splits)
    if given.validation is None:
        strata = splits[0]["label"][:] if task.labels else [None] * len(splits[0])
        groups = None if task.groups is None else task.groups(splits[0]["text"][:])
        kept, apart = carve(strata, _REPORTED_SHARE, _REPORTED_SEED, groups)
        if not kept or not apart:
            raise DataError(f"{given.train}: {len(strata)} rows are too few to set a tenth apart; name a validation file")
        splits = [splits[0].select(kept), splits[0].select(apart)]
    return RawData(splits[0], {"": splits[1]}, whole, tuple(Path(part).expanduser() for part in parts))


def _labels(given: CustomTask, rows: Rows) -> tuple[str, ...]:
    assert given.label is not None, "checked with the settings"
    cells = rows.column(given.label)
    if given.labels is not None:
        if len(given.labels) < 2 or len(set(given.labels)) < len(given.labels):
            raise DataError(f"labels: {', '.join(given.labels)}: two or more different names are needed")
        for at, cell in enumerate(cells):
            class_index(cell, given.labels, rows, at, given.label, positions=True)
        return given.labels
    names = set()
    for at, cell in enumerate(cells):
        name = label_name(cell)
        if name is None:
            raise DataError(f"{rows.place(at)}: column {given.label!r} holds {cell!r}; a label is expected")
        names.add(name)
    if not 2 <= len(names) <= _MOST_CLASSES:
        raise DataError(
            f"{rows.source}: column {given.label!r} holds {len(names)} different labels; classification needs 2 to "
            f"{_MOST_CLASSES}. For numbers on a scale set kind: regression"
        )
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(sorted(names))


@lru_cache(maxsize=8)
def _read(path: str, _stamped: tuple[int, int] | None) -> Rows:
    return read_rows(path)


def _stamp(path: str) -> tuple[int, int] | None:
    # Part of the cache's key: a file that is written anew is read anew.
    place = Path(path).expanduser()
    return (place.stat().st_mtime_ns, place.stat().st_size) if place.is_file() else None
