"""`python -m craft.store`: lists and removes what is stored (`craft.factors.store`): decompositions and fitted task heads."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open

from craft.factors.store import Store
from craft.words import be_printable, format_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is 2 for a wrong call."""
    be_printable()
    parser = argparse.ArgumentParser(
        prog="python -m craft.store",
        description="Stored decompositions of weights and fitted task heads. They are a cache: what is removed is made again.",
        epilog="The folder is CRAFT_CACHE_DIR (else ~/.cache/craft), its bound CRAFT_CACHE_MAX_BYTES (else 20GB). "
        "Examples: python -m craft.store list; python -m craft.store clear 3fa9",
    )
    parser.add_argument("--dir", type=Path, help="another cache folder")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what is stored, the least recently used first")
    clear = commands.add_parser("clear", help="remove what is stored: all of it, or the keys that begin as given")
    clear.add_argument("keys", nargs="*", help="beginnings of keys, as `list` shows them")
    options = parser.parse_args(arguments)
    store = Store(options.dir)
    return _list(store) if options.command == "list" else _clear(store, options.keys)


def _list(store: Store) -> int:
    console = Console() if sys.stdout.isatty() else Console(width=120)
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
    console.print(f"{len(files)} files, {amount}, in {store.folder}", highlight=False, soft_wrap=True)
    return 0


def _described(path: Path) -> tuple[str, str, str]:
    """Describes the origin of a file: its kind or projection, the shape, the beginning of the weights' hash."""
    try:
        with safe_open(path, framework="pt") as file:
            origin = json.loads((file.metadata() or {}).get("origin", "{}"))
        title = f"head, {origin['kind']}" if "kind" in origin else origin.get("projection", "singular vectors")
        return title, " x ".join(map(str, origin["shape"])), origin["weights"][:8]
    except (SafetensorError, OSError, KeyError, ValueError):
        return "unreadable", "", ""


def _clear(store: Store, keys: Sequence[str]) -> int:
    chosen = [path for path in store.files() if not keys or any(path.stem.startswith(key) for key in keys)]
    unknown = [key for key in keys if not any(path.stem.startswith(key) for path in chosen)]
    if unknown:
        print(f"no stored key begins with {', '.join(unknown)}; `python -m craft.store list` shows them", file=sys.stderr)
        return 2
    freed = sum(path.stat().st_size for path in chosen)
    for path in chosen:
        path.unlink(missing_ok=True)
    for lock_file in () if keys else store.folder.glob("*.lock"):
        with contextlib.suppress(OSError, Timeout), FileLock(lock_file, timeout=0):  # a process that writes now holds its lock
            for torn in store.unfinished(lock_file.stem):
                torn.unlink(missing_ok=True)
            lock_file.unlink(missing_ok=True)
    print(f"{len(chosen)} files removed, {format_bytes(freed)} freed.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
