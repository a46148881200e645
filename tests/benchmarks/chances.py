"""Are the intervals, the chances of the front and the verdicts of `compare` right? Simulated sweeps whose truth is known.

    python -m tests.benchmarks.chances

Each row is a kind of sweep: configurations between 1,000 and 1,000,000 parameters on one task, whose true scores scatter by
`differences` points around a curve that levels off, and scores that scatter by two points over seeds (`unequal`: by two points
times a log-normal factor of each configuration). `seed effect` points are common to all configurations of a seed. The chances
are bins, as `predicted:true`.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from craft.scoring.credits import BLOCKS
from orchestrator.results.chances import EXPECTED, P_FRONT, P_WITHIN, shares, with_chances
from orchestrator.results.intervals import compare, interval
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES

BINS = (0.2, 0.4, 0.6, 0.8, 1.0001)


def simulate(many: int, seeds: int, differences: float, unequal: bool, effect: float, sweeps: int) -> list[Any]:
    """A row of the table: coverage, then for each chance its bins as `predicted:true`."""
    random = np.random.default_rng(7)
    inside: list[bool] = []
    predicted: dict[str, list[tuple[float, bool]]] = {P_FRONT: [], P_WITHIN: []}
    for _ in range(sweeps):
        size, true = truth_of(random, many, differences)
        noise = 2 * (np.exp(random.normal(0, 0.5, many)) if unequal else np.ones(many))
        seen = true + random.normal(0, 1, (seeds, many)) * noise + random.normal(0, effect, (seeds, 1))
        judged = with_chances([summary(f"c{i}", seen[:, i], size[i]) for i in range(many)], DEFAULT_OBJECTIVES)
        inside += [result.score.low <= value <= result.score.high for result, value in zip(judged, true, strict=True)]
        for name, within in ((P_FRONT, 0.0), (P_WITHIN, 1.0)):
            truth = shares(true[None], size[:, None] if name == P_FRONT else np.zeros((many, 1)), within) > 0
            predicted[name] += [(result.counts[name], bool(yes)) for result, yes in zip(judged, truth, strict=True)]
    return [f"{100 * np.mean(inside):.1f} %", *(bins(predicted[name]) for name in (P_FRONT, P_WITHIN))]


def simulate_luck(shared: float, each: float, stored: bool, sweeps: int) -> list[Any]:
    """A row of the table of luck: sixteen configurations with three seeds and differences of two points. Examples move each by
    `shared` points for all its seeds and by `each` points again with each seed, all by three points, and seeds by one point."""
    random = np.random.default_rng(11)
    predicted: dict[str, list[tuple[float, bool]]] = {P_FRONT: [], P_WITHIN: []}
    chosen: list[tuple[float, float]] = []
    for _ in range(sweeps):
        size, true = truth_of(random, 16, 2)
        parts = [(3, (1, 1)), (shared, (1, 16)), (each, (3, 16))]
        credits = sum(random.normal(0, deviation * BLOCKS**0.5, (*shape, BLOCKS)) for deviation, shape in parts)
        seen = true + credits.mean(axis=2) + random.normal(0, 1, (3, 16))
        summaries = [summary(f"c{i}", seen[:, i], size[i]) for i in range(16)]
        if stored:
            own = [{("task", seed): credits[seed, i] for seed in range(3)} for i in range(16)]
            summaries = [replace(result, credits=values) for result, values in zip(summaries, own, strict=True)]
        judged = with_chances(summaries, DEFAULT_OBJECTIVES)
        for name, within, costs in ((P_FRONT, 0.0, size[:, None]), (P_WITHIN, 1.0, np.zeros((16, 1)))):
            truth = shares(true[None], costs, within) > 0
            predicted[name] += [(result.counts[name], bool(yes)) for result, yes in zip(judged, truth, strict=True)]
        front = shares(seen.mean(axis=0)[None], size[:, None]) > 0
        common = np.mean(seen - true)  # what the examples do to all
        chosen += [
            (judged[i].score.mean - true[i] - common, judged[i].counts[EXPECTED] - true[i] - common)
            for i in np.flatnonzero(front)
        ]
    score, expected = np.mean(chosen, axis=0)
    return [*(bins(predicted[name]) for name in (P_FRONT, P_WITHIN)), f"{score:+.2f}", f"{expected:+.2f}"]


def summary(name: str, scores: Any, size: float) -> Summary:
    by_seed = {("task", seed): float(score) for seed, score in enumerate(scores)}
    value = interval(by_seed.values())
    counts = {"trainable_parameters": float(size)}
    return Summary(
        name, name, "lora", {}, {"score": value}, {"task": value}, counts, by_seed, len(scores), len(scores), 0, 0, 2
    )


def bins(predicted: list[tuple[float, bool]]) -> str:
    chance, truth = np.array(predicted, dtype=float).T
    cells = []
    for low, high in itertools.pairwise(BINS):
        held = (chance >= low) & (chance < high)
        if held.sum() > 30:
            cells.append(f"{chance[held].mean():.2f}:{truth[held].mean():.2f}")
    return ", ".join(cells)


def false_verdicts(tasks: int, seeds: int, sweeps: int) -> float:
    """The share of verdicts between two equal configurations, where a seed's luck of two points is shared by its tasks."""
    random = np.random.default_rng(3)
    false = 0
    for _ in range(sweeps):
        sides = []
        for _side in range(2):
            luck = random.normal(0, 2, seeds)
            sides.append({(f"t{t}", s): 80 + luck[s] + random.normal(0, 1) for t in range(tasks) for s in range(seeds)})
        gap = compare(*sides).difference
        false += gap.low > 0 or gap.high < 0
    return false / sweeps


