"""The plan as a table: what `--plan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from craft.models.gguf import gguf_notes
from craft.words import format_bytes, plural
from orchestrator.plan.gpu_shares import Gpu, gpu_lines
from orchestrator.plan.plan import MOST_POINTS, MOST_SEEDS, Plan
from orchestrator.plan.tuning import lines_of
from orchestrator.sweepfile.sweep import Sweep

SHOWN = 200


def print_plan(plan: Plan, console: Console, steps: Mapping[str, int] | None = None, gpus: Sequence[Gpu] = ()) -> None:
    """Prints configurations with what each costs, then what is dropped, merged and the totals; at last what is said of GPUs."""
    if plan.adaptive:
        _print_bounds(plan, console)
    else:
        _print_configurations(plan, console, steps or {})
    for line in choices(plan):
        console.print(line, markup=False, highlight=False)
    for use in gpu_lines(plan, gpus):
        console.print(use.text, style="yellow" if use.doubt else None, markup=False, highlight=False, soft_wrap=True)


def _print_configurations(plan: Plan, console: Console, steps: Mapping[str, int]) -> None:
    sweep, trials = plan.sweep, Counter(trial.configuration for trial in plan.trials)
    table = Table(
        title=Text(f"{sweep.name}: {sweep.model}", "table.title"),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
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
    console.print(table)
    _print_model(plan, console)
    if len(plan.configurations) > SHOWN:
        console.print(f"... and {len(plan.configurations) - SHOWN} more configurations")
    for dropped in plan.dropped:
        console.print(f"dropped: {dropped.configuration.label}: {dropped.reason}", markup=False, highlight=False)
    if plan.duplicates:
        merged = "; ".join(plan.duplicates[:5])
        console.print(f"merged: {len(plan.duplicates)} that equal another: {merged}", markup=False, highlight=False)
    first = [trained for trained in plan.trained if trials[trained.id]]
    seeds = sorted({trials[trained.id] // len(sweep.task_names) for trained in first})
    console.print(
        f"{_counts(sweep, len(first))} x {' or '.join(map(str, seeds))} {plural(max(seeds, default=0), 'seed')} = "
        f"{len(plan.jobs)} {plural(len(plan.jobs), 'trial')}" + (f", {sum(steps.values()):,} optimizer steps" if steps else ""),
        highlight=False,
    )
    if cuts := len(plan.configurations) - len(plan.trained):
        console.print(
            f"their adapters are cut to {cuts} more {plural(cuts, 'configuration')} of at most the size shown, each trained "
            "further for a tenth of the steps",
            highlight=False,
        )
    _print_replication(plan, console, steps)
    console.print(
        "trainable: the adapter's parameters; head: the task head's, trained with them; adapter: bytes saved for both; "
        "memory: estimated for a training step",
        style="dim",
        highlight=False,
    )


def _counts(sweep: Sweep, configurations: int) -> str:
    tasks = len(sweep.task_names)
    return f"{configurations} {plural(configurations, 'configuration')} x {tasks} {plural(tasks, 'task')}"


def _print_model(plan: Plan, console: Console) -> None:
    for note in gguf_notes(plan.sweep.model):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def choices(plan: Plan) -> list[str]:
    """Returns which searcher `auto` is, and the bound of `search.until`."""
    lines = [f"search: auto is {plan.sweep.chosen}"] if plan.sweep.chosen else []
    if plan.sweep.search.until:
        groups = sum(len(family.groups) for family in plan.families) if plan.sweep.tunes else len(plan.trained)
        most = ((plan.wanted if plan.adaptive else groups) + MOST_POINTS) * MOST_SEEDS * len(plan.sweep.task_names)
        lines.append(
            f"then until it is answered: more seeds of configurations that decide, at most {MOST_SEEDS} of each, and at most "
            f"{MOST_POINTS} sizes and rates: as far as the budget allows, {most} trials at most, of which few are needed"
        )
    return lines


def _print_replication(plan: Plan, console: Console, steps: Mapping[str, int]) -> None:
    rule = plan.sweep.replication
    if rule is None:
        return
    if not plan.adaptive:
        for line in lines_of(plan.planner, plan.families, steps):
            console.print(line, markup=False, highlight=False)
        return
    seeds = ", ".join(map(str, rule.seeds))
    console.print(f"then with the seeds {seeds}: the best of each group, by their search scores", highlight=False)


def _print_bounds(plan: Plan, console: Console) -> None:
    sweep = plan.sweep
    parameters = [int(configuration.known["trainable_parameters"]) for configuration in plan.probed]
    memory = max((point.estimated_memory_bytes or 0 for point in plan.probed), default=0)
    console.print(f"{sweep.name}: {sweep.model}", style="bold", markup=False, highlight=False)
    _print_model(plan, console)
    console.print(
        f"{sweep.search.algorithm} chooses configurations while the sweep runs, so none is listed here.\n"
        f"at most {_counts(sweep, plan.wanted)} x {len(sweep.seeds)} {plural(len(sweep.seeds), 'seed')} = "
        f"{plan.wanted * len(sweep.task_names) * len(sweep.seeds)} trials\n"
        f"trainable parameters of sampled points: {min(parameters):,} to {max(parameters):,}"
        + (f"; memory estimated for a training step: at most {format_bytes(memory)}" if memory else ""),
        highlight=False,
    )
    if plan.dropped:
        total = len(plan.dropped) + len(plan.probed)
        console.print(
            f"{len(plan.dropped)} of {total} sampled points break a constraint and would not be trained, such as "
            f"{plan.dropped[0].configuration.label}: {plan.dropped[0].reason}",
            highlight=False,
        )
    _print_replication(plan, console, {})
