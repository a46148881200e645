"""Power: in how many of ten such sweeps there will be an answer, before one runs.

    true scores, variances of seeds  ->  means over n seeds on R rows  ->  P(enough) as `judge` has it  ->  an answer or none

The plan's own configurations are simulated. What they score in truth, and how their seeds and rows spread, are drawn from the
posterior of a recorded sweep of the same model on the same tasks, which may be the sweep itself. Where there is none, it is
assumed: in some sweeps all sizes are equally good, in most larger ones gain a little. The sentence says so (`power_lines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from craft.results import EXAMPLES
from craft.tasks import find_task
from craft.tasks.metrics import METRICS
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import MOST_SEEDS, Plan
from orchestrator.plan.work import more_rows
from orchestrator.record.state import State
from orchestrator.results.front import SEEDS
from orchestrator.results.luck import luck
from orchestrator.results.metrics import SIZE, column_of
from orchestrator.results.posterior import Evidence, Numbers, shares
from orchestrator.results.probabilities import MOST_PRIOR, evidence
from orchestrator.results.summary import Summary, complete_among, summarize_entries
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES, Enough

ROW, DRAWN, SHARED = 43.0, 0.25, 0.17
"""The standard deviation of a row that is right or wrong, in points, where three of four are right; the shares of its variance
that are drawn again with each seed, and that all seeds of a configuration share (SST-2 in records/answers.npz)."""
REST, SCATTER, UNSURE = 0.85, 0.8, 0.8
"""Assumed, in points: the standard deviations of seeds on infinitely many rows and of true scores; that of their logarithms."""
GAIN, TIES, CHOICE, TOGETHER = 0.3, 0.25, 0.4, 0.6
"""Assumed: the mean gain of twice the size; the share of sweeps in which nothing differs; the variance of a tuned score by the
choice of its settings; the part of a seed's luck that an adapter and its cuts share."""
SWEEPS, DRAWS, WORK = 100, 200, 3000
"""Simulated sweeps, draws of the posterior of each, the most configurations of all of them (which take less than a second)."""
PILOT = 4
"""The fewest degrees of freedom of a recorded sweep that says how seeds spread: of three configurations with three seeds."""
MORE_SEEDS = 2
"""So many more seeds are weighed next to the plan's own, and twice the rows."""
Members = Sequence[tuple[str, Configuration]]
"""The configurations that a plan reports, each after the name of what is trained, which an adapter and its cuts share."""


@dataclass(frozen=True)
class Outlook:
    """What configurations may score, in draws.

    Attributes:
        truths: `(sweeps, n)`, true scores.
        residuals: `(sweeps, n)`, the variance of a score by what another seed changes on infinitely many rows.
        drawn, shared: what one scored row changes that is drawn again with each seed, and what it changes for all seeds.
        base: of the configurations, with the luck of choosing alone, and the degrees of freedom of the variances' prior.
        source: where this is known from.
    """

    truths: Numbers
    residuals: Numbers
    drawn: float
    shared: float
    base: Evidence
    source: str

    def answered(self, seeds: int, rows: float, rule: Enough) -> float:
        """Returns the share of sweeps with so many seeds, scored on so many `effective_rows`, that have an answer."""
        variances, choices, together = (self.residuals + self.drawn / rows) / seeds, self.base.luck, self.base.together
        first, answers = np.arange(len(choices)), 0
        for family, _ in self.base.families:
            first[[*family]] = family[0]
        common, own = np.random.default_rng(2).standard_normal((2, *self.truths.shape))
        means = self.truths + np.sqrt(together * variances + choices) * common[:, first]
        means += np.sqrt((1 - together) * variances + self.shared / rows) * own
        shown = replace(self.base, luck=choices + self.shared / rows, freedom=self.base.freedom + seeds - 1)
        for mean, variance in zip(means, variances, strict=True):
            scores = replace(shown, means=mean, errors=variance, within=rule.within).draw(DRAWS)
            answers += bool(shares(scores, np.zeros((len(mean), 1)), rule.within).max() >= rule.sure)
        return answers / len(means)