def truth_of(random: np.random.Generator, many: int, differences: float) -> tuple[Any, Any]:
    """Sizes in ascending order, and true scores around a curve that levels off."""
    size = np.exp(np.sort(random.uniform(math.log(1e3), math.log(1e6), many))).round()
    along = np.log(size / 1e3) / math.log(1e3)
    return size, 60 + 4 * differences * (1 - np.exp(-2 * along)) + random.normal(0, differences, many)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=300, help="simulated sweeps a row (300)")
    sweeps = parser.parse_args().sweeps
    heads = "configurations | seeds | differences | spread | seed effect | coverage | P(front) | P(within 1 of best)"
    print(f"| {heads} |\n{'| --- ' * 8}|")
    rows: list[tuple[int, int, float, bool, float]] = [(16, 3, differences, False, 0) for differences in (0.3, 1, 3)]
    rows += [(16, 2, 1, True, 0), (16, 3, 3, True, 0), (16, 3, 2, False, 2), (6, 3, 2, False, 0), (3, 3, 2, False, 0)]
    for many, seeds, differences, unequal, effect in rows:
        cells = simulate(many, seeds, differences, unequal, effect, sweeps)
        spread = "unequal" if unequal else "equal"
        print("| " + " | ".join(map(str, (many, seeds, differences, spread, effect, *cells))) + " |", flush=True)
    heads = "shared | each seed's | credits | P(front) | P(within 1 of best) | score - truth | expected - truth"
    print(f"\n| {heads} |\n{'| --- ' * 7}|")
    for shared, each in ((0, 0.76), (0.76, 0), (0.76, 0.76), (1.5, 0.76)):
        for stored in (False, True):
            row = (shared, each, "stored" if stored else "none", *simulate_luck(shared, each, stored, sweeps))
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print("\n| tasks x seeds | false verdicts of `compare` |\n| --- | --- |")
    for tasks, seeds in ((1, 3), (3, 3), (8, 3), (8, 2), (8, 5)):
        print(f"| {tasks} x {seeds} | {100 * false_verdicts(tasks, seeds, 10 * sweeps):.1f} % |", flush=True)


if __name__ == "__main__":
    main()
