"""A design as a sweep file: each line with the reason for it, and each method with what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import yaml

from craft.settings import TrainingSettings
from craft.tasks.metrics import METRICS
from craft.words import format_duration, percent, printable
from orchestrator.judging.front import SEEDS
from orchestrator.judging.next_step import LIKELY
from orchestrator.judging.power import Size, assume_spread, settles
from orchestrator.suggest.design import (
    EVALUATIONS,
    LORA_RANK,
    Design,
    craft_ranks,
    epoch_steps,
    lora_ranks,
    most_steps,
    rates,
)
from orchestrator.suggest.facts import DataFacts, Machine, ModelFacts
from orchestrator.sweepfile.settings import Enough

WIDTH = 130
WITHIN = (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5)
"""Points that are enough, from the least to the most: one of them is likely to be settled."""
MANY_SEEDS = 5
"""The seeds of a sweep that has hours for all."""
REASONS = {
    "batch_size": "rows that are computed together",
    "gradient_accumulation": "such batches in one step, because more rows at once do not fit into memory",
    "gradient_checkpointing": "slower, and fits into memory",
    "eval_batch_size": "as many as fit into memory",
    "precision": "faster on a GPU",
    "group_by_length": "less padding",
}
Line = tuple[str, str]
"""A line of the file, and its comment."""


def write_sweep(
    model: str, data: DataFacts, facts: ModelFacts, design: Design, machine: Machine, wall_clock: float
) -> list[Line]:
    """Returns the lines of the file from `name` on.

    Args:
        wall_clock: seconds after which the sweep ends in any case.
    """
    return [
        (f"name: {flow(data.name)}", f"results are in runs/{data.name}"),
        (
            f"model: {flow(model)}",
            f"{facts.parameters:,} weights, {facts.layers} layers of width {facts.hidden}: {' '.join(facts.projections)}",
        ),
        (f"tasks: [custom/{data.name}]", ""),
        *_data_lines(data),
        *_seed_lines(design, facts),
        *_enough_lines(data, design),
        *_training_lines(data, facts, design, machine.training),
        ("space:", ""),
        *_block_lines(data, facts, design),
        ("search: {algorithm: grid}", "all of it is trained: a searcher pays off from about 20 configurations per method"),
        (f"budget: {{wall_clock: {max(1, round(wall_clock))}s}}", "the sweep ends by then in any case; --resume continues it"),
        (f"resources: {{cpu: {machine.cpu}{', gpu: 1' if machine.gpu else ''}}}", f"{machine.at_once} trainings at once"),
    ]


class _Dumper(yaml.SafeDumper):
    """Writes texts with line ends or unseen letters in quotes, with escapes."""

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.allow_unicode = False
        super().write_double_quoted(text, split=False)
        self.allow_unicode = True


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')
)


def flow(value: Any) -> str:
    """Writes a value on one line of YAML."""
    return (
        yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**9, allow_unicode=True)
        .strip()
        .removesuffix("\n...")
    )


def _data_lines(data: DataFacts) -> list[Line]:
    settings = data.custom_task.model_dump(mode="json", exclude_defaults=True)
    reported = settings.pop("reported", None)
    lines = [("data:", ""), ("  custom:", ""), (f"    {flow(data.name)}:", "")]
    reasons = {
        "kind": {"regression": "numbers on a scale", "generation": "answers in words"}.get(data.kind, ""),
        "text": "a pair of texts" if len(data.custom_task.text) > 1 else "",
        "label": f"{len(data.classes)} classes" if data.classes else "",
        "metric": "one class has most of the rows, so accuracy would say little of the others",
    }
    lines += [(f"      {key}: {flow(value)}", reasons.get(key, "")) for key, value in settings.items()]
    if reported is not None:
        lines.append((f"      reported: {reported}", f"{data.reported:,} rows are held out for the reported score"))
    return [
        *lines,
        (f"  search_fraction: {data.search_fraction}", f"{data.search:,} rows choose epochs and rates, and are not reported"),
    ]


def _seed_lines(design: Design, facts: ModelFacts) -> list[Line]:
    reason = "several show what another seed changes" if design.seeds > 1 else "one does not show what another seed changes"
    lines = [(f"seeds: {list(range(design.seeds))}", reason)]
    if design.rates > 1:
        values = ", ".join(f"{rate:g}" for rate in rates(design, facts))
        tuned = f"tuned: {{learning_rate: {{values: [{values}]}}}}"
        lines.append(("compare: fair", "rates are tuned equally, by seed 1000, which is not reported"))
        lines.append((tuned, "half a decade apart; one rate serves all sizes"))
    return lines


def _enough_lines(data: DataFacts, design: Design) -> list[Line]:
    """Returns the line with the fewest points that are likely to be settled; 1 for a likelihood, whose spread is not known."""
    if METRICS[data.metric].by_token:
        return [("enough: {within: 1}", "points")]
    seeds, many = max(design.seeds, SEEDS), design.sizes * design.ranks * (1 + design.craft)

    def probability(within: float, size: Size) -> float:
        return settles(within, assume_spread(), size, Enough().sure)

    probabilities = {within: probability(within, Size(seeds, design.scored, many)) for within in WITHIN}
    within = next((within for within in WITHIN if probabilities[within] >= LIKELY), WITHIN[-1])
    reason = (
        f"{seeds} seeds and {design.scored:,} scored rows settle so much with a probability of {percent(probabilities[within])}"
    )
    if within > 1:
        needed = next(rows for rows in count(1000, 1000) if probability(1, Size(MANY_SEEDS, rows, many)) >= LIKELY)
        reason += f"; 1 point takes {MANY_SEEDS} seeds and about {needed:,} rows"
    return [(f"enough: {{within: {within:g}}}", f"points; {reason}")]


def _training_lines(data: DataFacts, facts: ModelFacts, design: Design, training: TrainingSettings) -> list[Line]:
    batch = training.batch_size * training.gradient_accumulation
    epoch, steps = epoch_steps(data, batch), design.steps
    epochs = min(-(-steps // epoch), max(1, most_steps(data, batch) // epoch))
    lines = [("training:", "")]
    if steps < epoch:
        lines.append((f"  max_steps: {steps}", f"of {epoch:,} that one pass over {data.train:,} rows has"))
        lines.append(("  evaluate_every: end", ""))
    else:
        lines.append((f"  epochs: {epochs}", f"{epochs * epoch:,} steps on {data.train:,} rows; the best evaluation is kept"))
        if epochs > EVALUATIONS:
            lines.append((f"  evaluate_every: {epochs // EVALUATIONS}", "epochs"))
    median, usual, most = data.lengths
    lines.append(
        (f"  max_length: {data.max_length}", f"tokens: {median} in the median, 98 % have {usual} or fewer, {most} at most")
    )
    chosen = training.model_dump(mode="json", exclude_defaults=True) | {"batch_size": training.batch_size}
    lines += [(f"  {key}: {flow(value)}", REASONS.get(key, "")) for key, value in chosen.items() if key != "max_length"]
    if design.rates == 1:
        lines.append(
            (f"  learning_rate: {rates(design, facts)[0]:g}", "usual for adapters of a model of this width; not tuned")
        )
    if design.searched < data.search:
        lines.append((f"  search_examples: {design.searched}", f"of {data.search:,}: scoring them takes time, too"))
    if design.scored < data.reported:
        lines.append((f"  eval_examples: {design.scored}", f"of {data.reported:,}"))
    return lines


def _block_lines(data: DataFacts, facts: ModelFacts, design: Design) -> list[Line]:
    control = "the base model as it is" if data.kind == "generation" else "the control: what the task head does alone"
    sizes = f"sizes: {design.sizes}"
    cuts = f"{design.sizes} sizes from each, down to an eighth"
    lines = [("  - {method: head}", control)]
    if design.craft:
        triples = [f"[all, {rank}, {rank}]" for rank in craft_ranks(design, facts)]
        ranks = triples[0] if len(triples) == 1 else f"{{values: [{', '.join(triples)}]}}"
        lines.append(
            (
                f"  - {{method: craft, ranks: {ranks}, projections: [q, k, v, o], rate_scaling: rank, {sizes}}}",
                f"few parameters, one rate for all ranks; {cuts}",
            )
        )
    ranks = _values(lora_ranks(design, facts))
    lines.append((f"  - {{method: lora, rank: {ranks}, {sizes}}}", cuts))
    if design.everywhere:
        block = f"  - {{method: lora, rank: {LORA_RANK}, projections: [{', '.join(facts.projections)}], {sizes}}}"
        lines.append((block, "all projections of each layer"))
    return lines


def _values(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{{values: {list(values)}}}"


def render(lines: Sequence[Line]) -> str:
    """Writes lines with their comments to the right, or above where there is no room."""
    texts = []
    for text, comment in ((text, printable(comment)) for text, comment in lines):
        room = f"{text:<44}  # {comment}"
        if not comment:
            texts.append(text)
        elif len(room) <= WIDTH:
            texts.append(room)
        else:
            indent = " " * (len(text) - len(text.lstrip()))
            texts += [f"{indent}# {comment}", text]
    return "\n".join(texts) + "\n"


def duration(seconds: float) -> str:
    """Writes a forecast: no more than two digits are sure."""
    step = 5 if seconds < 120 else 60
    return format_duration(step * max(1, round(seconds / step))).removesuffix(" 00 s")
