"""What a sweep tries, from the least to the most: each stage of STAGES adds one thing to those before it.

    a pass over the rows  ->  three or more  ->  learning rates  ->  more methods  ->  more seeds  ->  the rest

The sweep that fits some hours has the stages up to the first that does not fit. What is left of the hours then goes into more
steps of every training (`Bounds.longer`), since the best evaluation is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from craft.methods import find_method
from craft.methods.method import starting_rate
from orchestrator.suggest.facts import DataFacts, ModelFacts

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
