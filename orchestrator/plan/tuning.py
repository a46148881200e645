"""What is tuned in a plan whose `replication` chooses the best of each group, and what it costs: groups, trials, equal budgets.

A group is one configuration with every value that is tried of what is tuned, its candidates. Their trials with the sweep's
seeds choose, and the best then runs with the seeds of `replication`. A group of one is not tuned.

The search for a learning rate begins at the value next to the method's own rate (`craft.methods.method.starting_rate`) and its
neighbours, and walks on while the best is the last in its direction. A method without an own rate tries every value.

Learning rates are transferred over the ranks of a method: tuned at one rank, checked at the smallest and the largest.

    rank 1     2     4     8     16          4: its own rate and the neighbours, and on from a better one
       3?   <-     3?     ->     3?          1, 16: the best rate of 4 and the neighbours, and on from a better one

A family is what differs in nothing but the rank and the learning rate. Its middle rank is tuned. Where the best rate of an end
is no more than one step away, the ranks between take the rate of the middle one, and the end its own best. Otherwise that end
and the ranks on its side are tuned themselves. `docs/craft.md` has what this costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from craft.methods import METHODS
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.planner import Planner
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.mistakes import dotted
from orchestrator.sweepfile.space.blocks import sizes_within
from orchestrator.sweepfile.sweep import Sweep

LEAST = 3
"""So many ranks: with two of them both are ends."""


@dataclass(frozen=True)
class Tried:
    """What a candidate has on the rows that choose, the means over the seeds that tune.

    Attributes:
        score: minus infinity where a training failed.
        credits: `(blocks,)` (`craft.scoring.predictions`); None where they are not recorded.
    """

    score: float
    loss: float = math.inf
    credits: NDArray[np.float64] | None = None


Places = Mapping[int, Tried]
"""The candidates of one rank that were run, by their places in its group."""


@dataclass(frozen=True)
class Family:
    """Groups of candidates over which the learning rate is transferred, from the smallest to the largest rank, the candidates
    of each by their rate. A group whose rate is not transferred is a family of one.

    Attributes:
        begin: the place of the candidate at which the first group's search begins; None: all of its candidates are tried.
    """

    groups: tuple[tuple[Configuration, ...], ...]
    begin: int | None = None

    @property
    def start(self) -> int:
        """The place of the group that is tuned first, with every value."""
        return (len(self.groups) - 1) // 2

    @property
    def first(self) -> set[int]:
        """The places of the candidates of the first group that are tried in any case."""
        every = {*range(len(self.groups[self.start]))}
        return every if self.begin is None else _near(self.begin) & every

    @property
    def later(self) -> list[Configuration]:
        """The candidates that are tried when those before them have scores, or never."""
        return [
            candidate
            for rank, group in enumerate(self.groups)
            for place, candidate in enumerate(group)
            if rank != self.start or place not in self.first
        ]

    @property
    def ends(self) -> list[int]:
        return [end for end in sorted({0, len(self.groups) - 1}) if end != self.start]

    @property
    def planned(self) -> int:
        """The number of candidates that are tried on each task if the rate is transferred."""
        return len(self.first) + sum(min(3, len(self.groups[end])) for end in self.ends)

    @property
    def candidates(self) -> int:
        return sum(map(len, self.groups))


def families_of(planner: Planner, configurations: Iterable[Configuration]) -> list[Family]:
    """Returns the groups of candidates, joined into families if the rate is transferred and this saves trainings.

    Every rate is tried, and none transferred, where a searcher that learns chooses the rates, and in a sweep with `warm_start`,
    where a trial needs the same candidate on the task that it starts from.
    """
    groups: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        if not configuration.candidates:
            groups.setdefault(planner.identity.group(configuration), []).append(configuration)
    sweep, rate_of = planner.sweep, planner.identity.rate_of
    transfer = sweep.tuned_settings == (RATE,) and not sweep.search.row.adaptive and not sweep.warm_start
    related: dict[str, list[tuple[Configuration, ...]]] = {}
    for name, group in groups.items():
        row, parameters = METHODS[group[0].method], group[0].parameters
        serves = row.one_rate is not None and row.one_rate.items() <= parameters.items()
        if transfer and serves and len(group) > 1:
            name = f"{planner.identity.group(group[0], [str(row.rank)])} {sorted(map(rate_of, group))}"
        related.setdefault(name, []).append(tuple(sorted(group, key=rate_of) if transfer and len(group) > 1 else group))
    all_families = []
    for some in related.values():
        families = [Family((group,), _begin(planner, group) if transfer else None) for group in some]
        if len(some) >= LEAST:
            by_rank = sorted(some, key=lambda group: group[0].counts.trainable_parameters)
            ranked = Family(tuple(by_rank))
            ranked = replace(ranked, begin=_begin(planner, ranked.groups[ranked.start]))
            families = [ranked] if ranked.planned < sum(family.planned for family in families) else families
        all_families += families
    return all_families


def _begin(planner: Planner, group: Sequence[Configuration]) -> int | None:
    """Returns the place of the rate next to the method's own; None where it has none, or the first three are all."""
    if METHODS[group[0].method].rate is None or len(group) <= len(_near(0)):
        return None
    own = planner.identity.own_rate(group[0])
    return min(range(len(group)), key=lambda place: abs(math.log(planner.identity.rate_of(group[place]) / own)))


