"""`suggest`: from a file of examples, a model and some hours to a commented sweep file.

rows   ->  kind of task, lengths, classes, splits       (columns, facts)
model  ->  layers, projections; batch that fits         (facts)
probe  ->  seconds of a start, a step, a scored row     (craft.trainer.probe, as in `plan`)
hours  ->  the stages that fit, and longer trainings    (design)  ->  suggested.yaml.jinja, filled so that `plan` passes
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import yaml
from pydantic import Field

from craft.settings import DataSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.words import format_bytes, format_duration, list_some, plural, printable
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.tuning import budget_of
from orchestrator.plan.work import Work, count_work
from orchestrator.results.front import SEEDS
from orchestrator.results.power import power_lines
from orchestrator.results.report import Number, Report
from orchestrator.review.prospect import seconds_of, trainings_at_once
from orchestrator.suggest.columns import read_task
from orchestrator.suggest.design import Bounds, Design
from orchestrator.suggest.facts import DataFacts, Machine, ModelFacts, describe_data, describe_model, measure_machine
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import YamlPath
from orchestrator.sweepfile.sweep import NAME

SESSION = 30.0
"""Seconds in which a session starts, and in which it writes its page at the end."""
SHARE = 0.8
"""The share of the hours that is planned: a forecast is no promise."""
DECOMPOSE = 4e-10
"""Seconds of CRAFT's decomposition for each layer, projection and cubed width, on one core."""
WIDTH = 130
NAMED = 4
"""So many stages that are left out are named with their price."""


@dataclass(frozen=True)
class Suggestion:
    """A sweep file, and the facts that it rests on.

    Attributes:
        left_out: what more hours would add, with the seconds that the sweep would then take.
    """

    text: str
    data: DataFacts
    model: ModelFacts
    machine: Machine
    design: Design
    seconds: float
    left_out: tuple[tuple[str, float], ...]


