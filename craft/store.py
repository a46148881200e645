"""`python -m craft.store`: lists, checks and removes what is stored: decompositions of stacks (`craft.factors.store`) and of
single weights (`craft.factors.svd`), and fitted task heads (`craft.trainer.head_start`)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from craft.factors import hosvd, svd
from craft.factors.factor_file import (
    CorruptFactors,
    FactorOrigin,
    key_of,
    read_factors,
    read_facts,
    read_origin,
    read_tensors,
    unfinished,
)
from craft.factors.shelf import Shelf
from craft.words import be_printable, format_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 1 where `verify` found a file that is wrong, 2 for a wrong call."""
    be_printable()
    parser = argparse.ArgumentParser(
        prog="python -m craft.store",
        description="Stored decompositions of model weights. They are a cache: whatever is removed is made again when needed.",
        epilog="The folder is CRAFT_CACHE_DIR (else ~/.cache/craft), its bound CRAFT_CACHE_MAX_BYTES (else 20GB). "
        "Examples: python -m craft.store list; python -m craft.store verify --remove; python -m craft.store clear 3fa9",
    )
    parser.add_argument("--dir", type=Path, help="another cache folder")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what is stored, the least recently used first")
    verify = commands.add_parser("verify", help="read every file whole and check its checksum")
    verify.add_argument("--remove", action="store_true", help="remove the wrong ones")
    clear = commands.add_parser("clear", help="remove stored decompositions: all of them, or those whose key begins as given")
    clear.add_argument("keys", nargs="*", help="beginnings of keys, as `list` shows them")
    options = parser.parse_args(arguments)
    store = Shelf(options.dir)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if options.command == "list":
        return _list(store, console)
    if options.command == "verify":
        return _verify(store, console, options.remove)
    return _clear(store, console, options.keys)


def _list(store: Shelf, console: Console) -> int:
    files = store.files()
    if not files:
        console.print(f"{store.folder} holds no decompositions.", highlight=False, soft_wrap=True)
        return 0
    table = Table(box=None)
    for heading in ("key", "projection", "L x d_out x d_in", "weights", "ranks", "size", "used"):
        table.add_column(heading, no_wrap=True)
    total = 0
    for path in files:
        stat = path.stat()
        total += stat.st_size
        used = _ago(time.time() - stat.st_mtime)
        try:
            row = _described(path)
        except (CorruptFactors, FileNotFoundError):
            row = ("unreadable", "", "", "")
        table.add_row(path.stem[:12], *row, format_bytes(stat.st_size), used)
    console.print(table)
    summary = (
        f"{len(files)} decompositions, {format_bytes(total)} of at most {format_bytes(store.max_bytes)}, in {store.folder}"
    )
    console.print(summary, highlight=False, soft_wrap=True)
    return 0


def _described(path: Path) -> tuple[str, str, str, str]:
    """What the file holds: projection, shape, weights, ranks. Raises as `read_origin` does."""
    origin: svd.SvdOrigin | FactorOrigin
    facts = read_facts(path)
    if "head" in facts:
        head = json.loads(facts["head"])
        return f"head, {head['kind']}", " x ".join(map(str, head["shape"])), head["weights"][:8], f"{head['examples']} examples"
    if "svd" in facts:
        origin, components = svd.read_svd_origin(path)
        name, ranks, now = "singular vectors", f"2 x {components}", svd.ALGORITHM
    else:
        origin, found = read_origin(path)
        name, ranks, now = origin.projection, ", ".join(map(str, found)), hosvd.ALGORITHM
    old = "" if origin.algorithm == now else f" ({origin.algorithm})"
    weights = f"{origin.dtype.removeprefix('torch.')} {origin.weights[:8]}"
    return name + old, " x ".join(map(str, origin.shape)), weights, ranks


def _check(path: Path) -> None:
    """Reads a file whole. Raises CorruptFactors where it is not what its name says, FileNotFoundError where it is gone."""
    facts = read_facts(path)
    if "head" in facts:
        key = key_of(read_tensors(path)[1]["head"])
    else:
        key = svd.read_svd(path)[1].key if "svd" in facts else read_factors(path)[1].key
    if key != path.stem:
        raise CorruptFactors(f"{path} holds the decomposition of other weights than its name says")


def _verify(store: Shelf, console: Console, remove: bool) -> int:
    wrong = 0
    files = store.files()
    for path in files:
        try:
            _check(path)
        except FileNotFoundError:
            continue
        except CorruptFactors as error:
            wrong += 1
            console.print(f"wrong: {error}", highlight=False, soft_wrap=True)
            if remove:
                path.unlink(missing_ok=True)
    fate = "" if not wrong else " and removed" if remove else "; they are made anew when next asked for"
    console.print(f"{len(files)} files checked, {wrong} wrong{fate}.", highlight=False, soft_wrap=True)
    return 1 if wrong else 0


def _clear(store: Shelf, console: Console, keys: Sequence[str]) -> int:
    chosen = [path for path in store.files() if not keys or any(path.stem.startswith(key) for key in keys)]
    unknown = [key for key in keys if not any(path.stem.startswith(key) for path in chosen)]
    if unknown:
        print(f"no stored key begins with {', '.join(unknown)}; `python -m craft.store list` shows them", file=sys.stderr)
        return 2
    freed = 0
    for path in chosen:
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    if not keys:
        _remove_unfinished(store)
    console.print(f"{len(chosen)} decompositions removed, {format_bytes(freed)} freed.", highlight=False, soft_wrap=True)
    return 0


def _remove_unfinished(store: Shelf) -> None:
    """Removes unfinished files and locks of killed writers, but not those of a decomposition that is running."""
    for path in [*unfinished(store.folder), *store.folder.glob("*.lock")]:
        lock_file = store.path(path.name.lstrip(".").split(".")[0]).with_suffix(".lock")
        lock = FileLock(lock_file)
        try:
            with lock.acquire(timeout=0):
                path.unlink(missing_ok=True)
                lock_file.unlink(missing_ok=True)
        except (OSError, Timeout):
            continue


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


if __name__ == "__main__":
    raise SystemExit(main())
