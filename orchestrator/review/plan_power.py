"""What a plan can find out: the probability that it settles a difference of `enough.within` points, and what would raise it.

The spread of seeds and rows is that of a recorded sweep of the same model on the same tasks, which may be the sweep itself.
Where there is none, it is assumed, and the sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from craft.results import EXAMPLES
from craft.tasks import find_task
from craft.tasks.metrics import METRICS
from craft.words import percent, points
from orchestrator.judging.control import HEAD
from orchestrator.judging.front import SEEDS
from orchestrator.judging.power import Size, Spread, assume_spread, effective_rows, measure_spread, settles
from orchestrator.plan.plan import MOST_SEEDS, Plan
from orchestrator.plan.work import more_rows
from orchestrator.results.summary import summarize_entries
from orchestrator.state.state import State
from orchestrator.sweepfile.sweep import Sweep

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