def members_of(plan: Plan) -> Members:
    """Returns the configurations of a plan; candidates among which settings are chosen are one. Of an adaptive plan they are as
    many as it wants of those that were tried out."""
    if plan.adaptive:
        return [(str(place), plan.probed[place % len(plan.probed)]) for place in range(plan.wanted)]
    members = dict[tuple[str, str | None], Configuration]()
    for row in plan.configurations:
        name = plan.planner.identity.group(row.source or row) if plan.sweep.tunes else (row.source or row).id
        members.setdefault((name, row.cut_to), row)
    return [(name, row) for (name, _), row in members.items()]


def assume(members: Members, tasks: int = 1, tuned: bool = False) -> Outlook:
    """Returns the outlook where nothing is known: that of the trainings recorded in docs/measurements/records."""
    many, random = len(members), np.random.default_rng(1)
    base = _evidence_of(members, np.full(many, tuned * CHOICE / tasks), np.full(many, MOST_PRIOR), TOGETHER)
    sweeps = _sweeps(members)
    rest, scatter = np.exp(UNSURE * random.standard_normal((2, sweeps, 1))) * [[[REST]], [[SCATTER]]]
    gain = random.exponential(GAIN, (sweeps, 1)) * np.log2(np.maximum(base.size, 1))
    truths = (random.random((sweeps, 1)) >= TIES) * (gain + scatter * random.standard_normal((sweeps, many)))
    residuals = np.broadcast_to(rest**2 / math.sqrt(tasks), truths.shape)
    source = "assumed: seeds, rows and sizes as on GLUE at scores near 75"
    return Outlook(truths, residuals, DRAWN * ROW**2, SHARED * ROW**2, base, source)


def foresee(members: Members, complete: Sequence[Summary], rows: float, source: str) -> Outlook | None:
    """Returns the outlook by the posterior of a recorded sweep; None where it has too few seeds, or none differs. What is not
    in it has what the nearest size has, of its method if there is one.

    Args:
        rows: those on which each was scored.
    """
    observed = evidence(complete, DEFAULT_OBJECTIVES)
    if observed is None or (observed.seeds - 1).sum() - observed.seeds.max() + 1 < PILOT or not observed.errors.any():
        return None

    def distance(member: Configuration, row: Summary) -> tuple[bool, bool, float]:
        sizes = (max(size, 1.0) for size in (member.counts.trainable_parameters, row.value(SIZE)))
        return row.configuration != member.id, row.method != member.method, abs(np.subtract(*np.log([*sizes])))

    at = [min(range(len(complete)), key=lambda place: distance(member, complete[place])) for _, member in members]
    freedom, shared, every = observed.freedom[at], luck(complete), luck(complete, by_all=True)
    random, shape = np.random.default_rng(1), (_sweeps(members), len(at))
    truths = random.permutation(observed.draw())[: shape[0], at]
    # Their square roots have the mean of the estimates' square roots, nearly.
    variances = (observed.errors * observed.seeds)[at] * np.maximum(freedom - 1.5, 0.5) / random.chisquare(freedom, shape)
    drawn, of_all = DRAWN * ROW**2, SHARED * ROW**2
    if shared is not None and every is not None:
        typical = float(np.median(shared)) * rows
        drawn, of_all = max(0.0, float(np.median(every)) * rows - typical) * float(observed.seeds.mean()), typical
    of_prior = np.maximum(freedom - observed.seeds[at] + 1, 0)
    choices = np.array([complete[place].tuning.luck for place in at])
    base = _evidence_of(members, choices, of_prior, observed.together)
    return Outlook(truths, np.maximum(variances - drawn / rows, 0.0), drawn, of_all, base, source)


