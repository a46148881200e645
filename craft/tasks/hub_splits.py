"""Splits of datasets: what the datasets library reads, from the hub, its cache or a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from craft.settings import HubSplit
from craft.tasks.files import DataError, DataUnavailable, Rows, explain_column


def read_split(source: HubSplit, advice: str = "", *, names: bool = True) -> Rows:
    """Reads a split by the datasets library, which runs no script of a dataset; classes have their names, or their numbers.

    Raises DataUnavailable if it is not there, or not in the cache and the hub cannot be asked (`advice` is another way out);
    DataError if it has no rows.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, ReadInstruction, concatenate_datasets, load_dataset, load_from_disk

    place = Path(source.path).expanduser()
    split, part, _ = source.split.partition("[")
    try:
        if (place / "state.json").is_file() or (place / "dataset_dict.json").is_file():  # what `save_to_disk` writes
            stored = load_from_disk(str(place))
            loaded = stored[split] if isinstance(stored, DatasetDict) else stored
            if part:
                pieces = ReadInstruction.from_spec(source.split).to_absolute({split: len(loaded)})
                loaded = concatenate_datasets([loaded.select(range(piece.from_, piece.to)) for piece in pieces])
        else:
            path = str(place) if place.is_dir() else source.path
            loaded = load_dataset(path, source.name, split=source.split, revision=source.revision)
    # The type of the error depends on the network and on the versions of three libraries (requests, httpx, fsspec).
    except Exception as error:
        raise DataUnavailable(_describe_absence(source, place, error) + advice) from error
    assert isinstance(loaded, Dataset), "one split is asked for"
    columns = {}
    for name, feature in loaded.features.items():
        if _holds_media(feature):
            continue
        with explain_column(source, name):
            cells = loaded[name][:]
        if names and isinstance(feature, ClassLabel):
            cells = [None if cell is None or cell < 0 else feature.names[cell] for cell in cells]
        columns[name] = cells
    rows = Rows(str(source), columns)
    if not len(rows):
        raise DataError(f"{source} holds no rows; at least one is needed")
    return rows


def _holds_media(feature: Any) -> bool:
    """Returns whether a column holds images, sounds or the like, which no task reads and libraries of their own decode."""
    from datasets import Json

    parts = feature.values() if isinstance(feature, dict) else [feature.feature] if hasattr(feature, "feature") else []
    return any(map(_holds_media, parts)) or (hasattr(feature, "decode_example") and not isinstance(feature, Json))


def is_offline() -> bool:
    """Returns whether HF_HUB_OFFLINE keeps the libraries from asking the hub, by the values that they take for yes."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _describe_absence(source: HubSplit, place: Path, error: Exception) -> str:
    why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if place.is_dir():
        return f"{source}: the datasets library cannot read it from the folder {place} ({why})"
    if not is_offline():
        return f"{source}: cannot be read from the Hugging Face hub ({why})"
    arguments = ", ".join([repr(source.path), *([repr(source.name)] if source.name else [])])
    command = f'python -c "import datasets; datasets.load_dataset({arguments})"'
    return (
        f"{source}: HF_HUB_OFFLINE is set, and it is not in the cache of the datasets library ({why}). Fetch it where the hub "
        f"is in reach, {command}, and bring the folder HF_DATASETS_CACHE (~/.cache/huggingface/datasets) here"
    )


def file_stamp(file: str | Path | HubSplit) -> tuple[int, int] | None:
    """Returns what a file changes when it is written again: its time and size; None where there is no file."""
    path = Path(file.path if isinstance(file, HubSplit) else file).expanduser()
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
