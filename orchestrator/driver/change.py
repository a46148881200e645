"""`Change`: what a sweep file would change in a sweep that exists, and its price, which a person sees before it is applied.

    + 3 configurations: LoRA r16, q v · LoRA r32, q v · LoRA r64, q v
    + seeds 3 4
    - LoRA r4, q v (2 running)
    budget.wall_clock: 24h -> 30h
    6 trainings more (about 4 min)
    budget.trials: 3 of 24 are left
    not known any more: whether an adapter is needed at all (no `head`)

It compares the trials that the sweep asks for, by its state, with those that the file's strategy wants in this state; and the
effective file with the new one, for settings that name no trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, computed_field

from craft.words import format_duration, plural
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Trial, jobs_of
from orchestrator.record.resume import check_resume, differences
from orchestrator.record.state import Entry, State
from orchestrator.results.front import HEAD
from orchestrator.results.report import Number, Report
from orchestrator.results.step import describe_price
from orchestrator.search.stages import make_strategy
from orchestrator.sweepfile.mistakes import SweepError, dotted, shown
from orchestrator.sweepfile.sweep import Sweep


def _seconds(new: list[Trial], state: State) -> float | None:
    trained = [(entry.trial, entry.result.seconds) for entry in state.trainings if entry.result and entry.finished]
    if not trained:
        return None
    total = 0.0
    for trial in new:
        same = [took for other, took in trained if other.configuration == trial.configuration]
        of_method = [took for other, took in trained if other.method == trial.method]
        total += fmean(same or of_method or [took for _, took in trained])
    return total / state.pace


def _budget(sweep: Sweep, trainings: int, state: State, seconds: float, driven: bool) -> Iterator[str]:
    budget, limit = sweep.budget, sweep.budget.wall_clock_seconds
    if budget.trials is not None:
        yield f"budget.trials: {max(0, budget.trials - trainings)} of {budget.trials} are left"
    if limit is not None:
        passed = time.time() - state.started.time if driven and state.started is not None else 0.0
        remaining_seconds = max(0.0, limit - passed)
        short = ", less than it takes" if seconds > remaining_seconds else ""
        yield f"budget.wall_clock: {format_duration(remaining_seconds)} of {budget.wall_clock_text} left{short}"


NAMED = 4
"""So many configurations of a line are named."""
EXCLUDED = ("name", "tasks", "seeds", "space", "storage", "tracking")
"""Sections that show in the trials, or that an applied file does not change: they decide where the sweep is recorded."""
SEPARATOR = " · "
_ASPECTS: dict[str, Callable[[Entry], Hashable]] = {
    "configuration": lambda entry: entry.trial.configuration,
    "task": lambda entry: entry.trial.task,
    "seed": lambda entry: entry.trial.seed,
}
"""In what trials differ, from the first to be named to the last."""


class Change(Report):
    """The difference between a sweep file and the sweep of that name; false if there is none."""

    report: Literal["apply"] = Field("apply", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    applied: bool = Field(False, description="Whether the change was made. False if it was only shown, or there is none.")
    added: list[str] = Field([], description="What the file adds, in words: configurations, seeds, tasks.")
    removed: list[str] = Field([], description="What the file does not have any more, in words, with what is lost by that.")
    changed: list[str] = Field([], description="Other settings that change, in words.")
    trainings: int = Field(0, description="How many trainings the file adds that have not ended.")
    seconds: Number = Field(0.0, description="How long they take, by trainings that have ended. Null if none has.")
    price: list[str] = Field(
        [], description="What it costs, in words: trainings, time, what is left of the budget, what is not known any more."
    )

    def __bool__(self) -> bool:
        return bool(self.lines)

    @property
    def lines(self) -> list[str]:
        return [*(f"+ {part}" for part in self.added), *(f"- {part}" for part in self.removed), *self.changed]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The difference and its price, as the terminal shows them."""
        return "\n".join([*self.lines, *self.price]) or f"nothing changes in {self.sweep}"


def find_change(recorded: Sweep | None, plan: Plan, state: State, driven: bool = True) -> Change:
    """Returns what the plan changes in a sweep with this state, with its price; a session runs the sweep if it is `driven`."""
    trials = make_strategy(plan).wanted(state)
    requested = {entry.key: entry for entry in state.requested or state.entries.values()}
    wanted = {trial.key: Entry(trial.trial) for trial in trials}
    added, removed = _compare(wanted, requested), _compare(requested, wanted)
    changed = list[str]()
    if recorded is not None:
        file, new_file = recorded.model_dump(mode="json"), plan.sweep.model_dump(mode="json")
        settings = [row for row in differences(file, new_file) if row[0][0] not in EXCLUDED]
        changed = [f"{dotted(path)}: {_word(old)} -> {_word(new)}" for path, old, new in settings]
        if not (added or removed) and file["space"] != new_file["space"]:
            to_come = ": the configurations of by now are the same, those to come are not" if plan.adaptive else ""
            changed.append(f"space{to_come}")
    change = Change(sweep=plan.sweep.name, added=added, removed=removed, changed=changed)
    return Change.fill(change, **_price(recorded, plan.sweep, jobs_of(trials), state, driven)) if change else change


