"""Ctrl-C and SIGTERM while a sweep runs: once to stop gracefully, twice to stop now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody asked the sweep to stop. `say` tells them that they were heard."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listens to SIGINT and SIGTERM while inside; does nothing outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("Stopping: running trials keep their last checkpoints. Once more to stop at once.")
