"""`suggest`: from a file of examples, a model and some hours to a commented sweep file.

rows   ->  kind of task, lengths, classes, splits       (columns, facts)
model  ->  layers, projections; batch that fits         (facts, machine)
probe  ->  seconds of a start, a step, a scored row     (craft.trainer.probe, as in `--plan`)
hours  ->  the stages that fit                          (design)  ->  a file that passes `--plan`   (writing)
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from craft.data_settings import DataSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.words import format_bytes, list_some, plural, printable
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.tuning import budget_of
from orchestrator.plan.work import Work, count_work
from orchestrator.review.prospect import seconds_of, trainings_at_once
from orchestrator.suggest.columns import read_task
from orchestrator.suggest.design import DEFAULT_HOURS, Design, stages
from orchestrator.suggest.facts import DataFacts, Machine, ModelFacts, describe_data, describe_model, measure_machine
from orchestrator.suggest.writing import Line, duration, render, write_sweep
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.sweep import NAME

SESSION = 30.0
"""Seconds in which a session starts, and in which it writes its page at the end."""
SHARE = 0.75
"""The share of the hours that is planned: a forecast is no promise."""
DECOMPOSE = 4e-10
"""Seconds of CRAFT's decomposition for each layer, projection and cubed width, on one core (docs/measurements/speed.md)."""


@dataclass(frozen=True)
class Suggestion:
    """A sweep file, and the facts that it rests on.

    Attributes:
        text: the file.
        seconds: the forecast of its sweep, on this machine.
        left_out: what more hours would add, with the seconds that the sweep would then take.
        machine: the measured speed, and what fits.
    """

    text: str
    data: DataFacts
    model: ModelFacts
    machine: Machine
    design: Design
    seconds: float
    left_out: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class _Candidate:
    """A design with its file and the seconds that it takes."""

    added: str
    design: Design
    lines: list[Line]
    seconds: float


def suggest(
    model: str,
    data: str,
    label: str | None = None,
    text: Sequence[str] | None = None,
    hours: float = DEFAULT_HOURS,
    validation: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    encoding: str | None = None,
    skip_bad: bool = False,
) -> Suggestion:
    """Writes a sweep file for a model and a file of examples that fits the hours on this machine.

    Args:
        model: a hub id, a folder or a GGUF file.
        data: CSV, TSV, JSONL, JSON or parquet.
        label: the column to predict; chats, and files of prompts and responses, need none.
        text: one column or two; found by their cells if absent.
        validation: a file whose rows are scored.
        kind: classification, regression or generation, where the label's cells would say another.
        name: of the sweep; that of the file if absent.
        encoding: of the files; UTF-8 if absent.
        skip_bad: whether to leave out rows that cannot be used.

    Raises:
        ValueError: data, model or hours are unusable; the message says why, and what is usable.
    """
    if not 0 < hours < 24 * 366:
        raise ValueError(f"hours: got {hours:g}; a number above 0, and at most a year")
    name = _checked_name(name) if name else _name_of(data)
    task, choices = read_task(data, label, text, validation, kind, encoding, skip_bad)
    facts = describe_data(name, task, model, choices)
    labels = find_task(f"custom/{name}", DataSettings(custom={name: facts.custom_task})).labels
    layers = describe_model(model, facts.kind, labels)
    machine = measure_machine(_run(model, facts))
    candidates = _candidates(model, facts, layers, machine, hours)
    fits = [*takewhile(lambda candidate: candidate.seconds <= SHARE * 3600 * hours, candidates)]
    if not fits:
        least = math.ceil(candidates[0].seconds / SHARE / 36) / 100
        raise ValueError(
            f"hours: {hours:g} are too few: {candidates[0].added} of {facts.train:,} rows take about "
            f"{duration(candidates[0].seconds)} on this machine ({machine.speed.step:.2g} s a step); give {least:g} or more"
        )
    best = fits[-1]
    left_out = tuple((candidate.added, candidate.seconds) for candidate in candidates[len(fits) :])
    file = _header(facts, machine, hours, best, left_out) + render(best.lines)
    return Suggestion(file, facts, layers, machine, best.design, best.seconds, left_out)


