"""Lists and removes what is stored (`craft.factors.store`), decompositions and fitted task heads: `craft-sweeps cache`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open

from craft.factors.store import Store
from craft.words import format_bytes, plural


def list_store(folder: Path | None = None) -> None:
    """Prints what is stored, the least recently used first."""
    store = Store(folder)
    console = Console(emoji=False) if sys.stdout.isatty() else Console(width=120, emoji=False)
    table = Table("key", "of", "shape", "weights", "size", "used", box=None)
    total = 0
    files = store.files()
    for path in files:
        status = path.stat()
        total += status.st_size
        hours = (time.time() - status.st_mtime) / 3600
        used = "just now" if hours < 1 else f"{hours:.0f} hours ago" if hours < 48 else f"{hours / 24:.0f} days ago"
        table.add_row(path.stem[:12], *_described(path), format_bytes(status.st_size), used)
    if files:
        console.print(table)
    amount = f"{format_bytes(total)} of at most {format_bytes(store.max_bytes)}"
    console.print(f"{len(files)} {plural(len(files), 'file')}, {amount}, in {store.folder}", highlight=False, soft_wrap=True)


def _described(path: Path) -> tuple[str, str, str]:
    """Describes the origin of a file: its kind or projection, the shape, the beginning of the weights' hash."""
    try:
        with safe_open(path, framework="pt") as file:
            origin = json.loads((file.metadata() or {}).get("origin", "{}"))
        title = f"head, {origin['kind']}" if "kind" in origin else origin["projection"]
        return title, " x ".join(map(str, origin["shape"])), origin["weights"][:8]
    except (SafetensorError, OSError, KeyError, ValueError):
        return "unreadable", "", ""


def clear_store(folder: Path | None = None, key: str = "") -> None:
    """Removes the files whose keys begin with `key`, and prints how many they were."""
    store = Store(folder)
    chosen = [path for path in store.files() if path.stem.startswith(key)]
    if key and not chosen:
        raise ValueError(f"no stored key begins with {key}; `craft-sweeps cache` shows them")
    freed = sum(path.stat().st_size for path in chosen)
    for path in chosen:
        path.unlink(missing_ok=True)
    for lock_file in () if key else store.folder.glob("*.lock"):
        with contextlib.suppress(OSError, Timeout), FileLock(lock_file, timeout=0):  # a process that writes now holds its lock
            for torn in store.unfinished(lock_file.stem):
                torn.unlink(missing_ok=True)
            lock_file.unlink(missing_ok=True)
    print(f"{len(chosen)} {plural(len(chosen), 'file')} removed, {format_bytes(freed)} freed.")
