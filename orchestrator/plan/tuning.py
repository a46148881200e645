"""What tuning costs in a plan whose `replication` chooses the best of each group: its groups, its trials, equal budgets.

A group is one configuration with every value that is tried of what is tuned, its candidates. Their trials with the sweep's
seeds choose, and the best then runs with the seeds of `replication`. A group of one is not tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.plan.configuration import Configuration
from orchestrator.plan.planner import Planner
from orchestrator.plan.transfer import Family
from orchestrator.sweepfile.mistakes import SweepError, dotted
from orchestrator.sweepfile.sweep import Sweep

SHOWN = 8


def check_equal_budgets(sweep: Sweep, families: Sequence[Family], duplicates: Sequence[str]) -> None:
    """Checks what `compare: fair` promises, on the configurations as the model takes them.

    Args:
        duplicates: labels of points of the space that equal one of the configurations.
    """
    lines = list[str]()
    if duplicates:
        named = "; ".join(duplicates[:SHOWN])
        lines.append(f"{sweep.where(('space',))}: space: under compare: fair each configuration stands once; twice: {named}")
    tuned = [group for family in families for group in family.groups if _is_tuned(sweep, group[0])]
    most = max(map(len, tuned), default=0)
    fewest = {group[0].path: len(group) for group in sorted(tuned, key=len, reverse=True)}
    lines += [
        f"{sweep.where(path)}: {dotted(path)}: {count} candidates are left of a configuration and {most} of others, because "
        "constraints drop some or another block has the same; under compare: fair all are tuned by equally many"
        for path, count in fewest.items()
        if count < most and not duplicates
    ]
    _, every, measuring = budget_of(sweep, families)
    if sweep.budget.trials is not None and every + measuring > sweep.budget.trials:
        where, needed = sweep.where(("budget", "trials")), every + measuring
        lines.append(
            f"{where}: budget.trials: to tune and measure all takes {needed} trials; the budget is {sweep.budget.trials}"
        )
    if lines:
        raise SweepError(lines)


def lines_of(planner: Planner, families: Sequence[Family], steps: Mapping[str, int]) -> list[str]:
    """Returns the lines of `--plan` on the further seeds, and on each configuration's budget for tuning.

    Args:
        steps: optimizer steps of a configuration's trials together, by configuration id, where the data are here.
    """
    sweep, seeds = planner.sweep, planner.sweep.reported_seeds
    planned, _, measuring = budget_of(sweep, families)
    groups = [(family, group) for family in families for group in family.groups]
    fixed = [group[0].label for _, group in groups if len(group) == 1]
    further = (len(groups) - len(fixed)) * len(sweep.task_names) * len(seeds)
    all_steps = round(sum(_steps(family, len(seeds) / len(sweep.seeds), steps) for family in families))
    transferred = [family for family in families if family.later]
    lines = [
        f"then with the seeds {_listed(seeds)}: the best of each of {len(groups) - len(fixed)} groups, on each task "
        f"by its search score: at most {further} trials more, "
        f"{'about ' if transferred else ''}{planned + measuring} in all" + (f", {all_steps:,} steps" if all_steps else "")
    ]
    counts = {len(group) for _, group in groups if len(group) > 1}
    if sweep.tuned_settings and counts:
        each = {size * len(sweep.task_names) * len(sweep.seeds) for size in counts}
        tune = f"{'seed' if len(sweep.seeds) == 1 else 'the seeds'} {_listed(sweep.seeds)}"
        lines.append(
            f"tuned: {', '.join(sweep.tuned_settings)}; {_between(counts)} candidates and {_between(each)} trials for each "
            f"configuration, with {tune}, whose scores are not reported"
        )
    if transferred:
        first = _shortened([planner.labels.label_of(family.groups[family.start]) for family in transferred])
        lines.append(
            f"{rates_words(sweep, families, planned)}: tuned at {first}; the others take its rate, checked at both ends"
        )
    if fixed and sweep.tuned_settings:
        lines.append(f"not tuned: {_shortened(fixed)}")
    return lines


def rates_words(sweep: Sweep, families: Sequence[Family], trainings: int) -> str:
    """Returns a phrase such as `rates: 24 trainings instead of 72`."""
    return f"rates: {trainings} trainings instead of {budget_of(sweep, families)[1]}"


def budget_of(sweep: Sweep, families: Sequence[Family]) -> tuple[int, int, int]:
    """Returns how many trials tune if learning rates are transferred over ranks, how many if none is, and how many are reported
    at most: those of a best candidate in every group. A group of one has nothing to wait for."""
    tasks = len(sweep.task_names)
    alone = sum(family.candidates == 1 for family in families)
    planned, every = sum(family.planned for family in families) - alone, sum(family.candidates for family in families) - alone
    each = tasks * len(sweep.seeds)
    return planned * each, every * each, sum(len(family.groups) for family in families) * tasks * len(sweep.reported_seeds)


def _steps(family: Family, share: float, steps: Mapping[str, int]) -> float:
    """Returns the steps of a family's tuning and of the seeds after it, of which there are `share` for each seed that tunes.
    All its ranks are trained for as many."""
    first = [steps.get(candidate.id, 0) for candidate in family.groups[family.start]]
    reported = 0 if family.candidates == 1 else len(family.groups) * share
    return sum(first) + max(first) * (family.planned - len(first) + reported)


def _is_tuned(sweep: Sweep, configuration: Configuration) -> bool:
    block = sweep.block_at(configuration.path)
    return block is None or block.tuned


def _shortened(labels: Sequence[str]) -> str:
    return "; ".join(labels[:SHOWN]) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")


def _between(numbers: set[int]) -> str:
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
