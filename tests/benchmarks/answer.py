"""Simulated sweeps whose truth is known, by a generator that shares no assumption with the model of the chances.

A sweep has 200 to 2,000 scored rows, 6 to 24 configurations of two to four methods, and 3 to 5 seeds. True scores follow a
power law of the size for each method, with Laplace deviations. A row is answered rightly where a latent normal is below the
quantile of the seed's score: 62 % of its variance is common to all, 17 % belongs to the configuration, 21 % to the seed. The
worlds differ in how seeds spread and in what methods learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from craft.scoring.predictions import block_credits
from orchestrator.results.front import mark_front
from orchestrator.results.intervals import by_seed, interval, sampling_reach
from orchestrator.results.summary import Summary
from orchestrator.results.tuning import Tuning, luck_of_choice
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES

WORLDS = (
    *("equal", "unequal", "larger ones scatter", "smaller ones scatter", "failing seeds", "t seeds"),
    *("cuts", "flat", "dead method", "three tasks", "tuned"),
)
METHODS = ("lora", "dora", "pissa", "olora")
MOST_SEEDS, BLOCKS = 10, 200
COMMON, PRIVATE, FRESH = (math.sqrt(share) for share in (0.62, 0.17, 0.21))


class Simulation:
    """One sweep of a world: `truths` and the summaries of all seeds by the names of its configurations."""

    def __init__(self, world: str, random: np.random.Generator) -> None:
        self.world, self.random = world, random
        self.truths, self.summaries = dict[str, float](), dict[str, Summary]()
        self.scored = dict[str, tuple[Any, ...]]()
        self._start()

    def _start(self) -> None:
        random, world = self.random, self.world
        self.rows = round(math.exp(random.uniform(math.log(200), math.log(2000))))
        self.tasks, self.seeds = 3 if world == "three tasks" else 1, int(random.integers(3, 6))
        self._draw_rows()
        self.spread, self.differences = np.exp(random.normal([-0.2, -0.2], [0.4, 0.7]))
        self.seed_effect = random.normal(0, 0.5 * self.spread, MOST_SEEDS)
        many, methods = int(random.integers(6, 25)), int(random.integers(2, 5))
        self.curves = [(80 + random.normal(0, 1.5 * self.differences), random.exponential(5), random.uniform(0.2, 0.8))
                       for _ in range(methods)]  # fmt: skip
        if world == "flat":
            self.curves, self.differences = [(80.0, 0.0, 1.0)] * methods, 0.05
        for place in range(many):
            method, rung = place % methods, place // methods
            if world == "cuts" and rung % 3:
                self.train(method, 4.0 ** (rung // 3 * 2 + 2 - rung % 3), f"{method} {4.0 ** (rung // 3 * 2 + 2):g}")
            else:
                self.train(method, 4.0 ** (rung // 3 * 2 + 2) if world == "cuts" else 2.0**rung)

    def _draw_rows(self) -> None:
        self.common = self.random.normal(0, COMMON, (self.tasks, self.rows))

    def score_again(self, times: int = 1) -> None:
        """Scores all seeds on new rows, so many times as many as before."""
        self.rows *= times
        self._draw_rows()
        for arguments in [*self.scored.values()]:
            self.summaries[arguments[0]] = self.score(*arguments)

    def train(self, method: int, factor: float, source: str | None = None) -> str:
        """Adds the configuration of a method with so many times its least size; its seeds follow those of its `source`."""
        random, name = self.random, f"{method} {factor:g}"
        ceiling, fall, power = self.curves[method]
        true = ceiling - fall * factor**-power + random.laplace(0, self.differences / math.sqrt(2))
        true = 50.0 if self.world == "dead method" and method == 0 else min(true, 97.0)
        along = (math.log(factor) - 2) / 2
        scale = self.spread * {
            "unequal": math.exp(random.normal(0, 0.6)),
            "larger ones scatter": math.exp(0.7 * along),
            "smaller ones scatter": math.exp(-0.7 * along),
        }.get(self.world, 1.0)
        noise = random.standard_t(3, MOST_SEEDS) / math.sqrt(3) if self.world == "t seeds" else random.normal(0, 1, MOST_SEEDS)
        noise = scale * noise + self.seed_effect
        if self.world == "failing seeds":
            fails = min(0.3, random.exponential(0.05))
            noise -= random.uniform(3, 15, MOST_SEEDS) * (random.random(MOST_SEEDS) < fails) - 9 * fails
            true -= 9 * fails
        if source is not None:
            noise = 0.8 * self.noise[source] + 0.6 * (noise - self.seed_effect)
        self.noise = getattr(self, "noise", {}) | {name: noise}
        tuning = Tuning()
        if self.world == "tuned":
            tried = true - random.exponential(1) * (np.arange(4) - random.uniform(0, 3)) ** 2
            true, level, tuning = self.tune(tried, scale)
            noise += level - true
        offsets = random.normal(0, 2 * self.differences, self.tasks) if self.tasks > 1 else np.zeros(1)
        levels = np.clip(true + (offsets - offsets.mean())[:, None] + noise, 1, 99)
        self.truths[name], self.summaries[name] = true, self.score(name, method, factor, levels, source, tuning)
        return name

    def tune(self, tried: np.ndarray, scale: float) -> tuple[float, float, Tuning]:
        """Chooses among true scores of rates by 300 rows; returns the mean over all such choices, this one's, and the luck."""
        levels = tried + self.random.normal(0, scale, (100, 1, 4))
        latent = self.random.normal(0, COMMON, (100, 300, 1)) + self.random.normal(0, math.sqrt(0.38), (100, 300, 4))
        right = latent < ndtri(levels / 100)
        search = 100 * right.mean(axis=1)
        chosen = tried[search.argmax(axis=1)]
        credits = [block_credits(lambda rows, of_one=of_one: 100 * float(of_one[rows].mean()), 300) for of_one in right[0].T]
        luck = luck_of_choice(search[0], np.array(credits))
        return float(chosen.mean()), float(chosen[0]), Tuning(4, lucks={"t0": luck})

    def answer(self, task: int, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores and credits of seeds whose scores over infinitely many rows of the task are `levels`."""
        latent = self.common[task] + self.random.normal(0, PRIVATE, self.rows)
        right = latent + self.random.normal(0, FRESH, (len(levels), self.rows)) < ndtri(levels[:, None] / 100)
        blocks = np.eye(BLOCKS)[np.arange(self.rows) % BLOCKS]
        without = 100 * (right.sum(axis=1, keepdims=True) - right @ blocks) / (self.rows - blocks.sum(axis=0))
        return 100 * right.mean(axis=1), (BLOCKS - 1) * (without.mean(axis=1, keepdims=True) - without)

    def score(self, name: str, method: int, factor: float, levels: np.ndarray, source: str | None, tuning: Tuning) -> Summary:
        self.scored[name] = name, method, factor, levels, source, tuning
        scores, credits = dict[tuple[str, int], float](), {}
        for task in range(self.tasks):
            for seed, (score, row) in enumerate(zip(*self.answer(task, levels[task]), strict=True)):
                scores[f"t{task}", seed], credits[f"t{task}", seed] = float(score), row
        size = {"trainable_parameters": 1000.0 * 3**method * factor, "seconds": 60.0, "examples": float(self.rows)}
        tasks = dict.fromkeys((f"t{task}" for task in range(self.tasks)), interval([]))
        return Summary(name, name, METHODS[method], {"rank": factor}, {}, tasks, size, scores, 0, 0, 0, 0, 0,
                       source=source, credits=credits, tuning=tuning)  # fmt: skip

    def mark(self, names: Sequence[str], seeds: int, first: int = 0) -> list[Summary]:
        """Returns the configurations after so many seeds, from the first one on, with their probabilities."""
        rows = []
        for row in map(self.summaries.__getitem__, names):
            scores, credits = (
                {(task, seed - first): value for (task, seed), value in table.items() if first <= seed < first + seeds}
                for table in (row.scores, row.credits)
            )
            rows.append(rescored(row, scores, self.rows * self.tasks, credits=credits))
        return mark_front(rows, DEFAULT_OBJECTIVES)


def rescored(row: Summary, scores: Mapping[tuple[str, int], float], examples: float, **changes: Any) -> Summary:
    """Returns a configuration with these scores alone, over so many examples."""
    mean = interval([*by_seed(scores, row.tasks).values()])
    credits = {key: row.credits[key] for key in scores if key in row.credits}
    seeds = {"planned": mean.n, "finished": mean.n, "seeds": mean.n}
    reach = sampling_reach({"score": mean.mean}, examples)
    return replace(row, **{"credits": credits} | changes, scores=scores, metrics={"score": mean}, sampling=reach, **seeds)
