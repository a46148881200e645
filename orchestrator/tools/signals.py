"""Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) while a sweep runs: the first stops it gracefully, the second at once,
and the process ends in any case.

Python handles a signal only when its main thread runs Python code, and that thread may be waiting in Ray's C++ for processes
that the same signal has killed. So a thread of its own reads the signals from a pipe, to which the interpreter writes at once.
If the session has not ended by itself some seconds later, that thread says the sweep's last words and ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from orchestrator.tools.quiet import report_descriptor

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 8.0
"""Time from the first signal until the process is ended, whatever it is waiting for."""
GRACE_TWICE_SECONDS = 2.0
GRACE_BROKEN_SECONDS = 2.0
"""The same if Ray's own processes are dead, so that there is nothing to wait for."""
MENDING_SECONDS = 20.0
"""Time that a driver may wait for a dead Ray when nobody asked it to stop; Ray itself would end it after 60 seconds."""
LAST_WORDS_SECONDS, UNASKED_SECONDS = 6.0, 30.0
"""Time for the last words, if somebody waits for the end and if nobody does."""
STOPPING = "Stopping: running trials keep their last checkpoints. Once more to stop at once."
BEGUN_AGAIN = "CRAFT_BEGUN_AGAIN"
"""The environment variable of a process that has taken the place of one whose Ray had died."""


def begin_again(arguments: Sequence[str], stderr: int) -> None:
    """Replaces this process by `python -P ARGUMENTS`. Its threads end, and with the main one the children that Ray started."""
    with suppress(OSError):  # stdout may be closed
        os.dup2(report_descriptor(), 1)
    os.dup2(stderr, 2)
    os.execve(sys.executable, [sys.executable, "-P", *arguments], os.environ | {BEGUN_AGAIN: "1"})


@contextmanager
def ended_by_exceptions() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the process by SystemExit while inside, so that what is half-written is removed.

    It does nothing outside the main thread, and leaves a signal alone that is ignored, as by nohup.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    default = [number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) == signal.SIG_DFL]
    for number in default:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)


class Stop:
    """Whether somebody asked the sweep to stop. `say` confirms it on the screen."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self.signal: int | None = None
        self._say = say
        self._received = 0
        self._over = threading.Event()

    @contextmanager
    def watching(self, broken: Callable[[], str | None], last_words: Callable[[str], None]) -> Iterator[None]:
        """Listens to the signals while inside; does nothing outside the main thread, where Python allows no handlers.

        Args:
            broken: says why Ray is dead, or None while it lives; called often, from another thread.
            last_words: called with the reason, outside the main thread, before the process is ended.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        pipe = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.listen()
        watch = threading.Thread(target=self._watch, args=(read, broken, last_words), name="stop-watch", daemon=True)
        watch.start()
        try:
            yield
        except SystemExit as ended:  # by the handler that Ray has while it starts, which ends with the signal's bare number
            raise SystemExit(143 if ended.code == signal.SIGTERM else ended.code) from None
        finally:
            self._over.set()
            signal.set_wakeup_fd(pipe)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            watch.join()
            os.close(read)
            os.close(write)

    def listen(self) -> None:
        """Sets the signal handlers. Call it again after a library has set its own."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
                    signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received += 1
        if self._received > 1:
            raise KeyboardInterrupt

    def _watch(self, read: int, broken: Callable[[], str | None], last_words: Callable[[str], None]) -> None:
        times, broken_since = list[float](), float("inf")
        while not self._over.is_set():
            ready, _, _ = select.select([read], [], [], 0.25)
            for number in os.read(read, 512) if ready else b"":
                if number in SIGNALS:
                    times.append(time.monotonic())
                    self.signal = self.signal or number
                    if not self.asked:
                        self.asked = True
                        _within(1.0, lambda: self._say(STOPPING))
            why, clock_seconds = broken(), time.monotonic()
            broken_since = float("inf") if why is None else min(broken_since, clock_seconds)
            deadlines = [began + grace for began, grace in zip(times, (GRACE_SECONDS, GRACE_TWICE_SECONDS), strict=False)]
            deadlines.append(broken_since + (GRACE_BROKEN_SECONDS if self.asked else MENDING_SECONDS))
            if clock_seconds > min(deadlines):
                why = "stopped" if self.asked or why is None else why
                _within(LAST_WORDS_SECONDS if self.asked else UNASKED_SECONDS, lambda why=why: last_words(why))  # type: ignore[misc]
                os._exit(128 + self.signal if self.signal else 1)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Calls `act` and returns after at most `seconds`, even if `act` waits for a lock that the main thread holds."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