def suggest(
    model: str,
    data: str,
    label: str | None = None,
    text: Sequence[str] | None = None,
    hours: float = 2.0,
    validation: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    encoding: str | None = None,
    skip_bad: bool = False,
) -> Suggestion:
    """Writes a sweep file for a model and a file of examples that fits the hours on this machine.

    Args:
        name: of the sweep; that of the file if absent. The others are those of `read_task`.
    """
    if not 0 < hours < 24 * 366:
        raise ValueError(f"hours: got {hours:g}; a number above 0, and at most a year")
    name = name or re.sub(r"[^A-Za-z0-9_-]+", "-", Path(data).stem).strip("-_")[:64] or "mine"
    if not NAME.fullmatch(name):
        raise ValueError(f"name: got {name!r}; letters, digits, - _ and ., at most 64, a letter or digit first")
    task, choices = read_task(data, label, text, validation, kind, encoding, skip_bad)
    facts = describe_data(name, task, model, choices)
    labels = find_task(f"custom/{name}", DataSettings(custom={name: facts.custom_task})).labels
    layers = describe_model(model, facts.kind, labels)
    training = {"max_length": facts.max_length, "group_by_length": True}
    timed = {"model": model, "task": f"custom/{name}", "method": "lora", "training": training}
    machine = measure_machine(RunSpec.model_validate(timed | {"data": facts.settings.model_dump()}))
    bounds = Bounds(facts, layers, machine.batch)
    sweep = _Sweep(model, bounds, machine, hours)
    room, best, left_out = SHARE * 3600 * hours, None, list[tuple[str, float]]()
    for added, design in bounds.stages():
        planned = sweep.plan(design)
        if left_out or planned.seconds > room:
            left_out.append((added, planned.seconds))
            if best is None or len(left_out) == NAMED:
                break
        else:
            best = planned
    if best is None:
        ((added, seconds),) = left_out
        raise ValueError(
            f"hours: {hours:g} are too few: {added} of {facts.train:,} rows take about {_duration(seconds)} on this machine "
            f"({machine.speed.step:.2g} s a step); give {math.ceil(seconds / SHARE / 36) / 100:g} or more"
        )
    more = bounds.longer(best.design)
    while more:
        planned = sweep.plan(more[len(more) // 2])
        fits = planned.seconds <= room
        best, more = (planned, more[len(more) // 2 + 1 :]) if fits else (best, more[: len(more) // 2])
    return Suggestion(sweep.file(best, left_out), facts, layers, machine, best.design, best.seconds, tuple(left_out))


@dataclass(frozen=True)
class _Planned:
    """A design with its plan, the work of each block, and the seconds that all of it takes."""

    design: Design
    plan: Plan
    work: Mapping[YamlPath, Work]
    seconds: float


@dataclass(frozen=True)
class _Sweep:
    """What all designs for some hours have in common: plans a design, and writes its file."""

    model: str
    bounds: Bounds
    machine: Machine
    hours: float

    def plan(self, design: Design) -> _Planned:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suggested.yaml"
            file.write_text(self._render(design), encoding="utf-8")
            plan = make_plan(load_sweep(file))
        work = count_work(plan)
        return _Planned(design, plan, work, self._seconds(work, plan))

    def _seconds(self, work: Mapping[YamlPath, Work], plan: Plan) -> float:
        """Returns the seconds of the whole session, of `count_work`: the longest training may be the last to start, and run
        alone; the head is fitted once."""
        from craft.trainer.head_start import MOST_EXAMPLES

        data, facts, speed = self.bounds.data, self.bounds.model, self.machine.speed
        at_once = trainings_at_once(plan)
        last = (1 - 1 / at_once) * max(part.seconds(speed) / part.trainings for part in work.values())
        head = min(data.train, MOST_EXAMPLES) * speed.example if data.kind != "generation" else 0.0
        craft = any(run.method == "craft" for run in plan.trained)
        decompose = DECOMPOSE * 4 * facts.layers * facts.hidden**3 if craft else 0.0
        return SESSION + head + decompose + seconds_of(sum(work.values(), Work()), speed, at_once) + last

    def file(self, planned: _Planned, left_out: Sequence[tuple[str, float]]) -> str:
        at_once, sweep = trainings_at_once(planned.plan), planned.plan.sweep
        every, costs = sum(planned.work.values(), Work()), iter(planned.work.values())
        tuning = budget_of(sweep, planned.plan.families)[0] if sweep.tunes else 0
        each = (every.trainings - tuning) / len(sweep.reported_seeds)
        examples = {sweep.task_names[0]: (self.bounds.data.train, planned.design.scored)}

        def price(work: Work, unit: str = "") -> str:
            count = f"{work.trainings:.0f} {plural(round(work.trainings), 'training')}{unit}"
            return f": {count}, {_duration(seconds_of(work, self.machine.speed, at_once))}"

        return self._render(
            planned.design,
            seconds=planned.seconds,
            left_out="; ".join(f"{added} ({_duration(seconds / SHARE)})" for added, seconds in left_out),
            seed_cost=price(every * (each / every.trainings), " a seed"),
            tuning_cost=price(every * (tuning / every.trainings)),
            power=next(power_lines(planned.plan, examples, []), ""),
            cost=lambda: price(next(costs)),
        )

    def _render(self, design: Design, cost: Callable[[], str] = str, **costs: Any) -> str:
        data, training = self.bounds.data, self.machine.training
        settings = training.model_dump(mode="json", exclude_defaults=True, exclude={"max_length"})
        classes = sorted(data.classes.items(), key=lambda item: -item[1])
        methods = self.bounds.methods[: design.methods]
        return _TEMPLATE.render(
            {"seconds": 0.0, "left_out": "", "seed_cost": "", "tuning_cost": "", "power": ""} | costs,
            **{"model": self.model, "data": data, "facts": self.bounds.model, "machine": self.machine, "design": design},
            **{"hours": self.hours, "wall_clock": max(1, round(3600 * self.hours - SESSION))},
            **{"bounds": self.bounds, "methods": methods, "epoch": self.bounds.epoch, "cost": cost},
            classes=list_some([f"{label} {count}" for label, count in classes], 8),
            task=data.custom_task.model_dump(mode="json", exclude_defaults=True),
            training=settings | {"batch_size": training.batch_size},
            until=", until: answered" if design.seeds >= SEEDS else "",
        )


def _values(values: Sequence[Any]) -> str:
    return flow(values[0]) if len(values) == 1 else f"{{values: {flow(values)}}}"


def flow(value: Any) -> str:
    """Writes a value on one line of YAML: a plain word as it is, other text, and what begins with a digit, in quotes."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, str) and re.fullmatch(r"(?!\.?\d)[\w./][\w ./()-]*(?<! )", value) and yaml.safe_load(value) == value:
        return value
    if isinstance(value, float):
        return f"{value:g}"
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)


def _beside(text: str, comment: str) -> str:
    comment = printable(comment or "")
    line = f"{text:<44}  # {comment}"
    if not comment or len(line) <= WIDTH:
        return line if comment else text
    return f"{' ' * (len(text) - len(text.lstrip()))}# {comment}\n{text}"


def _duration(seconds: float) -> str:
    """Writes a forecast: no more than two digits are sure."""
    step = 5 if seconds < 120 else 60
    return format_duration(step * max(1, round(seconds / step))).removesuffix(" 00 s")


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=False,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {
    "beside": _beside, "flow": flow, "duration": _duration, "bytes": format_bytes, "count": "{:,}".format, "line": printable,
    "values": _values, "list_some": list_some,
}  # fmt: skip
_TEMPLATE = _ENVIRONMENT.get_template("suggested.yaml.jinja")


class SuggestReport(Report):
    """A sweep file for data of one's own."""

    report: Literal["suggest"] = Field("suggest", description="The kind of this report.")
    sweep_file: str = Field(description="The text of the file, with its comments: write it to a file.")
    seconds: Number = Field(description="How long its sweep takes on this machine, as forecast.")
