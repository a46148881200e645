"""Keeps the noise of libraries off the screen: what they say goes to the sweep's log.

Ray's core writes to the process's stderr from C++ and its threads print, so Python's logging is not enough: the file descriptor
itself is pointed at the log while a sweep runs, and what people should read goes to a copy of the terminal made before.
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

_screens: list[IO[str]] = []


class _Log(io.TextIOBase):
    """Appends to a file, unbuffered; what a full disk does not take is lost, and whoever wrote it goes on."""

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
    """Sends stderr, what is printed and all logging to the file `path` while inside; gives a stream to what stderr was.

    Inside another one it changes nothing and gives that one's stream.
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
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
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
    """Takes away the handlers of libraries' own loggers that write to the screen, and lets them pass to the root's."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