def _name_of(data: str) -> str:
    """Returns the file's name as that of a task and a sweep."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(data).stem).strip("-_")[:64] or "mine"


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"name: got {name!r}; letters, digits, - _ and ., at most 64, a letter or digit first")
    return name


def _run(model: str, data: DataFacts) -> RunSpec:
    """Returns a training of the default LoRA, whose steps are timed."""
    training = {"max_length": data.max_length, "group_by_length": True}
    return RunSpec.model_validate(
        {
            "model": model,
            "task": f"custom/{data.name}",
            "method": "lora",
            "training": training,
            "data": data.settings.model_dump(),
        }
    )


def _candidates(model: str, data: DataFacts, facts: ModelFacts, machine: Machine, hours: float) -> list[_Candidate]:
    """Returns the designs of all stages, planned."""
    batch = machine.training.batch_size * machine.training.gradient_accumulation
    candidates = []
    for added, design in stages(data, facts, batch):
        lines = write_sweep(model, data, facts, design, machine, 3600 * hours - SESSION)
        plan = _plan(render(lines))
        work = count_work(plan)
        lines = _with_costs(lines, work, plan, machine)
        candidates.append(_Candidate(added, design, lines, _seconds(work, plan, data, facts, machine)))
    return candidates


def _plan(text: str) -> Plan:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "suggested.yaml"
        file.write_text(text, encoding="utf-8")
        return make_plan(load_sweep(file))


def _seconds(work: Mapping[YamlPath, Work], plan: Plan, data: DataFacts, facts: ModelFacts, machine: Machine) -> float:
    """Returns the seconds of the whole session: the last training runs alone, the head is fitted once."""
    from craft.trainer.head_start import MOST_EXAMPLES

    last = max(part.seconds(machine.speed) / part.trainings for part in work.values())
    head = min(data.train, MOST_EXAMPLES) * machine.speed.example if data.kind != "generation" else 0.0
    decompose = DECOMPOSE * 4 * facts.layers * facts.hidden**3 if any(run.method == "craft" for run in plan.trained) else 0.0
    trained = seconds_of(sum(work.values(), Work()), machine.speed, trainings_at_once(plan))
    return SESSION + head + decompose + trained + last


def _with_costs(lines: Sequence[Line], work: Mapping[YamlPath, Work], plan: Plan, machine: Machine) -> list[Line]:
    """Adds to the comments of seeds, rates and methods how many trainings they have and how long these take."""
    every, sweep, at_once = sum(work.values(), Work()), plan.sweep, trainings_at_once(plan)
    tuning = budget_of(sweep, plan.families)[0] if sweep.tunes else 0
    each = (every.trainings - tuning) / len(sweep.reported_seeds)
    parts = {"tuned:": every * (tuning / every.trainings)}
    parts["seeds:"] = every * (each / every.trainings)
    methods, costed = iter(work.values()), list[Line]()
    for text, comment in lines:
        key = text.split(" ", 1)[0]
        part = next(methods) if text.startswith("  - {method:") else parts.get(key)
        if part is not None:
            count = f"{part.trainings:.0f} {plural(round(part.trainings), 'training')}"
            time = duration(seconds_of(part, machine.speed, at_once))
            comment += f": {count}{' a seed' if key == 'seeds:' else ''}, {time}"
        costed.append((text, comment))
    return costed


def _header(data: DataFacts, machine: Machine, hours: float, best: _Candidate, left_out: Sequence[tuple[str, float]]) -> str:
    speed = machine.speed
    rows = f"{data.train:,} rows train, {data.search:,} choose, {data.reported:,} are scored"
    lines = [f"Suggested for {hours:g} h; the forecast is {duration(best.seconds)} on this machine.", f"{data.kind}: {rows}."]
    if data.classes:
        counts = sorted(data.classes.items(), key=lambda item: -item[1])
        lines.append(f"Classes: {list_some([f'{label} {count}' for label, count in counts], 8)}.")
    if data.unread:
        lines.append(f"Columns that the model does not read: {list_some(data.unread, 12)}. Give those that it needs by --text.")
    lines += [f"{choice}." for choice in data.choices]
    lines += [f"Warning: {doubt}." for doubt in data.doubts]
    lines.append(
        f"Measured: {speed.step:.2g} s a step of {machine.batch} rows, {speed.example * 1000:.2g} ms a scored row, "
        f"{speed.start:.1f} s a start; {machine.at_once} trainings at once, each with about {format_bytes(machine.memory)}."
    )
    if left_out:
        parts = [f"{added} ({duration(seconds / SHARE)})" for added, seconds in left_out[:4]]
        lines.append(f"Left out, with the forecast of a sweep that has it and all before it: {'; '.join(parts)}.")
    else:
        lines.append("Nothing is left out: more hours would add nothing on these rows.")
    lines.append("Change what you like; `craft-sweeps plan` shows what it costs.")
    return "".join(f"# {printable(line)}\n" for line in lines)
