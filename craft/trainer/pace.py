"""How much of a run is done, and how long the rest takes at the pace measured so far: `Pace`.

    seconds left  =  steps to go x seconds a step  +  examples to score x seconds an example

Both rates are those of this process. Until it has scored an example, scoring is taken to cost a third of training on it.
Until it has made a step, a step is taken to cost three times the scoring of its examples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from craft.results import Outlook

FORWARD = 1 / 3
CUT_STEPS = "the steps of a cut"
"""By this name watchers get the steps for which a cut adapter is trained on."""
REPORT_EVERY = 8.0
"""Seconds between two reports."""

_listener: ContextVar[Callable[[Outlook], None] | None] = ContextVar("craft_outlook", default=None)


@contextmanager
def report_outlooks(listener: Callable[[Outlook], None]) -> Iterator[None]:
    """Gives the outlook of a run in the block to `listener` every few seconds."""
    reset_token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(reset_token)


@dataclass
class Pace:
    """One run's work, what of it is done, and the two rates. Each call reports the outlook, if it is time to.

    Args:
        passes: examples of each split that is scored, by the name that its progress has: `search`, and the reported ones.
        recovery: steps for which each of these is trained on.
        due: the evaluation of that step is still to come.
    """

    steps: int
    batch: int
    evaluated_at: Sequence[int]
    passes: Mapping[str, int]
    cuts: int = 0
    recovery: int = 0
    step: int = 0
    due: bool = False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        search, reported = self.passes["search"], sum(self.passes.values()) - self.passes["search"]
        recovery = self.recovery * self.batch / FORWARD  # in examples that are scored
        self._examples = search * len(self.evaluated_at) + reported + self.cuts * (search + reported + recovery)
        self._stepping = self._scoring = 0.0  # seconds in this process, and what was done in them
        self._stepped, self._seen, self._scored = 0, 0.0, 0.0
        self._part: tuple[str, float] = ("", 0.0)
        self._reported = self._since = self.clock()
        self.end_evaluation()
        self._scored -= search * self.due

    def end_step(self, step: int) -> None:
        self._stepping += self._lap()
        self._stepped += step - self.step
        self.step, self._phase = step, f"step {step}/{self.steps}"
        self._report()

    def count(self, work: str, done: int, total: int) -> None:
        """Counts `done` of `total` pieces of a split, or a step of a cut. Other work is shown and not counted."""
        seconds, size, part = self._lap(), self.passes.get(work), done / total
        if work == CUT_STEPS:
            self._phase = f"step {done}/{total} of a cut"
            self._add_scored(seconds, self.batch / FORWARD)
        elif size is None:
            self._phase = f"scoring {done}/{total} ({work})"
        else:
            earlier_part = self._part[1] if self._part[0] == work and self._part[1] < part else 0.0
            self._part, self._phase = (work, part), f"scoring {round(part * size)}/{size} ({work})"
            self._add_scored(seconds, size * (part - earlier_part))
        self._report()

    def end_evaluation(self) -> None:
        """Counts an evaluation, with its checkpoint and its report."""
        self._scored = self.passes["search"] * sum(at <= self.step for at in self.evaluated_at)
        self._part, self._phase = ("", 0.0), f"step {self.step}/{self.steps}"
        self._lap()

    def _add_scored(self, seconds: float, examples: float) -> None:
        self._scoring += seconds
        self._seen += examples
        self._scored = min(self._scored + examples, self._examples)

    def _lap(self) -> float:
        lap_start, self._since = self._since, self.clock()
        return self._since - lap_start

    def outlook(self) -> Outlook:
        a_step = self._stepping / self._stepped if self._stepped else 0.0
        an_example = self._scoring / self._seen if self._seen else FORWARD * a_step / self.batch
        if not self._stepped and self.step == self.steps:
            a_step = self.batch * an_example / FORWARD
        total = self.steps * a_step + self._examples * an_example
        if not total or (not a_step and self.step < self.steps):
            return Outlook(self._phase, self.step / self.steps if self.steps else 0.0, None)
        seconds_left = (self.steps - self.step) * a_step + (self._examples - self._scored) * an_example
        return Outlook(self._phase, 1 - seconds_left / total, seconds_left)

    def _report(self) -> None:
        listener, clock_seconds = _listener.get(), self.clock()
        if listener is not None and clock_seconds - self._reported >= REPORT_EVERY:
            listener(self.outlook())
            self._reported = self.clock()
            self._since += self._reported - clock_seconds  # the listener's time is not the run's