def _sweeps(members: Members) -> int:
    return max(20, min(SWEEPS, WORK // len(members)))


def _evidence_of(members: Members, choices: Numbers, freedom: Numbers, together: float) -> Evidence:
    names = [name for name, _ in members]
    places = [tuple(np.flatnonzero([other == name for other in names]).tolist()) for name in dict.fromkeys(names)]
    families = tuple((family, float(choices[family[0]])) for family in places if len(family) > 1)
    sizes = np.array([row.counts.trainable_parameters for _, row in members], dtype=float)
    none = np.zeros(len(names))
    return Evidence(none, none, freedom, none.astype(int), sizes, choices, families=families, together=together)


def effective_rows(counts: Sequence[float]) -> float:
    """Returns the rows of one task that leave as much error as the mean over tasks with so many rows each."""
    each = sum(1 / count for count in counts)
    return len(counts) ** 2 / each if each else math.inf


def power_lines(plan: Plan, examples: Mapping[str, tuple[int, int]], past: Sequence[State]) -> Iterator[str]:
    """Yields a sentence on how likely a plan has an answer, also with more seeds and rows; none where its data are not here, or
    there is nothing to compare. `examples` are the numbers of training and of scored examples of each task."""
    sweep, members, until = plan.sweep, members_of(plan), bool(plan.sweep.search.until)
    if not examples or len(members) < 2 or sweep.objectives.get("score") != "maximize":
        return
    if any(column_of(name).interval for name in sweep.objectives if name != "score"):
        return  # then there are no probabilities
    if (outlook := look_out(plan, members, past)) is None:
        yield f"how likely it has an answer: not known before a sweep of these tasks is recorded in {sweep.storage}"
        return
    counts = [scored for _, scored in examples.values()]
    rows, scored = effective_rows(counts), " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
    seeds = max(len(sweep.reported_seeds), MOST_SEEDS - 1 if until else SEEDS)
    share = outlook.answered(seeds, rows, sweep.enough)
    few = f"fewer than {SEEDS} seeds give no answer; " if len(sweep.reported_seeds) < SEEDS and not until else ""
    line = f"up to {MOST_SEEDS} seeds where they decide" if until else f"{few}{seeds} seeds"
    line += f" and {scored} scored rows{' a task' if len(counts) > 1 else ''}: an answer in "
    line += f"{'about ' if 0.05 <= share < 0.95 else ''}{_tenths(share)} of 10 such sweeps"
    if not until:
        line += f"; {seeds + MORE_SEEDS} seeds {_tenths(outlook.answered(seeds + MORE_SEEDS, rows, sweep.enough))}"
    cut = any(sweep.training_for(task, {}).eval_examples == scored for task, (_, scored) in examples.items())
    if ways := more_rows(examples, cut):
        line += f"; twice the rows {_tenths(outlook.answered(seeds, 2 * rows, sweep.enough))} ({ways})"
    yield f"{line}; {outlook.source}"


def _tenths(share: float) -> str:
    return "fewer than 1" if share < 0.05 else "more than 9" if share >= 0.95 else f"{max(1, round(10 * share))}"


def look_out(plan: Plan, members: Members, past: Sequence[State]) -> Outlook | None:
    """Returns the outlook by a recorded sweep of the same tasks, the own one first; the assumed one if there is none. Nothing
    is assumed of a likelihood: None."""
    sweep = plan.sweep
    for state in sorted(past, key=lambda state: state.sweep.name != sweep.name):
        complete = complete_among(summarize_entries(state.requested))
        results = [(entry.trial.task, entry.result.facts) for entry in state.requested if entry.result is not None]
        rows = {task: float(facts[EXAMPLES]) for task, facts in results if EXAMPLES in facts}
        if state.sweep.tasks == sweep.tasks and len(rows) == len(sweep.task_names):
            source = f"by {len(complete)} configurations of {state.sweep.name}"
            if outlook := foresee(members, complete, effective_rows([*rows.values()]), source):
                return outlook
    if any(METRICS[find_task(task, sweep.data).primary].by_token for task in sweep.task_names):
        return None
    return assume(members, len(sweep.task_names), bool(sweep.tunes))
