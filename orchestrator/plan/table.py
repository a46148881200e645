"""The plan as a table and lines of numbers: what `--plan` prints."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from craft.methods import METHODS
from craft.models.files import gguf_notes
from craft.words import format_bytes, list_some, plural
from orchestrator.plan.configuration import text
from orchestrator.plan.plan import MOST_POINTS, MOST_SEEDS, Plan
from orchestrator.plan.tuning import SHOWN as FEW
from orchestrator.plan.tuning import Family, budget_of, most_choices
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu, choose_way
from orchestrator.sweepfile.resources import Resources, times

SHOWN, NAMED = 200, 3
"""Configurations in the table, and those that are named in a line."""
MACHINE_GPUS = 8.0
"""GPUs of a machine, where no machine is known."""


class Line(NamedTuple):
    """A number of a plan with its name, or a sentence without one; `doubt` if a person should look at it."""

    label: str
    value: str
    doubt: bool = False

    def __str__(self) -> str:
        return f"{self.label}: {self.value}" if self.label else self.value


def print_plan(plan: Plan, console: Console, steps: Mapping[str, int], lines: Sequence[Line] = ()) -> None:
    """Prints the configurations with what each costs, what all of them cost, and `lines`; `steps` are those of all trials of a
    configuration, by its id, if they are counted."""
    console.print(Text(f"{plan.sweep.name}: {plan.sweep.model}", "table.title"))
    if not plan.adaptive:
        console.print(_configurations(plan, steps))
    for line in (*_totals(plan, steps), *_tuning_lines(plan, steps), *lines):
        style = "yellow" if line.doubt else None
        console.print(str(line), style=style, markup=False, highlight=False, soft_wrap=True)


def _configurations(plan: Plan, steps: Mapping[str, int]) -> Table:
    trials = Counter(trial.configuration for trial in plan.trials)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("configuration", overflow="fold")
    for name in ("id", "trainable", "head", "adapter", "memory", "trials", *(["steps"] if steps else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for configuration in plan.configurations[:SHOWN]:
        counts, memory = configuration.counts, configuration.estimated_memory_bytes
        table.add_row(
            Text(configuration.label),
            configuration.id,
            f"{counts.trainable_parameters:,}",
            f"{counts.head_parameters:,}",
            format_bytes(counts.adapter_bytes),
            format_bytes(memory) if memory is not None else "",
            str(trials[configuration.id] or "later"),
            *([f"{steps[configuration.id]:,}" if configuration.id in steps else "cut"] if steps else []),
        )
    return table


def _totals(plan: Plan, steps: Mapping[str, int]) -> Iterator[Line]:
    sweep, tasks, dropped = plan.sweep, len(plan.sweep.task_names), [*plan.dropped]
    yield from (Line("model", note) for note in gguf_notes(sweep.model))
    if (hidden := len(plan.configurations) - SHOWN) > 0:
        yield Line("configurations", f"{hidden} more")
    if plan.adaptive:
        seeds, sizes = [len(sweep.seeds)], [int(point.known["trainable_parameters"]) for point in plan.probed]
        memory = max((point.estimated_memory_bytes or 0 for point in plan.probed), default=0)
        total, configurations, most = plan.wanted * tasks * seeds[0], plan.wanted, "at most "
        yield Line("trainable parameters of sampled points", f"{min(sizes):,} to {max(sizes):,}")
        if memory:
            yield Line("memory", f"at most {format_bytes(memory)}, estimated for a training step")
        if dropped:
            every, dropped = len(dropped) + len(plan.probed), dropped[:1]
            yield Line("dropped", f"{len(plan.dropped)} of {every} sampled points, such as:")
    else:
        trials = Counter(trial.configuration for trial in plan.trials)
        first = [trials[trained.id] for trained in plan.trained if trials[trained.id]]
        seeds, total, configurations, most = sorted({count // tasks for count in first}), len(plan.jobs), len(first), ""
    if begins := _starting_rates(plan):
        yield Line("learning rates of methods that are given none", begins)
    yield from (Line("dropped", f"{drop.configuration.label}: {drop.reason}") for drop in dropped)
    if plan.duplicates:
        yield Line("merged", f"{len(plan.duplicates)} that equal another: {'; '.join(plan.duplicates[:5])}")
    yield Line(
        "trainings",
        f"{most}{configurations} {plural(configurations, 'configuration')} x {tasks} {plural(tasks, 'task')} x "
        f"{' or '.join(map(str, seeds))} {plural(max(seeds, default=0), 'seed')} = {total} {plural(total, 'trial')}"
        + (f", {sum(steps.values()):,} optimizer steps" if steps else "")
        + (f", chosen by {sweep.search.algorithm} while the sweep runs" if plan.adaptive else ""),
    )
    if cuts := len(plan.configurations) - len(plan.trained):
        yield Line("cuts", f"{cuts} {plural(cuts, 'configuration')}, of at most the size shown")
    if plan.configurations:
        yield Line("memory", "estimated for a training step; adapter: bytes saved for adapter and head")


def _starting_rates(plan: Plan) -> str:
    """Returns the rate of each method whose configurations have none of their own, as `CRAFT 3.4e-3, LoRA 2.1e-3 to 4.1e-3`."""
    sweep, task, rates = plan.sweep, plan.sweep.task_names[0], dict[str, set[float]]()
    for trained in plan.probed or plan.trained:
        rate = sweep.training_for(task, trained.training, sweep.block_at(trained.path)).learning_rate
        if rate is None and METHODS[trained.method].adapts:
            rates.setdefault(METHODS[trained.method].title, set()).add(plan.planner.identity.own_rate(trained))
    return ", ".join(
        f"{title} {' to '.join(text(end) for end in sorted({min(some), max(some)}))}" for title, some in rates.items()
    )


def choices(plan: Plan) -> list[Line]:
    """Returns which searcher `auto` is, and the bound of `search.until`."""
    lines = [Line("search", f"auto is {plan.sweep.chosen}")] if plan.sweep.chosen else []
    if plan.sweep.search.until:
        tuning, trained = 0, plan.wanted if plan.adaptive else len(plan.trained)
        if plan.sweep.tunes and not plan.adaptive:
            tuning = budget_of(plan.sweep, plan.families)[1]
            trained = sum(most_choices(plan.sweep, group) for family in plan.families for group in family.groups)
        most = tuning + (trained + MOST_POINTS) * MOST_SEEDS * len(plan.sweep.task_names)
        more = f"at most {MOST_SEEDS} seeds of a configuration, {MOST_POINTS} more sizes and rates"
        lines.append(Line("until it is answered", f"{more}, {most} trials at most"))
    return lines


def _tuning_lines(plan: Plan, steps: Mapping[str, int]) -> Iterator[Line]:
    sweep, families = plan.sweep, [] if plan.adaptive else plan.families
    if not sweep.tunes:
        return
    seeds = f"seeds {', '.join(map(str, sweep.reported_seeds))}"
    if plan.adaptive:
        yield Line("then", f"the best of each group, {seeds}")
        return
    planned, every, measuring = budget_of(sweep, families)
    groups = [group for family in families for group in family.groups]
    fixed = [group[0].label for group in groups if len(group) == 1]
    counts = {len(group) for group in groups if len(group) > 1}
    more_trials = measuring - len(fixed) * len(sweep.task_names) * len(sweep.reported_seeds)
    all_steps = round(sum(_steps(family, len(sweep.reported_seeds) / len(sweep.seeds), steps) for family in families))
    walked, transferred = any(family.later for family in families), [family for family in families if family.ends]
    yield Line(
        "then",
        f"the best of {len(groups) - len(fixed)} groups, {seeds}: at most {more_trials} trials more, "
        f"{'about ' if walked else ''}{planned + measuring} in all" + (f", {all_steps:,} steps" if all_steps else ""),
    )
    if counts:
        each = {size * len(sweep.task_names) * len(sweep.seeds) for size in counts}
        most = f"{'at most ' if walked else ''}{_between(counts)} candidates and {_between(each)} trials a configuration"
        tuned = f"{', '.join(sweep.tuned_settings)}, {most}"
        yield Line("tuned", f"{tuned}, {plural(len(sweep.seeds), 'seed')} {', '.join(map(str, sweep.seeds))} (not reported)")
    if walked:
        first = list_some([plan.planner.labels.label_of(family.groups[family.start]) for family in transferred], FEW, "; ")
        yield Line("rates", f"{planned} trainings instead of {every}{', tuned at ' if first else ''}{first}")
    if fixed:
        yield Line("not tuned", list_some(fixed, FEW, "; "))


def _steps(family: Family, share: float, steps: Mapping[str, int]) -> float:
    """Returns the steps of a family's tuning and of the seeds after it, of which there are `share` for each seed that tunes.
    All its ranks are trained for as many."""
    group = family.groups[family.start]
    first = [steps.get(group[place].id, 0) for place in family.first]
    reported = 0 if family.candidates == 1 else len(family.groups) * share
    return sum(first) + max(first) * (family.planned - len(first) + reported)


def _between(numbers: set[int]) -> str:
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def gpu_lines(plan: Plan, gpus: Sequence[Gpu], counts: Sequence[float] = ()) -> list[Line]:
    """Returns a line for each share of GPUs that trials ask for: the memory of each, trials at once, GPUs that stay idle.

    Args:
        gpus: those whose memory is known.
        counts: the number of GPUs of each machine; `gpus` are one machine if none is given.
    """
    card, machines = min(gpus, key=lambda gpu: gpu.bytes, default=None), counts or [len(gpus) or MACHINE_GPUS]
    if not any(share.gpu for share in plan.sweep.shares):
        if sys.platform == "darwin":
            return [Line("on this Mac", "every trial runs on the CPU; its GPU is not used")]
        return [idle_line(sum(machines))] if gpus else []
    shares = [share for share in plan.sweep.shares if share.count > 1 or (share.gpu and gpus)]
    return [_line_of(plan, share, card, machines) for share in shares]


def idle_line(gpus: float) -> Line:
    return Line("GPUs", f"{gpus:g}, all idle: resources.gpu is 0", True)


def _line_of(plan: Plan, share: Resources, card: Gpu | None, machines: Sequence[float]) -> Line:
    needs, how = _needs(plan, share, card.bytes if card else None)
    most, lacking, idle = max(needs.values(), default=0), list[str](), 0.0
    parts = [f"{share.describe()}, about {format_bytes(most)} each"] if most else [share.describe()]
    parts += [how] if how else []
    if share.gpu and card is not None:
        available = min(share.gpu, 1.0) * card.bytes
        parts[0] += f" of {format_bytes(available)} ({card.name})"
        lacking = [f"{label} ({format_bytes(need)})" for label, need in needs.items() if need + CONTEXT_BYTES > available]
        fit = times(card.bytes, most + CONTEXT_BYTES)
        least = f"resources.gpu {math.floor(1000 / fit) / 1000:g}" if fit and share.gpu <= 1 else "more GPUs or less memory"
        parts += [f"too small for {list_some(lacking, NAMED)}: {least}"] if lacking else []
    if share.gpu:
        slots = sum(share.fitting("GPU", {"GPU": count}) // share.count for count in machines)
        idle = sum(machines) - slots * share.gpu
        parts.append(f"{slots} at once on {' + '.join(f'{count:g}' for count in machines)} GPUs, {idle:g} idle")
    return Line("GPUs", "; ".join(parts), bool(lacking) or (share.gpu > 1 and idle > 0))


def _needs(plan: Plan, share: Resources, gpu_bytes: int | None) -> tuple[dict[str, int], str]:
    """Returns the bytes that each process of a share's trials takes, by label, and how several processes share a trial."""
    if share.count == 1:
        needs = [(row, row.estimated_memory_bytes) for row in plan.trained or plan.probed]
        mine = [(row, need) for row, need in needs if plan.sweep.resources_for(plan.sweep.block_at(row.path)) == share]
        return {row.label: need for row, need in mine if need is not None}, ""
    every = [trial for trial in (*plan.trials, *plan.examples) if trial.run.cut_from is None and trial.resources == share]
    firsts = {trial.configuration: trial for trial in reversed(every)}
    found = {trial.label: choose_way(trial.run, share, gpu_bytes) for trial in reversed(firsts.values())}
    ways = sorted({f"{choice.way} ({choice.reason})" for choice in found.values()})
    return {label: choice.need for label, choice in found.items()}, ", ".join(ways)