def _near(place: int) -> set[int]:
    return {place - 1, place, place + 1}


def best_of(tried: Places, preferred: int | None = None) -> int | None:
    """Returns the place of the candidate that is chosen; None if all failed.

    It has the best score. Candidates that the noise of the rows does not tell from the best are tied with it: of these it is
    the preferred, or else the one of the smallest loss, and of equal losses the one nearest to the middle of what was tried.
    """
    finite = {place: candidate for place, candidate in sorted(tried.items()) if math.isfinite(candidate.score)}
    if not finite:
        return None
    best, middle = max(finite.values(), key=lambda candidate: candidate.score), (min(tried) + max(tried)) / 2
    tied = [place for place, candidate in finite.items() if best.score - candidate.score <= noise_between(best, candidate)]
    return preferred if preferred in tied else min(tied, key=lambda place: (finite[place].loss, abs(place - middle)))


def noise_between(first: Tried, second: Tried) -> float:
    """Returns the standard error of the difference of two scores on the same rows, in points; 0 without credits."""
    if first.credits is None or second.credits is None or first.credits.shape != second.credits.shape:
        return 0.0
    gaps = first.credits - second.credits
    return float(gaps.std(ddof=1)) / math.sqrt(len(gaps))


def to_try(tried: Sequence[Places], family: Family) -> list[set[int]]:
    """Returns the rates to try on a task, a set for each rank. The search is over when all of them have scores."""
    start, needed = family.start, [set[int]() for _ in tried]
    every, walked = {*range(len(family.groups[start]))}, family.first
    while walked <= tried[start].keys():
        best = best_of({place: tried[start][place] for place in walked})
        walked_on = every if best is None else _near(best) & every
        if walked_on <= walked:
            break
        walked = walked | walked_on
    needed[start] |= walked
    if not walked <= tried[start].keys():
        return needed
    transferred = best_of(tried[start])
    if transferred is None:
        return [every for _ in tried]
    for end, side in ((0, range(start)), (len(tried) - 1, range(start + 1, len(tried)))):
        if not side:
            continue
        near = _near(transferred) & every
        best = _best_among(near, tried[end], transferred)
        if best is not None and best != transferred:
            near |= {2 * best - transferred} & every
            best = _best_among(near, tried[end], transferred)
        needed[end] |= near
        if near <= tried[end].keys() and (best is None or abs(best - transferred) > 1):
            for rank in side:
                needed[rank] |= every
    return needed


def _best_among(places: Collection[int], tried: Places, preferred: int) -> int | None:
    scores = {place: tried[place] for place in places if place in tried}
    return best_of(scores, preferred) if len(scores) == len(places) else preferred


def choose(tried: Sequence[Places], rates: int, start: int) -> list[tuple[int | None, bool]]:
    """Returns, by rank, the place of the rate that it gets on a task, and whether that is transferred from the first one."""
    transferred = best_of(tried[start])
    tuned = [rank in (0, start, len(tried) - 1) or len(tried[rank]) == rates for rank in range(len(tried))]
    pairs = zip(tried, tuned, strict=True)
    return [(best_of(scores, transferred) if is_tuned else transferred, not is_tuned) for scores, is_tuned in pairs]


SHOWN = 8


def unequal_tuning(sweep: Sweep, families: Sequence[Family], duplicates: Sequence[str]) -> Iterator[str]:
    """Yields what breaks the promise of `compare: fair`, on the configurations as the model takes them."""
    if duplicates:
        named = "; ".join(duplicates[:SHOWN])
        yield f"{sweep.where(('space',))}: space: under compare: fair each configuration is named once; twice: {named}"
        return
    groups = [group for family in families for group in family.groups]
    tuned = [group for group in groups if sweep.block_at(group[0].path).tuned]
    most = max(map(len, tuned), default=0)
    for path, count in {group[0].path: len(group) for group in sorted(tuned, key=len, reverse=True)}.items():
        if count < most:
            yield (
                f"{sweep.where(path)}: {dotted(path)}: {count} candidates are left of a configuration and {most} of others, "
                "because constraints drop some or another block has the same; under compare: fair all are tuned by equally many"
            )


def budget_of(sweep: Sweep, families: Sequence[Family]) -> tuple[int, int, int]:
    """Returns how many trials tune if learning rates are transferred over ranks, how many if none is, and how many are reported
    at most: those of a best candidate in every group, and of another one for each size. A group of one has nothing to wait for.
    """
    tasks = len(sweep.task_names)
    alone = sum(family.candidates == 1 for family in families)
    planned, every = sum(family.planned for family in families) - alone, sum(family.candidates for family in families) - alone
    each = tasks * len(sweep.seeds)
    trainings = sum(most_choices(sweep, group) for family in families for group in family.groups)
    return planned * each, every * each, trainings * tasks * len(sweep.reported_seeds)


def most_choices(sweep: Sweep, group: Sequence[Configuration]) -> int:
    """Returns how many candidates of a group can be chosen at most: by the whole adapter and by each size."""
    sizes = sizes_within(sweep.block_at(group[0].path).sizes, group[0].counts.trainable_parameters)
    return min(len(group), 1 + len(sizes))
