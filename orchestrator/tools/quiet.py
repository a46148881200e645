"""Keeps the messages of libraries off the screen: they go to the sweep's log. Stdout has a report alone.

Ray's core writes to the process's stderr from C++, and its threads print, so Python's logging is not enough to stop them. While
a sweep runs, the file descriptor of stderr points to the log, and messages for people go to a copy of the terminal.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import IO, TextIO, cast

from orchestrator.tools.secrets import redact

LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


class Lossy(io.TextIOBase):
    """Writes text without passwords to a file descriptor, unbuffered, so that the writer continues whatever its reader does.

    Text is lost without an error on a full disk, in a closed pipe or a dead terminal. Characters that the encoding lacks are
    replaced.
    """

    def __init__(self, file: int, encoding: str = "utf-8") -> None:
        self._file, self._encoding = file, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._file

    def isatty(self) -> bool:
        return os.isatty(self._file)

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(self._file, redact(text).encode(self._encoding, errors="replace"))
        return len(text)

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


def lasting_stdout() -> IO[str]:
    """Returns stdout for a command that continues after its reader has left (`| head`), or its terminal was closed."""
    try:
        file = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a test's or a notebook's stdout has no file
        return sys.stdout
    sys.stdout.flush()
    return cast(IO[str], Lossy(os.dup(file), sys.stdout.encoding))


@contextmanager
def noise_to_log(path: Path) -> Iterator[IO[str]]:
    """Sends stderr, stdout and all logging to the file `path`; gives a stream to the former stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    appended = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    root = logging.getLogger()
    with closing(Lossy(appended)) as log, closing(Lossy(os.dup(2), sys.stderr.encoding or "utf-8")) as lossy:
        screen = cast(IO[str], lossy)
        handler = logging.StreamHandler(log)
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        os.dup2(log.fileno(), 2)
        root.addHandler(handler)
        try:
            with redirect_stdout(log), redirect_stderr(log):
                yield screen
        finally:
            root.removeHandler(handler)
            with suppress(OSError):
                sys.stderr.flush()
            os.dup2(screen.fileno(), 2)


def log_to_root(names: tuple[str, ...]) -> None:
    """Removes the handlers of these loggers, which write to the screen, and passes their messages to the root logger."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


_report: TextIO | None = None
_reported = False


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
    """Leaves stdout to `write_report`; what libraries and child processes print goes to stderr. A call inside another changes
    nothing."""
    global _report, _reported
    if _report is not None:
        yield
        return
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
            _report, _reported = None, False


def write_report(text: str, end: str = "\n") -> None:
    global _reported
    print(text, end=end, file=_report or sys.stdout, flush=True)
    _reported = _report is not None


def has_reported() -> bool:
    return _reported


def report_descriptor() -> int:
    """Returns the file descriptor to which reports go: stdout's, or its copy inside `only_report`."""
    return 1 if _report is None else _report.fileno()


def drop_stdout() -> None:
    """Discards what stdout still holds, and everything that is written to it later."""
    with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.stdout.flush()
