"""Power: the probability that a sweep will settle a difference between two sizes, before it runs.

    e² = 2 ((residual + drawn / R) / n + shared / R)    variance of a difference: two means over n seeds, scored on R rows

A difference is settled if the sweep's own probability that the better size is better reaches `enough.sure`. That is Student's t
of difference / e. As e is estimated from the seeds, the noncentral t says how often it is reached. Calling two equal sizes
equally good within some points is as hard as distinguishing two sizes that differ by so many.

The trend over sizes, to which a sweep moves its scores, is left out: it helps where larger sizes are better. So is the luck of
tuning. The spread of seeds and rows is that of a recorded sweep of the same model on the same tasks, which may be the sweep
itself. Where there is none, it is assumed, and the sentence says so (`power_lines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from craft.results import EXAMPLES
from craft.tasks import find_task
from craft.tasks.metrics import METRICS
from craft.words import percent, points
from orchestrator.judging.control import HEAD
from orchestrator.judging.front import SEEDS
from orchestrator.judging.luck import luck
from orchestrator.judging.probabilities import evidence
from orchestrator.plan.plan import MOST_SEEDS, Plan
from orchestrator.plan.work import more_rows
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.state.state import State
from orchestrator.sweepfile.objectives import Objectives
from orchestrator.sweepfile.sweep import Sweep

ROW, DRAWN, SHARED = 43.0, 0.25, 0.17
"""The standard deviation of a row that is right or wrong, in points, where three of four are right; the shares of its variance
that are drawn again with each seed, and that all seeds of a configuration share (docs/measurements/statistics.md)."""
REST = 0.6
"""The standard deviation between seeds on infinitely many rows."""


@dataclass(frozen=True)
class Spread:
    """The variances of a configuration's score with one seed, in squared points, without what all configurations share.

    Attributes:
        residual: what another seed changes on infinitely many rows.
        drawn: what one scored row changes that is drawn again with each seed.
        shared: what one scored row changes for all seeds.
        source: where this is known from.
    """

    residual: float
    drawn: float
    shared: float
    source: str


@dataclass(frozen=True)
class Size:
    """The size of a sweep: seeds, scored rows as `effective_rows` counts them, configurations."""

    seeds: int
    rows: float
    configurations: int


def assume_spread(tasks: int = 1) -> Spread:
    """Returns the spread where nothing is known: that of the trainings recorded in docs/measurements/records."""
    return Spread(
        REST**2 / tasks, DRAWN * ROW**2, SHARED * ROW**2, "assumed: seeds and rows spread as on GLUE at scores near 75"
    )


def measure_spread(complete: Sequence[Summary], objectives: Objectives, rows: float, source: str) -> Spread | None:
    """Returns the mean spread of the complete configurations of a sweep; None where no seed differs.

    Args:
        rows: those on which each was scored.
    """
    observed = evidence(complete, objectives)
    if observed is None or not observed.errors.any():
        return None
    shared, every = luck(complete) or 0.0, luck(complete, by_all=True) or 0.0
    of_seed = float((observed.errors * observed.seeds).mean())
    drawn = min(of_seed, max(0.0, every - shared) * float(observed.seeds.mean()))
    return Spread(of_seed - drawn, drawn * rows, float(observed.luck.mean()) * rows, source)


def effective_rows(counts: Sequence[float]) -> float:
    """Returns the rows of one task that leave as much error as the mean over tasks with so many rows each."""
    each = sum(1 / count for count in counts)
    return len(counts) ** 2 / each if each else math.inf


def settles(difference: float, spread: Spread, size: Size, sure: float) -> float:
    """Returns the probability that a true difference between two sizes of a sweep is settled with the probability `sure`."""
    from scipy.special import nctdtr, stdtrit

    of_seeds = (spread.residual + spread.drawn / size.rows) / size.seeds
    variance = of_seeds + spread.shared / size.rows
    # Variances are moderated over all configurations. What a seed does to three or more of them is known, too.
    freedom = max(2, size.configurations - 1) * (size.seeds - 1) * (variance / max(of_seeds, variance / 10)) ** 2
    return 1 - float(nctdtr(freedom, difference / math.sqrt(2 * variance), stdtrit(freedom, sure)))


PILOT = 6
"""The fewest degrees of freedom of a recorded sweep that says how seeds spread: of four configurations with three seeds."""
MORE_SEEDS = 2
"""So many more seeds are weighed next to the plan's own, and twice the rows."""


