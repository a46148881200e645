"""Stdout as programs read it: a report alone, and an end of the command if nobody can read it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

_report: TextIO | None = None


def be_printable() -> None:
    """Makes stdout replace characters that its encoding lacks (a Latin-1 terminal), where they would end the command.

    Every command calls it first. Python does so for stderr by itself.
    """
    if sys.stdout is None:  # closed by the caller (`>&-`)
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


@contextmanager
def only_report() -> Iterator[None]:
    """Leaves stdout to `write_report`; what libraries and child processes print goes to stderr."""
    global _report
    stdout = sys.stdout
    with ExitStack() as stack:
        _report = stdout
        with suppress(OSError, ValueError, AttributeError):  # a test's or a notebook's stdout has no file
            file = stdout.fileno()
            stdout.flush()
            copy = os.dup(file)
            os.dup2(sys.stderr.fileno(), file)
            stack.callback(os.close, copy)
            stack.callback(os.dup2, copy, file)
            _report = open(copy, "w", encoding=stdout.encoding, errors="replace", closefd=False)  # noqa: SIM115
        stack.enter_context(redirect_stdout(sys.stderr))
        try:
            yield
        finally:
            _report = None


def write_report(text: str, end: str = "\n") -> None:
    """Writes a document for programs to stdout."""
    print(text, end=end, file=_report or sys.stdout, flush=True)


def flush_stdout() -> None:
    """Writes what stdout still holds. Raises OSError if it cannot be written; Python then has nothing to write at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()
        raise


def drop_stdout() -> None:
    """Discards what stdout still holds, and everything that is written to it later."""
    with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.stdout.flush()
