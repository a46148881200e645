"""`watch`: how far long work is, reported to what `watching` names; a sign of life where nothing can be counted.

    worker      watching(beat)      ends a process that is silent for too long
    train_run   watching(follow)    counts what is scored

All that takes minutes calls `watch`: after each decomposition, each batch that is scored, each turn of waiting for another
process. One context variable holds the watcher, so no function between hands it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, int, int], None]

_watcher: ContextVar[Watcher | None] = ContextVar("craft_watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Calls `watcher` at every `watch` of this thread inside the block, then the watcher around it. It may raise."""
    outer = _watcher.get()

    def tell(work: str, done: int, total: int) -> None:
        watcher(work, done, total)
        if outer is not None:
            outer(work, done, total)

    reset_token = _watcher.set(tell)
    try:
        yield
    finally:
        _watcher.reset(reset_token)


def watch(work: str = "", done: int = 0, total: int = 0) -> None:
    """Reports that work continues, and that `done` of `total` pieces of `work` are done if it has pieces."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(work, done, total)
