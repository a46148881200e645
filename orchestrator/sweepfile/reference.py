"""Writes docs/sweep-file.md, every key of a sweep file, and docs/sweep-file.schema.json, its schema for editors.

    python -m orchestrator.sweepfile.reference             write both files
    python -m orchestrator.sweepfile.reference --check     exit with 1 if they are not what the code says

Both come from the models that check a sweep file: `schema` describes them, and `reference_page` puts that into tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.sweepfile.reference_page import SCHEMA_FILE, page
from orchestrator.sweepfile.schema import sweep_schema

DOCS = Path(__file__).parents[2] / "docs"
PAGE_FILE = "sweep-file.md"
WIDTH = 120


def text(value: Any, indent: str = "") -> str:
    """`value` as JSON; whatever fits on one line stays on one."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(short) <= WIDTH or not isinstance(value, dict | list) or not value:
        return short
    inner = f"{indent}  "
    if isinstance(value, list):
        lines = [text(one, inner) for one in value]
    else:
        lines = [f"{json.dumps(key)}: {text(one, inner)}" for key, one in value.items()]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"


def files() -> dict[Path, str]:
    """What the two files hold, by their paths."""
    schema = sweep_schema()
    return {DOCS / PAGE_FILE: page(schema), DOCS / SCHEMA_FILE: text(schema) + "\n"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    flags = argparse.ArgumentParser(prog="python -m orchestrator.sweepfile.reference", description=__doc__.partition("\n")[0])
    flags.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs from the code")
    check = flags.parse_args(arguments).check
    if not DOCS.is_dir():
        print(f"{DOCS}: there is no such folder; this command works in a checkout of the project", file=sys.stderr)
        return 2
    stale = [path for path, content in files().items() if not path.exists() or path.read_text(encoding="utf-8") != content]
    for path in stale:
        if check:
            print(f"{path} is not what the code says; run python -m orchestrator.sweepfile.reference", file=sys.stderr)
        else:
            path.write_text(files()[path], encoding="utf-8")
            print(f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
