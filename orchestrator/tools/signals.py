"""Ctrl-C and SIGTERM while a sweep runs: once to stop gracefully, twice to stop now, and in any case to stop.

Python hears of a signal only when its main thread runs Python, and that thread may be waiting in Ray's C++ for processes which
the same signal has killed. So a thread of its own reads the signals from a pipe (the interpreter writes there at once), and if
the run has not left by itself some seconds later, it says the sweep's last words and ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 10.0
"""From the first signal until the process ends whatever it waits for."""
GRACE_TWICE_SECONDS = 2.0
GRACE_BROKEN_SECONDS = 2.0
"""The same, where Ray's own processes are dead and nothing is left to be waited for."""
MENDING_SECONDS = 20.0
"""How long a driver may hang on a dead Ray when nobody asked it to stop: Ray itself would end it after 60."""
LAST_WORDS_SECONDS = 8.0


class Stop:
    """Whether somebody asked the sweep to stop. `say` tells them that they were heard."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self.signal: int | None = None
        self._say = say
        self._heard = 0
        self._deadline = float("inf")
        self._broken_since: float | None = None
        self._over = threading.Event()

    @contextmanager
    def watching(self, broken: Callable[[], str | None], last_words: Callable[[str], None]) -> Iterator[None]:
        """Listens to SIGINT and SIGTERM while inside; does nothing outside the main thread, where Python allows no handlers.

        Args:
            broken: why what the main thread waits for is dead, if it is; asked often, from another thread.
            last_words: what there is to say, with the reason, before the process is ended from outside the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        pipe = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.listen()
        watch = threading.Thread(target=self._watch, args=(read, broken, last_words), name="stop-watch", daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            signal.set_wakeup_fd(pipe)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            watch.join()
            os.close(read)
            os.close(write)

    def listen(self) -> None:
        """Puts the handlers in place, again after a library has put its own there."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        if self._heard > 1:
            raise KeyboardInterrupt

    def _watch(self, read: int, broken: Callable[[], str | None], last_words: Callable[[str], None]) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([read], [], [], 0.25)
            for number in os.read(read, 512) if ready else b"":
                if number in SIGNALS:
                    self._hear(number)
            why = broken()
            self._look(why is not None)
            if time.monotonic() > self._deadline:
                why = "stopped" if self.asked or why is None else why
                _within(LAST_WORDS_SECONDS, lambda why=why: last_words(why))  # type: ignore[misc]
                os._exit(128 + self.signal if self.signal else 1)

    def _hear(self, number: int) -> None:
        again = self.asked
        self.asked = True
        self.signal = self.signal or number
        self._deadline = min(self._deadline, time.monotonic() + (GRACE_TWICE_SECONDS if again else GRACE_SECONDS))
        if not again:
            _within(1.0, lambda: self._say("Stopping: running trials keep their last checkpoints. Once more to stop at once."))

    def _look(self, broken: bool) -> None:
        now = time.monotonic()
        if not broken:
            self._broken_since = None
            if not self.asked:
                self._deadline = float("inf")
            return
        if self._broken_since is None:
            self._broken_since = now
        self._deadline = min(self._deadline, self._broken_since + (GRACE_BROKEN_SECONDS if self.asked else MENDING_SECONDS))


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Acts, and returns after so long even if a lock that the main thread holds is in the way."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
