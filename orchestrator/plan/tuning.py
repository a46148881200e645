"""What tuning costs in a plan whose `replication` chooses the best of each group: its groups, its trials, equal budgets.

A group is one configuration with every value that is tried of what is tuned, its candidates. Their trials with the sweep's
seeds choose, and the best then runs with the seeds of `replication`. A group of one is not tuned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.plan.configuration import Configuration
from orchestrator.plan.planner import Planner
from orchestrator.sweepfile.mistakes import SweepError, dotted
from orchestrator.sweepfile.settings import ReplicationSettings
from orchestrator.sweepfile.sweep import Sweep

Groups = list[list[Configuration]]

SHOWN = 8


def groups_of(planner: Planner, configurations: Iterable[Configuration]) -> Groups:
    """The configurations that are candidates together, one list a group."""
    found: dict[str, list[Configuration]] = {}
    for one in configurations:
        if not one.candidates:
            found.setdefault(planner.group(one), []).append(one)
    return list(found.values())


def check_equal_budgets(planner: Planner, configurations: Sequence[Configuration], duplicates: Sequence[str]) -> None:
    """Checks what `compare: fair` promises, on the configurations as the model takes them.

    Args:
        duplicates: labels of points of the space that equal one of the configurations.
    """
    sweep, groups, lines = planner.sweep, groups_of(planner, configurations), list[str]()
    if duplicates:
        named = "; ".join(duplicates[:SHOWN])
        lines.append(f"{sweep.where(('space',))}: space: under compare: fair each configuration stands once; twice: {named}")
    tuned = [group for group in groups if _is_tuned(sweep, group[0])]
    most = max(map(len, tuned), default=0)
    fewest = {group[0].path: len(group) for group in sorted(tuned, key=len, reverse=True)}
    lines += [
        f"{sweep.where(path)}: {dotted(path)}: {count} candidates are left of a configuration and {most} of others, because "
        "constraints drop some or another block has the same; under compare: fair all are tuned by equally many"
        for path, count in fewest.items()
        if count < most and not duplicates
    ]
    first, further = _trials(sweep, groups)
    if sweep.budget.trials is not None and first + further > sweep.budget.trials:
        where, needed = sweep.where(("budget", "trials")), first + further
        lines.append(
            f"{where}: budget.trials: to tune and measure all takes {needed} trials; the budget is {sweep.budget.trials}"
        )
    if lines:
        raise SweepError(lines)


def lines_of(planner: Planner, configurations: Sequence[Configuration], steps: Mapping[str, int]) -> list[str]:
    """What `--plan` says of the further seeds, and of each configuration's budget for tuning.

    Args:
        steps: optimizer steps of a configuration's trials together, by configuration id, where the data's sizes are known.
    """
    sweep, rule, groups = planner.sweep, _rule(planner.sweep), groups_of(planner, configurations)
    first, further = _trials(sweep, groups)
    chosen = [group for group in groups if len(group) > 1 or not rule.apart]
    share = len(rule.seeds) / len(sweep.seeds)
    all_steps = sum(steps.values()) + round(sum(max(steps.get(one.id, 0) for one in group) * share for group in chosen))
    tune = f"{'seed' if len(sweep.seeds) == 1 else 'the seeds'} {_listed(sweep.seeds)}"
    how = ", on each task by its search score" if rule.apart else ", by its search score"
    lines = [
        f"then with the seeds {_listed(rule.seeds)}: the best of each of {len(chosen)} groups{how}: "
        f"at most {further} trials more, {first + further} in all" + (f", {all_steps:,} steps" if all_steps else "")
    ]
    sizes = {len(group) for group in groups if len(group) > 1}
    if rule.tuned and sizes:
        each = {size * len(sweep.task_names) * len(sweep.seeds) for size in sizes}
        lines.append(
            f"tuned: {', '.join(rule.tuned)}; {_between(sizes)} candidates and {_between(each)} trials for each configuration, "
            f"with {tune}" + (", whose scores are not reported" if rule.apart else "")
        )
    fixed = [group[0].label for group in groups if len(group) == 1] if rule.tuned else []
    if fixed:
        more = f" and {len(fixed) - SHOWN} more" if len(fixed) > SHOWN else ""
        lines.append(f"not tuned: {'; '.join(fixed[:SHOWN])}{more}")
    return lines


def _trials(sweep: Sweep, groups: Groups) -> tuple[int, int]:
    """How many trials come first, and how many come after the choice at most: those of a best one in every group. A group of
    one has nothing to wait for where tuning is apart."""
    rule, tasks = _rule(sweep), len(sweep.task_names)
    alone = sum(len(group) == 1 for group in groups) if rule.apart else 0
    candidates = sum(map(len, groups)) - alone
    return tasks * (candidates * len(sweep.seeds) + alone * len(rule.seeds)), (len(groups) - alone) * tasks * len(rule.seeds)


def _rule(sweep: Sweep) -> ReplicationSettings:
    assert sweep.replication is not None
    return sweep.replication


def _is_tuned(sweep: Sweep, configuration: Configuration) -> bool:
    block = sweep.block_at(configuration.path)
    return block is None or block.tuned


def _between(numbers: set[int]) -> str:
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
