"""`suggest`: from a file of examples, a model and some hours to a commented sweep file.

rows   ->  kind of task, lengths, classes, splits       (facts)
model  ->  layers, projections; batch that fits         (facts)
probe  ->  seconds of a start, a step, a scored row     (craft.trainer.probe, as in `plan`)
hours  ->  the stages that fit, and longer trainings    ->  suggested.yaml.jinja, filled so that `plan` passes

Each stage of STAGES adds one thing to those before it. The sweep that fits some hours has the stages up to the first that does
not fit. What is left of the hours then goes into more steps of every training, since the best evaluation is kept.
"""

from __future__ import annotations

import math
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import jinja2
from pydantic import Field

from craft.methods import find_method
from craft.methods.method import starting_rate
from craft.settings import DataSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.words import format_bytes, format_forecast, list_some, plural, printable
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.tuning import budget_of
from orchestrator.plan.work import Work, count_work
from orchestrator.results.front import SEEDS
from orchestrator.results.power import power_lines
from orchestrator.results.report import Number, Report
from orchestrator.review.prospect import seconds_of, trainings_at_once
from orchestrator.suggest.facts import DataFacts, Machine, ModelFacts, describe_data, describe_model, measure_machine, read_task
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import YamlPath, flow
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
    least = Suggestion(model, hours, bounds, machine)
    limit, stages = SHARE * 3600 * hours, [(added, replace(least, design=design)) for added, design in bounds.stages()]
    fitting = [*takewhile(lambda stage: stage[1].seconds <= limit, stages)]
    if not fitting:
        added, smallest = stages[0]
        raise ValueError(
            f"hours: {hours:g} are too few: {added} of {facts.train:,} rows take about {format_forecast(smallest.seconds)} on "
            f"this machine ({machine.speed.step:.2g} s a step); give {math.ceil(smallest.seconds / SHARE / 36) / 100:g} or more"
        )
    best, left_out = fitting[-1][1], tuple((added, sweep.seconds) for added, sweep in stages[len(fitting) :][:NAMED])
    longer = bounds.longer(best.design)
    if within := bisect_right(longer, limit, key=lambda design: replace(least, design=design).seconds):
        best = replace(least, design=longer[within - 1])
    return replace(best, left_out=left_out)


MOST = 10**9
PASSES, STEPS = 3, 400
"""A training of so many passes, and of so many steps, comes before other rates and methods (docs/own-data.md)."""
MOST_PASSES, ENOUGH_PASSES, ENOUGH_STEPS = 20, 6, 1000
"""No training has more passes than the first. From the second on, more hardly help once there are so many steps."""
METHODS = {"lora": "LoRA", "everywhere": "LoRA on all projections", "ia3": "(IA)³", "craft": "CRAFT"}
"""The methods in the order in which they are tried, besides the head alone."""


@dataclass(frozen=True)
class Design:
    """A sweep in numbers.

    Attributes:
        scored, searched: rows of the reported and of the search split.
        sizes: adapters of each training, with its cuts.
    """

    steps: int = 60
    scored: int = 300
    searched: int = 200
    sizes: int = 3
    rates: int = 1
    methods: int = 1
    seeds: int = 1
    ranks: int = 1


SMALLEST = Design()
STAGES: tuple[tuple[str, dict[str, int]], ...] = (
    ("the head alone and LoRA, {steps} steps", {}),
    ("a pass over the rows", {"steps": 1}),
    ("{steps:,} steps", {"steps": PASSES}),
    ("{scored:,} scored rows", {"scored": 1000}),
    ("3 learning rates, tuned by a seed that is not reported", {"rates": 3}),
    ("{method}", {"methods": 2}),
    ("{method}", {"methods": 3}),
    ("{method}", {"methods": 4}),
    ("2 seeds", {"seeds": 2}),
    ("3 seeds, which show what another seed changes", {"seeds": 3}),
    ("4 sizes of each adapter", {"sizes": 4}),
    ("{scored:,} scored rows", {"scored": 4000, "searched": 500}),
    ("5 learning rates", {"rates": 5}),
    ("5 seeds", {"seeds": 5}),
    ("3 ranks of LoRA and CRAFT, the rate of the middle one transferred to the others", {"ranks": 3}),
    ("{scored:,} scored rows", {"scored": MOST, "searched": 2000}),
    ("{steps:,} steps", {"steps": MOST}),
)
"""What is added, and the numbers that change; `steps` are passes here."""


