"""A second generator of sweeps whose truth is known: it shares only its interface with `tests.benchmarks.answer`.

True scores have no power law: methods reach plateaus with exact ties, peak at an inner size, rise in one step, or fall with the
size. Of the rows some are answered rightly by all and some by none. For each of the others one uniform number decides: that of
the row, of the row and the configuration, or of the row, the configuration and the seed. Seeds are skewed, or spread by method.
"""

from __future__ import annotations

import math

import numpy as np

from orchestrator.results.tuning import Tuning
from tests.benchmarks.answer import BLOCKS, MOST_SEEDS, Simulation

WORLDS = (
    *("plateaus", "peak", "one step", "larger is worse", "one method ahead", "skewed seeds", "spread by method"),
    *("few rows", "many sizes", "three sizes", "long cuts", "tuned by 100 rows"),
)
PLATEAUS, SHARES = (0.0, 0.6, 1.5, 4.0), (0.4, 0.3, 0.2, 0.1)
EASY, HARD = 0.55, 0.08
"""The shares of rows that all answer rightly, and that none does."""
CHOOSING = 100
"""The rows by which a rate is chosen."""


class Plateaus(Simulation):
    """One sweep of a world; `truths` and the summaries of all seeds by the names of its configurations."""

    def _start(self) -> None:
        random, world = self.random, self.world
        self.rows = int(random.integers(150, 260)) if world == "few rows" else int(random.integers(200, 2001))
        self.tasks, self.seeds = 1, int(random.integers(3, 6))
        self._draw_rows()
        self.spread = random.uniform(0.4, 1.6)
        self.seed_effect = random.normal(0, random.uniform(0, 1), MOST_SEEDS)
        self.methods = int(random.integers(2, 5))
        self.levels = random.uniform(-1.5, 1.5, self.methods)
        self.best_size = random.uniform(1, 5, self.methods)
        self.height = random.uniform(2, 8)
        self.scales = np.exp(random.uniform(-0.8, 0.8, self.methods))
        many = {"many sizes": 40, "three sizes": 3}.get(world) or int(random.integers(5, 20))
        for place in range(many):
            method, rung = place % self.methods, place // self.methods
            if world in ("long cuts", "tuned by 100 rows") and rung % 4:
                self.train(method, 2.0 ** (rung // 4 * 4 + 4 - rung % 4), f"{method} {2.0 ** (rung // 4 * 4 + 4):g}")
            else:
                self.train(method, 2.0 ** (rung // 4 * 4 + 4) if world in ("long cuts", "tuned by 100 rows") else 2.0**rung)

    def _draw_rows(self) -> None:
        self.kind = self.random.choice(3, p=[EASY, HARD, 1 - EASY - HARD], size=self.rows)
        self.owner = self.random.choice(3, p=[0.5, 0.2, 0.3], size=self.rows)
        self.common = self.random.random(self.rows)

    def train(self, method: int, factor: float, source: str | None = None) -> str:
        random, name, rung = self.random, f"{method} {factor:g}", math.log2(factor)
        level = 80.0 + self.levels[method] * (self.world in ("peak", "one step", "larger is worse", "spread by method"))
        true = level + {
            "peak": -0.3 * (rung - self.best_size[method]) ** 2,
            "one step": -self.height * (rung < self.best_size[method]),
            "larger is worse": -0.5 * rung,
            "one method ahead": 1.2 * (method == 0),
            "spread by method": -self.height * 2.0**-rung,
        }.get(self.world, -float(random.choice(PLATEAUS, p=SHARES)))
        noise = self.spread * (1.0 - random.gamma(2, 1, MOST_SEEDS) / 2 if self.world == "skewed seeds" else
                               random.uniform(-1, 1, MOST_SEEDS) * math.sqrt(3))  # fmt: skip
        noise = noise * (self.scales[method] if self.world == "spread by method" else 1.0) + self.seed_effect
        tuning = Tuning()
        if self.world == "tuned by 100 rows":
            if source is None:
                true, shift, tuning = self.choose(true)
                noise = noise + shift
            else:
                tuning = self.summaries[source].tuning
        if source is not None:
            noise = 0.9 * self.noise[source] + math.sqrt(1 - 0.81) * noise
        self.noise = getattr(self, "noise", {}) | {name: noise}
        levels = np.clip(true + noise, 100 * EASY + 1, 100 * (1 - HARD) - 1)[None]
        self.truths[name], self.summaries[name] = true, self.score(name, method, factor, levels, source, tuning)
        return name

    def choose(self, true: float) -> tuple[float, float, Tuning]:
        """Chooses among three rates by CHOOSING rows; returns the mean of such choices, this one less it, and the luck."""
        tried = true - np.array([0.0, *self.random.uniform(0, 4, 2)])
        search = self.random.binomial(CHOOSING, np.tile(tried / 100, (400, 1))) * 100 / CHOOSING
        chosen = tried[(search + self.random.random(search.shape) * 1e-6).argmax(axis=1)]
        return float(chosen.mean()), float(chosen[0] - chosen.mean()), Tuning(3, lucks={"t0": float(chosen.var())})

    def answer(self, task: int, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mine = self.random.random(self.rows)
        uniform = np.where(self.owner == 0, self.common, mine)[None].repeat(len(levels), axis=0)
        uniform = np.where(self.owner == 2, self.random.random(uniform.shape), uniform)
        share = (levels[:, None] / 100 - EASY) / (1 - EASY - HARD)
        right = np.where(self.kind == 2, uniform < share, self.kind == 0)
        blocks = np.eye(min(BLOCKS, self.rows))[np.arange(self.rows) % BLOCKS]
        without = 100 * (right.sum(axis=1, keepdims=True) - right @ blocks) / (self.rows - blocks.sum(axis=0))
        return 100 * right.mean(axis=1), (blocks.shape[1] - 1) * (without.mean(axis=1, keepdims=True) - without)
