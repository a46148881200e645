"""How much of a run is done, and how long the rest takes at the pace measured so far: `Pace`.

    seconds left  =  steps to go x seconds a step  +  examples to score x seconds an example

Both rates are those of this process. Until an example is scored, it is taken to cost a third of an example in training, which
goes forward and back; a step that only an earlier process did, three times the scoring of its examples. A run reports its
outlook to the function that `hearing` names, every few seconds. `Listener` holds the callbacks that follow a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from craft.factors.ticking import tick
from craft.results import Outlook, Progress
from craft.scoring.texts import Tick

FORWARD = 1 / 3
TELL_EVERY = 8.0
"""Seconds between two reports."""

_listener: ContextVar[Callable[[Outlook], None] | None] = ContextVar("craft_outlook", default=None)


@contextmanager
def hearing(listener: Callable[[Outlook], None]) -> Iterator[None]:
    """Inside, in this thread, `listener` gets the outlook of a run every few seconds."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


@dataclass
class Pace:
    """One run's work, what of it is done, and the two rates.

    Args:
        batch: examples in a step.
        evaluated_at: steps after which the search split is scored.
        passes: examples of each split that is scored, by the name that its progress has: `search`, and the reported ones.
        cuts: how many smaller adapters are trained on and scored on all splits at the end.
        recovery: steps for which each of these is trained on.
        step: where this process begins.
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
        self._told = self._since = self.clock()
        self.evaluated()
        self._scored -= search * self.due

    def stepped(self, step: int) -> None:
        """Optimizer step number `step` is done."""
        self._stepping += self._lap()
        self._stepped += step - self.step
        self.step, self._phase = step, f"step {step}/{self.steps}"

    def scored(self, what: str, done: int, total: int) -> None:
        """Of the split `what`, `done` of `total` pieces are scored. Other names are shown, and their time is not foretold."""
        seconds, size, part = self._lap(), self.passes.get(what), done / total
        if size is None:
            self._phase = f"scoring {done}/{total} ({what})"
            return
        before = self._part[1] if self._part[0] == what and self._part[1] < part else 0.0
        self._part, self._phase = (what, part), f"scoring {round(part * size)}/{size} ({what})"
        self._scoring += seconds
        self._seen += size * (part - before)
        self._scored = min(self._scored + size * (part - before), self._examples)

    def recovered(self, step: int, total: int) -> None:
        """Step number `step` of the recovery of a cut adapter is done."""
        self._scoring += self._lap()
        self._phase, part = f"step {step}/{total} of a cut", self.batch / FORWARD
        self._seen, self._scored = self._seen + part, min(self._scored + part, self._examples)

    def evaluated(self) -> None:
        """An evaluation is over, with its checkpoint and its report."""
        self._scored = self.passes["search"] * sum(at <= self.step for at in self.evaluated_at)
        self._part, self._phase = ("", 0.0), f"step {self.step}/{self.steps}"
        self._lap()

    def _lap(self) -> float:
        """Seconds since the last call."""
        before, self._since = self._since, self.clock()
        return self._since - before

    def outlook(self) -> Outlook:
        """How far the run is now."""
        a_step = self._stepping / self._stepped if self._stepped else 0.0
        an_example = self._scoring / self._seen if self._seen else FORWARD * a_step / self.batch
        if not self._stepped and self.step == self.steps:
            a_step = self.batch * an_example / FORWARD
        whole = self.steps * a_step + self._examples * an_example
        if not whole or (not a_step and self.step < self.steps):
            return Outlook(self._phase, self.step / self.steps, None)
        left = (self.steps - self.step) * a_step + (self._examples - self._scored) * an_example
        return Outlook(self._phase, 1 - left / whole, left)

    def tell(self) -> None:
        """Reports the outlook, if it is time to."""
        listener, now = _listener.get(), self.clock()
        if listener is not None and now - self._told >= TELL_EVERY:
            listener(self.outlook())
            self._told = self.clock()
            self._since += self._told - now  # the listener's time is not the run's


@dataclass
class Listener:
    """The callbacks that follow a run. `step` is the last optimizer step and the number of steps."""

    report: Callable[[Progress], None] = lambda _progress: None
    on_step: Callable[[int, int], None] = lambda _step, _total: None
    on_score: Tick = lambda _what, _done, _total: None
    step: tuple[int, int] | None = None
    pace: Pace | None = None

    def stepped(self, step: int, total: int) -> None:
        self.step = step, total
        if self.pace is not None:
            self.pace.stepped(step)
            self.pace.tell()
        self.on_step(step, total)

    def scored(self, what: str, done: int, total: int) -> None:
        """Reports more scored examples of a split."""
        if self.pace is not None:
            self.pace.scored(what, done, total)
            self.pace.tell()
        self.on_score(what, done, total)

    def recovered(self, step: int, total: int) -> None:
        """A step of a cut adapter's recovery is done. Repeats the run's last step, as `answered` does."""
        if self.pace is not None:
            self.pace.recovered(step, total)
            self.pace.tell()
        if self.step is not None:
            self.on_step(*self.step)

    def answered(self, what: str, done: int, total: int) -> None:
        """Like `scored`, for slow scoring such as generation. Repeats the last step, so that a watchdog sees that the run is
        alive; before the first step it ticks."""
        if self.step is not None:
            self.on_step(*self.step)
        else:
            tick()
        self.scored(what, done, total)
