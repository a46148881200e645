"""Questions split between the processes of a team: each answers every size-th batch, and then all have all answers.

    batches     0 1 2 | 3 4 5 | 6          a team of three
    rank 0      0       3       6
    rank 1        1       4     (6)         only where the model is split: it computes if all members call it alike
    rank 2          2       5   (6)

The batches are those of one process, so every answer keeps its bits. Answers travel as a sum in which each row has one summand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Batch = tuple[list[int], int]
"""Numbers of rows, and how many rows are done after this batch and those before it."""


class Sharing(Protocol):
    """What a team is to those who answer: `rank` of `size`, and `total` gives the sum of every member's tensor, in place."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def sharded(self) -> bool: ...

    def total(self, value: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class Turn:
    """A batch for this process. `counts` is false where it only computes with the others; `done` rows are done after it."""

    number: int
    rows: list[int]
    done: int
    counts: bool = True


def turns(batches: Sequence[Batch], team: Sharing | None) -> Iterator[Turn]:
    """The batches that this process answers, all of them without a team."""
    rank, size = (0, 1) if team is None else (team.rank, team.size)
    for begin in range(0, len(batches), size):
        mine, last = begin + rank, min(begin + size, len(batches)) - 1
        if mine <= last or (team is not None and team.sharded):
            number = min(mine, last)
            yield Turn(number, batches[number][0], batches[last][1], counts=mine <= last)


def together(found: torch.Tensor, team: Sharing | None) -> torch.Tensor:
    """Everybody's rows of `found`, in which rows that this process has not answered are zero."""
    return found if team is None else team.total(found)