def power_lines(plan: Plan, examples: Mapping[str, tuple[int, int]], past: Sequence[State]) -> Iterator[str]:
    """Yields sentences on what a plan settles; none where its data are not here, or there is nothing to compare.

    Args:
        examples: numbers of training and of scored examples of each task.
        past: recorded sweeps of the same model.
    """
    sweep, many = plan.sweep, plan.wanted if plan.adaptive else len(plan.configurations)
    if not examples or many < 2 or sweep.objectives.get("score") != "maximize":
        return
    gap = f"a difference of {points(sweep.enough.within)} between two sizes"
    if (spread := find_spread(sweep, past)) is None:
        yield f"how likely it settles {gap}: not known before a sweep of these tasks is recorded in {sweep.storage}"
        return
    rows = [scored for _, scored in examples.values()]
    size = Size(max(len(sweep.reported_seeds), SEEDS), effective_rows(rows), many)

    def weigh(seeds: int = size.seeds, times: int = 1) -> float:
        return settles(sweep.enough.within, spread, Size(seeds, times * size.rows, many), sweep.enough.sure)

    more = size.seeds + MORE_SEEDS
    line = "" if size.seeds == len(sweep.reported_seeds) else f"fewer than {SEEDS} seeds settle nothing; "
    scored = " to ".join(f"{count:,}" for count in sorted({min(rows), max(rows)}))
    line += f"{size.seeds} seeds and {scored} scored rows{' a task' if len(rows) > 1 else ''} settle {gap} "
    line += f"with a probability of {percent(weigh())}, {more} seeds {percent(weigh(more))}"
    cut = any(sweep.training_for(task, {}).eval_examples == scored for task, (_, scored) in examples.items())
    if ways := more_rows(examples, cut):
        line += f", twice the rows {percent(weigh(times=2))} ({ways})"
    yield f"{line}; {spread.source}"
    if sweep.search.until:
        enough = next((seeds for seeds in range(size.seeds, MOST_SEEDS) if weigh(seeds) >= 0.5), MOST_SEEDS)
        few = f"{enough} seeds settle such a difference as likely as not, " if enough < MOST_SEEDS else ""
        most = f"{MOST_SEEDS} seeds, the most, with a probability of {percent(weigh(MOST_SEEDS))}"
        yield f"until it is answered: {few}{most}; it ends earlier where no step is likely enough to decide"


def find_spread(sweep: Sweep, past: Sequence[State]) -> Spread | None:
    """Returns the spread in a recorded sweep of the same tasks, the own one first; the assumed one if there is none. Nothing is
    assumed of a likelihood: None."""
    for state in sorted(past, key=lambda state: state.sweep.name != sweep.name):
        if state.sweep.tasks != sweep.tasks:
            continue
        summaries = summarize_entries(state.requested)
        complete = [row for row in summaries if row.complete and row.method != HEAD and math.isfinite(row.score.mean)]
        seeds = [row.score.n for row in complete]
        results = [(entry.trial.task, entry.result.facts) for entry in state.requested if entry.result is not None]
        rows = {task: float(facts[EXAMPLES]) for task, facts in results if EXAMPLES in facts}
        if sum(seeds) - len(seeds) - max(seeds, default=0) + 1 >= PILOT and len(rows) == len(sweep.task_names):
            source = f"by the seeds of {len(complete)} configurations of {state.sweep.name}"
            if spread := measure_spread(complete, state.sweep.objectives, effective_rows([*rows.values()]), source):
                return spread
    if any(METRICS[find_task(task, sweep.data).primary].by_token for task in sweep.task_names):
        return None
    return assume_spread(len(sweep.task_names))
