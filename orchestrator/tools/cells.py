"""Tables as CSV files whose cells no spreadsheet runs as formulas."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from craft.disk import replacing

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
