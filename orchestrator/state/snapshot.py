"""A snapshot of a log's state next to the log, so that a reader folds only what is new since the last reader.

The snapshot says of how many bytes of the log it is, and has their checksum: a log that was changed by hand, or restored, is
folded from its start again. So is one whose snapshot was written by another version of this folder's code.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from craft.disk import replacing
from orchestrator.state.state import State

WORTH_BYTES = 1_000_000
"""So much of a log takes longer to fold than to read back."""
BLOCK = 1 << 20
HERE = Path(__file__).parent


def load_snapshot(log: Path) -> tuple[State, int]:
    """Returns the state after the first bytes of the log, and how many these are; an empty state and 0 without a snapshot."""
    with suppress(OSError, ValueError, KeyError, TypeError), _place(log).open("rb") as stream:
        head = json.loads(stream.readline())
        if head["code"] == code_digest(HERE) and head["crc32"] == _checksum(log, head["bytes"]):
            return _adapter().validate_json(stream.read()), int(head["bytes"])
    return State(), 0


def save_snapshot(log: Path, state: State, end: int) -> None:
    """Writes the state after the log's first `end` bytes, if the folder may be written."""
    head = json.dumps({"code": code_digest(HERE), "bytes": end, "crc32": _checksum(log, end)})
    with suppress(OSError), replacing(_place(log)) as aside:
        plain = _adapter().dump_python(state)  # `dump_json` would write null for NaN
        aside.write_text(f"{head}\n{json.dumps(plain, default=list)}", encoding="utf-8")


def _place(log: Path) -> Path:
    return log.with_name(f".{log.stem}.state")


@cache
def _adapter() -> TypeAdapter[State]:
    return TypeAdapter(State)


@cache
def code_digest(folder: Path) -> str:
    """Returns a digest of the code in a folder: what other code has computed may be different."""
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _checksum(log: Path, end: int) -> int:
    """Returns the checksum of the log's first `end` bytes; -1 if it has fewer."""
    total, remaining = 0, end
    with log.open("rb") as stream:
        while remaining and (block := stream.read(min(BLOCK, remaining))):
            total, remaining = zlib.crc32(block, total), remaining - len(block)
    return -1 if remaining else total
