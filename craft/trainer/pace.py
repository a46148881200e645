"""How much of a run is done, and how long the rest takes at the pace that was measured: `Pace`.

    seconds left  =  steps to go x seconds a step  +  examples to score x seconds an example

    steps ──> search split ──> steps ──> search split ──> reported splits ──> end
              └ an evaluation ┘           └ the last ┘     └ one pass for each test, for each of nested ranks ┘

Both rates are those of this process; a resumed run measures anew, and counts what earlier processes did as done before. Until
an example is scored, it is taken to cost a third of an example in training: a step goes forward once and back for about two.

Whoever wants to hear of it listens with `hearing`; a run tells at most every few seconds, and costs nothing if nobody listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from craft.results import LOSS_PASS, Outlook

Pass = tuple[str, int]
"""One going over a split: its name, and how many examples it has."""

FORWARD = 1 / 3
"""What a forward pass costs of a step of training: of one pass forward and one back, which takes about two."""

ENOUGH = 0.2
"""The share of a pass after which its own pace counts alone: the longest examples come first, so it seems slow at its start."""

SOONEST, SHARE, LATEST = 5.0, 0.02, 15.0
"""Seconds between two tellings: not sooner; then when the share that is done has moved by so much; or after so long anyhow."""

_listener: ContextVar[Callable[[Outlook], None] | None] = ContextVar("craft_outlook", default=None)


@contextmanager
def hearing(listener: Callable[[Outlook], None]) -> Iterator[None]:
    """Inside, in this thread, `listener` is told now and then how far a run is."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


@dataclass
class Rate:
    """Seconds taken by an amount of work."""

    seconds: float = 0.0
    amount: float = 0.0

    def add(self, seconds: float, amount: float) -> None:
        self.seconds += seconds
        self.amount += amount

    @property
    def each(self) -> float | None:
        """Seconds of one; None before any is measured."""
        return self.seconds / self.amount if self.amount > 0 else None


@dataclass
class Pace:
    """One run's work, what of it is done, and the rates measured so far.

    Args:
        steps: optimizer steps of the run.
        batch: examples in a step.
        evaluated_at: steps after which the search split is scored.
        search: what one evaluation goes over.
        reported: what the end of the run goes over.
        step: where this process begins.
        due: the evaluation of that step is still to come.
    """

    steps: int
    batch: int
    evaluated_at: Sequence[int]
    search: Sequence[Pass]
    reported: Sequence[Pass]
    step: int = 0
    due: bool = False
    clock: Callable[[], float] = time.monotonic
    _stepping: Rate = field(default_factory=Rate)
    _scoring: dict[str, Rate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ahead: Sequence[Pass] = ()
        self._at, self._part = 0, 0.0
        self._ended = False
        self._began = self.step, sum(at <= self.step for at in self.evaluated_at) - self.due
        self._told_at, self._told_share = self.clock(), 0.0
        self._begin(self.search if self.due else ())

    def stepped(self, step: int) -> None:
        """Optimizer step number `step` is done."""
        self._stepping.add(self.clock() - self._since, step - self.step)
        self.step = step
        self._begin(self.search if step in self.evaluated_at else ())

    def evaluated(self) -> None:
        """An evaluation is over, and all that belongs to it."""
        self._begin(())

    def ends(self) -> None:
        """Training is over: the reported splits are next."""
        self._ended = True
        self._begin(self.reported)

    def _begin(self, passes: Sequence[Pass]) -> None:
        self._ahead, self._at, self._part = passes, 0, 0.0
        self._phase, self._since = f"step {self.step}/{self.steps}", self.clock()

    def scored(self, what: str, done: int, total: int) -> None:
        """Of the pass `what`, `done` of `total` pieces are done. Passes before it that nobody heard of were done already."""
        now, part = self.clock(), done / total
        taken, self._since = now - self._since, now
        if not (self._at < len(self._ahead) and self._ahead[self._at][0] == what and part > self._part):
            later = range(self._at + (self._part > 0), len(self._ahead))
            found = next((number for number in later if self._ahead[number][0] == what), None)
            if found is None:  # something beside the splits: it is shown, and its end is not foretold
                self._phase = f"scoring {done}/{total} ({what})"
                return
            self._at, self._part = found, 0.0
        size = self._ahead[self._at][1]
        self._scoring.setdefault(what, Rate()).add(taken, size * (part - self._part))
        self._part, self._phase = part, f"scoring {round(part * size)}/{size} ({what})"

    def outlook(self) -> Outlook:
        """How far the run is now."""
        a_step, a_search, the_end = self._stepping.each, self._seconds(self.search), self._seconds(self.reported)
        whole = self.steps * (a_step or 0.0) + len(self.evaluated_at) * a_search + the_end
        step, evaluations = self._began
        if not whole or (a_step is None and self.step < self.steps):
            return Outlook(self._phase, self.step / self.steps, step / self.steps, None)
        left = (self.steps - self.step) * (a_step or 0.0) + sum(at > self.step for at in self.evaluated_at) * a_search
        left += self._seconds(self._ahead[self._at :])
        if self._part:
            name, size = self._ahead[self._at]
            left -= self._part * size * self._example(name, size)
        left += 0.0 if self._ended else the_end
        before = step * (a_step or 0.0) + evaluations * a_search
        return Outlook(self._phase, 1 - left / whole, before / whole, left)

    def tell(self) -> None:
        """Tells the listener, if there is one and it is time for it."""
        listener, since = _listener.get(), self.clock() - self._told_at
        if listener is None or since < SOONEST:
            return
        outlook = self.outlook()
        if since >= LATEST or abs(outlook.share - self._told_share) >= SHARE:
            listener(outlook)
            # The listener may take its time, which is none of the run's.
            waited = self.clock() - self._told_at - since
            self._told_at, self._told_share, self._since = self.clock(), outlook.share, self._since + waited

    def _seconds(self, passes: Sequence[Pass]) -> float:
        return sum(size * self._example(name, size) for name, size in passes)

    def _example(self, name: str, size: int) -> float:
        """Seconds of an example in a pass: as measured there, or else in all passes, or else guessed from a step."""
        own, together = self._scoring.get(name, Rate()), Rate()
        if own.each is not None and own.amount >= ENOUGH * size:
            return own.each
        for other, rate in self._scoring.items():
            if name == other or LOSS_PASS not in (name, other):  # a loss costs much less than answers in words
                together.add(rate.seconds, rate.amount)
        if together.each is not None:
            return together.each
        return FORWARD * (self._stepping.each or 0.0) / self.batch