@dataclass(frozen=True)
class Bounds:
    """What the rows, the model and the rows of a step allow."""

    data: DataFacts
    model: ModelFacts
    batch: int

    @property
    def epoch(self) -> int:
        """Steps of one pass."""
        return math.ceil(self.data.train / self.batch)

    @property
    def most_passes(self) -> int:
        return max(ENOUGH_PASSES, min(MOST_PASSES, ENOUGH_STEPS // self.epoch))

    @property
    def methods(self) -> list[str]:
        """The methods for which the model has the projections."""
        has = {"everywhere": len(self.model.projections) > 4, "ia3": {"k", "v", "down"} <= {*self.model.projections}}
        return [method for method in METHODS if has.get(method, True)]

    def stages(self) -> Iterator[tuple[str, Design]]:
        """Yields what each stage adds and the design so far, without the stages that change nothing here."""
        design, previous, steps = Design(), None, min(Design.steps, self.epoch * self.most_passes)
        for title, changes in STAGES:
            design = replace(design, **changes)
            steps = max(steps, self._steps(changes.get("steps", 0)))
            bounded = replace(
                design,
                steps=steps,
                scored=min(design.scored, self.data.reported),
                searched=min(design.searched, self.data.search),
                methods=min(design.methods, len(self.methods)),
            )
            if bounded != previous:
                method = METHODS[self.methods[bounded.methods - 1]]
                yield title.format(steps=bounded.steps, scored=bounded.scored, method=method), bounded
            previous = bounded

    def _steps(self, passes: int) -> int:
        """Returns the steps of so many passes, or of the least number of passes for STEPS, if these are not too many."""
        least = math.ceil(STEPS / self.epoch) if passes >= PASSES else 0
        return self.epoch * min(max(passes, least), self.most_passes)

    def longer(self, design: Design) -> list[Design]:
        """Returns the design with more and more steps: by tens up to a pass, by half passes from there on."""
        tens, halves = range(10 * (design.steps // 10 + 1), self.epoch, 10), range(2, 2 * self.most_passes + 1)
        steps = [*tens, *(math.ceil(self.epoch * count / 2) for count in halves)]
        return [replace(design, steps=count) for count in steps if count > design.steps]

    def rates(self, design: Design, method: str = "lora") -> list[float]:
        """Returns learning rates around that at which `method` begins, each twice the one before."""
        row = find_method(method)
        usual = starting_rate(row, row.parameters(), self.model.hidden)
        return [float(f"{usual * 2.0**power:.0e}") for power in range(-(design.rates // 2), design.rates // 2 + 1)]

    def lora_ranks(self, design: Design) -> list[int]:
        ranks = [2, 8, 32] if design.ranks > 1 else [8]
        return [rank for rank in ranks if rank <= self.model.least // 2] or [max(1, self.model.least // 2)]

    def craft_ranks(self, design: Design) -> list[list[Any]]:
        """Returns ranks of CRAFT; the usual one is at most a fourth of the smallest side, so that little is trained."""
        usual = max((rank for rank in (4, 8, 16, 32, 64) if rank <= self.model.least // 4), default=4)
        return [["all", rank, rank] for rank in ([usual // 2, usual, 2 * usual] if design.ranks > 1 else [usual])]


@dataclass(frozen=True)
class Suggestion:
    """A sweep for some hours, and the facts that it rests on.

    Attributes:
        left_out: what more hours would add, with the seconds that the sweep would then take.
    """

    model: str
    hours: float
    bounds: Bounds
    machine: Machine
    design: Design = SMALLEST
    left_out: tuple[tuple[str, float], ...] = ()

    @cached_property
    def plan(self) -> Plan:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suggested.yaml"
            file.write_text(self._render(), encoding="utf-8")
            return make_plan(load_sweep(file))

    @cached_property
    def work(self) -> Mapping[YamlPath, Work]:
        return count_work(self.plan)

    @property
    def seconds(self) -> float:
        """The seconds of the whole session: the longest training may be the last to start, and run alone; the head is fitted
        once."""
        from craft.trainer.head_start import MOST_EXAMPLES

        data, model, speed = self.bounds.data, self.bounds.model, self.machine.speed
        at_once = trainings_at_once(self.plan)
        last = (1 - 1 / at_once) * max(part.seconds(speed) / part.trainings for part in self.work.values())
        head = min(data.train, MOST_EXAMPLES) * speed.example if data.kind != "generation" else 0.0
        craft = any(run.method == "craft" for run in self.plan.trained)
        decompose = DECOMPOSE * 4 * model.layers * model.hidden**3 if craft else 0.0
        return SESSION + head + decompose + seconds_of(sum(self.work.values(), Work()), speed, at_once) + last

    @property
    def text(self) -> str:
        """The sweep file, with what each of its parts costs."""
        at_once, sweep = trainings_at_once(self.plan), self.plan.sweep
        every, costs = sum(self.work.values(), Work()), iter(self.work.values())
        tuning = budget_of(sweep, self.plan.families)[0] if sweep.tunes else 0
        each = (every.trainings - tuning) / len(sweep.reported_seeds)
        examples = {sweep.task_names[0]: (self.bounds.data.train, self.design.scored)}

        def price(work: Work, unit: str = "") -> str:
            count = f"{work.trainings:.0f} {plural(round(work.trainings), 'training')}{unit}"
            return f": {count}, {format_forecast(seconds_of(work, self.machine.speed, at_once))}"

        return self._render(
            seconds=self.seconds,
            left_out="; ".join(f"{added} ({format_forecast(seconds / SHARE)})" for added, seconds in self.left_out),
            seed_cost=price(every * (each / every.trainings), " a seed"),
            tuning_cost=price(every * (tuning / every.trainings)),
            power=next(power_lines(self.plan, examples, []), ""),
            cost=lambda: price(next(costs)),
        )

    def _render(self, cost: Callable[[], str] = str, **costs: Any) -> str:
        data, training = self.bounds.data, self.machine.training
        settings = training.model_dump(mode="json", exclude_defaults=True, exclude={"max_length"})
        classes = sorted(data.classes.items(), key=lambda item: -item[1])
        return _TEMPLATE.render(
            vars(self) | {"seconds": 0.0, "left_out": "", "seed_cost": "", "tuning_cost": "", "power": ""} | costs,
            cost=cost,
            wall_clock=max(1, round(3600 * self.hours - SESSION)),
            classes=list_some([f"{label} {count}" for label, count in classes], 8),
            task=data.custom_task.model_dump(mode="json", exclude_defaults=True),
            training=settings | {"batch_size": training.batch_size},
            until=", until: answered" if self.design.seeds >= SEEDS else "",
        )


def _values(values: Sequence[Any]) -> str:
    return flow(values[0]) if len(values) == 1 else f"{{values: {flow(values)}}}"


def _comment(text: str, comment: str) -> str:
    comment = printable(comment or "")
    line = f"{text:<44}  # {comment}"
    if not comment or len(line) <= WIDTH:
        return line if comment else text
    return f"{' ' * (len(text) - len(text.lstrip()))}# {comment}\n{text}"


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=False,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {
    "comment": _comment, "flow": flow, "forecast": format_forecast, "bytes": format_bytes, "count": "{:,}".format,
    "line": printable, "values": _values, "list_some": list_some,
}  # fmt: skip
_TEMPLATE = _ENVIRONMENT.get_template("suggested.yaml.jinja")


class SuggestReport(Report):
    """A sweep file for data of one's own."""

    report: Literal["suggest"] = Field("suggest", description="The kind of this report.")
    sweep_file: str = Field(description="The text of the file, with its comments: write it to a file.")
    seconds: Number = Field(description="How long its sweep takes on this machine, as forecast.")
