"""Keeps the messages of libraries off the screen: they go to the sweep's log.

Ray's core writes to the process's stderr from C++, and its threads print, so Python's logging is not enough to stop them. While
a sweep runs, the file descriptor of stderr points to the log, and messages for people go to a copy of the terminal.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import IO

LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"

_screens: list[IO[str]] = []


class _Log(io.TextIOBase):
    """Appends to a file, unbuffered. On a full disk text is lost without an error, so that the writer goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def fileno(self) -> int:
        return self._file

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(self._file, text.encode(errors="replace"))
        return len(text)

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


@contextmanager
def noise_to_log(path: Path) -> Iterator[IO[str]]:
    """Sends stderr, stdout and all logging to the file `path`; gives a stream to the former stderr.

    A nested call changes nothing and gives the outer call's stream.
    """
    if _screens:
        yield _screens[-1]
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    saved = os.dup(2)
    root = logging.getLogger()
    with closing(_Log(path)) as log, os.fdopen(os.dup(saved), "w", buffering=1) as screen:
        handler = logging.StreamHandler(log)
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        os.dup2(log.fileno(), 2)
        root.addHandler(handler)
        _screens.append(screen)
        try:
            with redirect_stdout(log):
                yield screen
        finally:
            _screens.pop()
            root.removeHandler(handler)
            with suppress(OSError):
                sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


def log_to_root(names: tuple[str, ...]) -> None:
    """Removes the handlers of these loggers, which write to the screen, and passes their messages to the root logger."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
