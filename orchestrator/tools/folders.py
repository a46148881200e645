"""Folders that a command writes to: their names, and the rule that nothing is written over."""

from __future__ import annotations

import re
from pathlib import Path


def slug(name: str) -> str:
    """`name` as part of a path or of a model's name: letters and digits of any script, `_` and `-`; never empty."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:80] or "task"


def refuse_full(to: Path) -> None:
    """Checks `--to`. Raises ValueError if it is a file, or a folder with content."""
    if to.exists() and not to.is_dir():
        raise ValueError(f"--to {to} is a file; give a folder that is empty or not there")
    if to.is_dir() and any(to.iterdir()):
        raise ValueError(f"--to {to} is not empty; give another folder, or empty it first: nothing is ever written over")
