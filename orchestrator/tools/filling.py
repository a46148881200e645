"""Folders that a person names for results: `filled` gives one its whole content or nothing, `is_empty` says whether it may; and
tables as CSV files whose cells no spreadsheet runs as formulas.
"""

from __future__ import annotations

import csv
import errno
import glob
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from craft.disk import replacing
from craft.words import format_bytes

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""How a cell begins that a spreadsheet would run as a formula."""


def write_table(file: Path, rows: Iterable[Mapping[str, Any]], columns: Iterable[str] = ()) -> None:
    """Writes rows, whole or not at all. `columns` come first; others follow in the order in which rows have them."""
    rows = list(rows)
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    with replacing(file) as aside, aside.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(map(_guarded, names))
        table.writerows([_guarded(row.get(name, "")) for name in names] for row in rows)


def _guarded(cell: Any) -> Any:
    """Puts an apostrophe before a text that a spreadsheet would run; numbers stay numbers."""
    if not isinstance(cell, str) or not (cell.lstrip().startswith(_FORMULA) or cell.startswith(("\t", "\r", "\n"))):
        return cell
    try:
        return cell if math.isfinite(float(cell)) else f"'{cell}"
    except ValueError:
        return f"'{cell}"


OF_THE_DISK = "lost+found"
LAST = "README.md"
"""What says that a folder is complete: the model card."""


def is_empty(folder: Path) -> bool:
    """Returns whether a folder has nothing in it, what a killed `filled` left there and what a new disk has aside."""
    begin = _begin(folder.resolve())
    return all(entry.name == OF_THE_DISK or entry.name.startswith(begin) for entry in folder.iterdir())


@contextmanager
def filled(to: Path) -> Iterator[Path]:
    """Gives a folder to write to, whose content `to`, an empty or absent folder, gets if the block ends without an error.

    Where `to` exists (it may be a mounted disk, or the folder that a shell is in) it stays, and gets the content part by part,
    the model card last. The content is written on the same disk, so that no part has to be copied.

    Raises:
        ValueError: the disk is full; nothing of the content stays.
    """
    import psutil

    target = to.resolve()
    begin, place = _begin(target), target if target.is_dir() else target.parent
    for left in place.glob(f"{glob.escape(begin)}*"):
        process = left.name.removeprefix(begin)
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    aside = place / f"{begin}{os.getpid()}"
    try:
        yield aside
        if not target.exists() and aside.exists():
            aside.rename(target)
        for part in sorted(aside.iterdir(), key=lambda part: part.name == LAST) if aside.exists() else ():
            part.rename(target / part.name)
    except Exception as error:
        if not any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT)):
            raise
        shutil.rmtree(aside, ignore_errors=True)
        disks = {disk: shutil.disk_usage(disk).free for disk in (place, Path(tempfile.gettempdir())) if disk.exists()}
        full = min(disks, key=disks.__getitem__)
        raise ValueError(
            f"{full} has no room for what is to be in {to} ({format_bytes(disks[full])} are free): make room there, or write "
            "elsewhere (--to, and TMPDIR for working files)"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _begin(target: Path) -> str:
    return f".{target.name}.{socket.gethostname()}."
