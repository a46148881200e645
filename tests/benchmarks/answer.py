"""Is the answer right as often as it says, and do its proposals do what they say? Simulated sweeps whose truth is known.

    python -m tests.benchmarks.answer

The generator shares no assumption with the model of the chances. A sweep has 200 to 2,000 scored rows, 6 to 24 configurations
of two to four methods, and 3 to 5 seeds. True scores follow a power law of the size for each method, with Laplace deviations. A
row is answered rightly where a latent normal is below the quantile of the seed's score: 62 % of its variance is common to all,
17 % belongs to the configuration, 21 % to the seed. The worlds differ in how seeds spread and in what methods learn.

An answer is right if nothing is better by more than a point in truth. A proposal is carried out; it decides if one
configuration is then enough and nothing smaller may be. A size beyond the largest is better if it exceeds all that were tried
by more than a point in truth. `P(enough)` is over configurations for which it is 0.2 to 0.8. `score` and `expected` are those
of members of the front, less the truth and less what the rows do to all.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from orchestrator.record.events import SessionStarted
from orchestrator.record.state import State
from orchestrator.results.answer import Answer, find_answer
from orchestrator.results.front import mark_front
from orchestrator.results.intervals import interval, sampling_reach
from orchestrator.results.metrics import EXPECTED, P_ENOUGH
from orchestrator.results.step import COUNTS
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
Pairs = list[tuple[float, float]]


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
        search = 100 * (latent < ndtri(levels / 100)).mean(axis=1)
        chosen = tried[search.argmax(axis=1)]
        reported, credits = zip(*(self.answer(0, levels[0, 0, [place]]) for place in range(4)), strict=True)
        luck = luck_of_choice(search[0], np.ravel(reported), np.concatenate(credits), self.rows / 300)
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

    def judge(self, names: Sequence[str], seeds: int) -> tuple[list[Summary], Answer]:
        """Returns the judged configurations after so many seeds, and the answer."""
        marked = self.mark(names, seeds)
        file = {"name": "s", "model": "m", "tasks": ["t0"], "seeds": list(range(seeds)), "space": [{"method": "lora"}]}
        answer = find_answer(marked, State().after(SessionStarted(sweep=file, configurations=1, trainings=1)))
        assert answer is not None
        return marked, answer

    def mark(self, names: Sequence[str], seeds: int) -> list[Summary]:
        """Returns the configurations after so many seeds, with their probabilities."""
        rows = []
        for name in names:
            summary = self.summaries[name]
            scores = {key: score for key, score in summary.scores.items() if key[1] < seeds}
            by_seed = np.reshape([*scores.values()], (self.tasks, seeds)).mean(axis=0)
            reach = sampling_reach({"score": float(by_seed.mean())}, self.rows * self.tasks)
            rows.append(replace(summary, scores=scores, credits={key: summary.credits[key] for key in scores}, sampling=reach,
                                metrics={"score": interval(by_seed)}, planned=seeds, finished=seeds, seeds=seeds))  # fmt: skip
        return mark_front(rows, DEFAULT_OBJECTIVES)


def simulate(world: str, sweeps: int, seed: int = 7) -> dict[str, Pairs]:
    """Returns pairs of what was said and what is true: of answers, proposals, larger sizes, scores and intervals."""
    random, pairs = np.random.default_rng(seed), defaultdict[str, Pairs](list)
    for _ in range(sweeps):
        sweep = Simulation(world, random)
        names = [*sweep.truths]
        marked, answer = sweep.judge(names, sweep.seeds)
        best = max(sweep.truths.values())
        shift = np.mean([summary.score.mean - sweep.truths[summary.configuration] for summary in marked])
        if answer.kind == "enough" and answer.p_better is not None:
            pairs["answers"].append((1 - answer.p_better, sweep.truths[answer.configuration] >= best - 1))
        for summary in marked:
            truth = sweep.truths[summary.configuration]
            pairs["intervals"].append((0.95, summary.score.low <= truth <= summary.score.high))
            if 0.2 <= summary.counts[P_ENOUGH] <= 0.8:
                pairs["enough"].append((summary.counts[P_ENOUGH], truth >= best - 1))
            if summary.on_front and EXPECTED in summary.counts:
                pairs["expected"].append((summary.counts[EXPECTED] - shift, truth))
                pairs["score"].append((summary.score.mean - shift, truth))
        size = {"larger": (answer.best, 2.0), "smaller": (answer.configuration, 0.5)}
        tried = {
            kind: sweep.train(int(name.split()[0]), factor * float(name.split()[1])) for kind, (name, factor) in size.items()
        }
        if "largest size tried" in answer.unknown:
            pairs["larger"].append((math.nan, sweep.truths[tried["larger"]] > best + 1))
        if answer.p_decides is not None and (action := re.search(r"(\w+) more seed|a (larger|smaller) size", answer.proposal)):
            more = COUNTS.index(action[1]) if action[1] else 0
            later = sweep.judge([*names, tried[action[2]]] if action[2] else names, sweep.seeds + more)[1]
            pairs["proposals"].append((answer.p_decides, later.kind == "enough" and not later.unknown.startswith("Not known")))
    return pairs


def table(sweeps: int) -> None:
    kinds = {"answers": "right", "proposals": "decided", "larger": "better", "enough": "true"}
    heads = " | ".join(f"{kind} | said | {came}" for kind, came in kinds.items()).replace("enough", "P(enough)")
    heads = heads.replace("larger | said", "larger")
    print(f"| world | {heads} | score | expected | intervals |\n{'| --- ' * 15}|")
    for world in WORLDS:
        pairs, cells = simulate(world, sweeps), [world]
        for kind in kinds:
            said, came = (f"{100 * share:.0f} %" for share in np.mean(pairs[kind] or [(math.nan, math.nan)], axis=0))
            cells += [str(len(pairs[kind])), came] if kind == "larger" else [str(len(pairs[kind])), said, came]
        cells += [f"{-np.diff(pairs[kind]).mean():+.2f}" for kind in ("score", "expected")]
        print(f"| {' | '.join(cells)} | {100 * np.mean(pairs['intervals'], axis=0)[1]:.1f} % |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=300, help="simulated sweeps a world (300)")
    table(parser.parse_args().sweeps)


if __name__ == "__main__":
    main()
