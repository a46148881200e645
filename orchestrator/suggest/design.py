"""What a sweep tries, from the least to the most: each stage of STAGES adds one thing to those before it.

The sweep that fits some hours has the stages up to the first that does not fit. So more hours never give less, and what is left
out is the rest of the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.suggest.facts import DataFacts, ModelFacts

DEFAULT_HOURS = 2.0
MOST_EPOCHS = 20
"""A small adapter on few rows still improves in so many passes; the best evaluation is kept."""
ENOUGH_STEPS = 1000
LEAST_EPOCHS = 3
"""So many passes are trained at most where these are more than ENOUGH_STEPS."""
EVALUATIONS = 4
RATE_AT, RATE_HIDDEN, RATE_FALLS = 1.2e-3, 768, 0.78
"""The usual best rate of LoRA with alpha = rank at this hidden size, and the power with which it falls as the size grows."""
LORA_RANK = 8
RANKS = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Design:
    """A sweep in numbers.

    Attributes:
        steps: optimizer steps of a training.
        scored, searched: rows of the reported and of the search split.
        sizes: adapters of each training, with its cuts.
        rates: learning rates that are tried; 1: the usual one.
        craft: 1 if CRAFT is tried.
        ranks: of each method.
        everywhere: 1 if LoRA is tried on all projections, too.
    """

    steps: int = 60
    scored: int = 300
    searched: int = 200
    sizes: int = 2
    craft: int = 0
    rates: int = 1
    seeds: int = 1
    ranks: int = 1
    everywhere: int = 0


STAGES: tuple[tuple[str, dict[str, int]], ...] = (
    ("the head alone and LoRA, 60 steps", {}),
    ("CRAFT", {"craft": 1}),
    ("", {"steps": 120}),
    ("4 sizes of each adapter", {"sizes": 4}),
    ("", {"steps": 200}),
    ("", {"scored": 1000}),
    ("3 learning rates, tuned by a seed that is not reported", {"rates": 3}),
    ("3 seeds, which show what another seed changes", {"seeds": 3}),
    ("", {"steps": 350}),
    ("", {"steps": 600}),
    ("5 learning rates", {"rates": 5}),
    ("", {"scored": 4000, "searched": 500}),
    ("", {"steps": 1000}),
    ("3 ranks of each method, the rate of the middle one transferred to the others", {"ranks": 3}),
    ("5 seeds", {"seeds": 5}),
    ("", {"steps": 1800}),
    ("LoRA on all projections", {"everywhere": 1}),
    ("", {"steps": 3000}),
    ("", {"scored": 10**9, "searched": 2000}),
    ("", {"steps": 6000}),
    ("", {"steps": 10**9}),
)
"""What is added, and the numbers that change; steps and scored rows are named by what the data allow."""


def stages(data: DataFacts, model: ModelFacts, batch: int) -> Iterator[tuple[str, Design]]:
    """Yields what each stage adds and the design so far, without the stages that change nothing on these data."""
    design, previous = Design(), None
    for title, changes in STAGES:
        design = replace(design, **changes)
        bounded = replace(
            design,
            steps=min(design.steps, most_steps(data, batch)),
            scored=min(design.scored, data.reported),
            searched=min(design.searched, data.search),
            everywhere=design.everywhere if len(model.projections) > 4 else 0,
        )
        if bounded != previous:
            yield title or (f"{bounded.steps:,} steps" if "steps" in changes else f"{bounded.scored:,} scored rows"), bounded
        previous = bounded


def epoch_steps(data: DataFacts, batch: int) -> int:
    return math.ceil(data.train / batch)


def most_steps(data: DataFacts, batch: int) -> int:
    """Returns the steps of a training on all rows after which more passes hardly help."""
    epoch = epoch_steps(data, batch)
    return max(LEAST_EPOCHS * epoch, min(ENOUGH_STEPS, MOST_EPOCHS * epoch))


def rates(design: Design, model: ModelFacts) -> list[float]:
    """Returns the learning rates, half a decade apart around the usual best one of the model's size."""
    usual = RATE_AT * (RATE_HIDDEN / model.hidden) ** RATE_FALLS
    middle, beside = round(2 * math.log10(usual)), design.rates // 2
    return [float(f"{10 ** (at / 2):.0e}") for at in range(middle - beside, middle + beside + 1)]


def lora_ranks(design: Design, model: ModelFacts) -> list[int]:
    ranks = [LORA_RANK, 4 * LORA_RANK, 16 * LORA_RANK] if design.ranks > 1 else [LORA_RANK]
    return [rank for rank in ranks if rank <= model.least // 2] or [max(1, model.least // 2)]


def craft_ranks(design: Design, model: ModelFacts) -> list[int]:
    """Returns ranks of CRAFT; the usual one is at most a fourth of the smallest side, so that little is trained."""
    usual = max((rank for rank in RANKS if rank <= model.least // 4 and rank <= 64), default=RANKS[0])
    return [usual // 2, usual, 2 * usual] if design.ranks > 1 else [usual]
