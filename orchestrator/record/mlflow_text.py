"""Names, values and descriptions as MLflow takes and shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

PARAM_LIMIT, TAG_LIMIT, NAME_LIMIT = 6000, 8000, 250


def with_pictures(text: str, run_id: str, pictures: Iterable[str]) -> str:
    """A description with pictures under it, by the addresses under which MLflow serves artifacts.

    MLflow's page shows no picture whose data stand in its address.
    """
    shown = [f"![{name}](get-artifact?path={quote(name)}&run_uuid={run_id})" for name in pictures]
    return "\n\n".join([cut(text, TAG_LIMIT - sum(len(one) + 2 for one in shown)), *shown])


def named(method: str, label: str) -> str:
    return label if not method or label.lower().startswith(method.lower()) else f"{method} {label}"


def stored_name(name: str) -> str:
    """`name` as MLflow takes it: other characters become `_`, and no part of the path is empty, `.` or `..`."""
    parts = [part for part in re.sub(r"[^\w.\- :/]", "_", name).split("/") if part.strip(". ")]
    return "/".join(parts)[:NAME_LIMIT] or "_"


def cut(value: str, limit: int) -> str:
    value = value.replace("\x00", "�")
    if len(value) <= limit:
        return value
    note = f" … (cut, {len(value)} characters)"
    return value[: limit - len(note)] + note