def _price(recorded: Sweep | None, sweep: Sweep, jobs: list[Job], state: State, driven: bool) -> dict[str, Any]:
    """Returns the fields of a change that say what it costs."""
    counted = {entry.key for entry in state.requested}
    counted |= {key for key, entry in state.entries.items() if entry.result is not None and entry.result.settled}
    new = [job.training.trial for job in jobs if job.key not in counted]
    cuts = sum(key not in counted for job in jobs for key in job.keys) - len(new)
    seconds = _seconds(new, state)
    about = "" if not new else describe_price(seconds) if seconds else " (how long is not known: none has ended)"
    more = f" and {cuts} {plural(cuts, 'cut')}" if cuts else ""
    lines = [f"{len(new)} {plural(len(new), 'training')}{more} more{about}"]
    lines += _budget(sweep, len(jobs), state, seconds or 0.0, driven)
    if any(entry.trial.method == HEAD for entry in state.requested) and all(job.training.trial.method != HEAD for job in jobs):
        lines.append("not known any more: whether an adapter is needed at all (no `head`)")
    if recorded is not None and len(sweep.reported_seeds) < 2 <= len(recorded.reported_seeds):
        lines.append("not known any more: with what probability a configuration is enough (one seed)")
    return {"trainings": len(new), "seconds": seconds if new else 0.0, "price": lines}


def check_change(recorded: Sweep, sweep: Sweep, changed_plugins: Iterable[str] = ()) -> None:
    """Checks that a driver that runs can take a file over from another one. It keeps the plugins that it has imported."""
    check_resume(sweep.folder, sweep, recorded)
    lines = [*changed_plugins]
    if recorded.plugins != sweep.plugins:
        lines.append(f"plugins: were {shown([*recorded.plugins])}, are {shown([*sweep.plugins])}")
    if recorded.scheduler != sweep.scheduler:
        lines.append(f"scheduler: was {recorded.scheduler.name}, is {sweep.scheduler.name} ({sweep.where(('scheduler',))})")
    new = [share for share in sweep.shares if share not in recorded.shares]
    lines += [f"resources: no trial of the sweep has {shown(share.model_dump(exclude_defaults=True))} yet" for share in new]
    if lines:
        advice = "stop the sweep by Ctrl-C, which keeps the checkpoints, and apply the file again"
        raise SweepError(["a driver that runs keeps what it was started with:", *(f"  {line}" for line in lines), advice])


def _compare(these: dict[str, Entry], those: dict[str, Entry]) -> list[str]:
    parts, remaining = list[str](), [entry for key, entry in these.items() if key not in those]
    for noun, value in _ASPECTS.items():
        other_values, groups = {value(entry) for entry in those.values()}, dict[Hashable, list[Entry]]()
        for entry in remaining:
            if value(entry) not in other_values:
                groups.setdefault(value(entry), []).append(entry)
        if groups and (those or noun == "configuration"):
            parts.append(_named(noun, groups))
            remaining = [entry for entry in remaining if value(entry) in other_values]
    if remaining:
        parts.append(f"{len(remaining)} {plural(len(remaining), 'trial')}{_running(remaining)}")
    return parts


def _named(noun: str, groups: dict[Hashable, list[Entry]]) -> str:
    if noun != "configuration":
        return f"{plural(len(groups), noun)} {' '.join(map(str, groups))}{_running(chain(*groups.values()))}"
    labels = [f"{group[0].trial.label}{_running(group)}" for group in groups.values()]
    if len(labels) > NAMED + 1:
        hidden = [*groups.values()][NAMED:]
        labels = [*labels[:NAMED], f"{len(hidden)} more{_running(chain(*hidden))}"]
    return labels[0] if len(labels) == 1 else f"{len(groups)} {noun}s: {SEPARATOR.join(labels)}"


def _running(entries: Iterable[Entry]) -> str:
    running = sum(entry.phase == "running" for entry in entries)
    return f" ({running} running)" if running else ""


def _word(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else shown(value)
