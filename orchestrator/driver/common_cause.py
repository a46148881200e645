"""`CommonCause`: notices that trial after trial fails for one and the same fault of the machines, so that a session can end.

A missing model or an expired token fails every trial of a sweep. Ten of them say as much as a thousand, and cost less.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

ENOUGH = 10
"""So many trials in a row fail for one reason before a session ends; each of them was started several times."""


class CommonCause:
    """Counts failures in a row with the same reason; any sign that a trial trains sets the count to zero.

    Attributes:
        trouble: why the session is to end, once that is known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble: str | None = None
        self._clock = clock
        self._reason, self._count, self._since = "", 0, 0.0

    def works(self) -> None:
        """Notes that a trial has trained."""
        self._count = 0

    def failed(self, reason: str, running_since: Iterable[float]) -> None:
        """Notes that a trial has failed by a fault of its machine, after all its attempts.

        Args:
            running_since: when each of the trials began that run now. One that began before the first of these failures and
                still runs may be well: another machine may be in order.
        """
        # Paths, ports and hosts differ from trial to trial.
        pattern = re.sub(r"\d+", "#", reason)
        if self._count == 0 or pattern != self._reason:
            self._reason, self._count, self._since = pattern, 0, self._clock()
        self._count += 1
        if self._count >= ENOUGH and not any(began < self._since for began in running_since):
            self.trouble = (
                f"{self._count} trials in a row failed for one reason, and none trained meanwhile: {reason}. It is no fault of "
                "the trials: mend it, then --resume runs them again"
            )
