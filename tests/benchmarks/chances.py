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
from typing import Any

import numpy as np

from orchestrator.results.chances import P_FRONT, P_WITHIN, front_chances, shares, with_chances
from orchestrator.results.front import POSSIBLE
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
        size, true = _truth(random, many, differences)
        noise = 2 * (np.exp(random.normal(0, 0.5, many)) if unequal else np.ones(many))
        seen = true + random.normal(0, 1, (seeds, many)) * noise + random.normal(0, effect, (seeds, 1))
        found = with_chances([_summary(f"c{i}", seen[:, i], size[i]) for i in range(many)], DEFAULT_OBJECTIVES)
        inside += [one.score.low <= value <= one.score.high for one, value in zip(found, true, strict=True)]
        for name, within in ((P_FRONT, 0.0), (P_WITHIN, 1.0)):
            truth = shares(true[None], size[:, None], within) > 0
            predicted[name] += [(one.counts[name], bool(yes)) for one, yes in zip(found, truth, strict=True)]
    return [f"{100 * np.mean(inside):.1f} %", *(_bins(predicted[name]) for name in (P_FRONT, P_WITHIN))]


def _summary(name: str, scores: Any, size: float) -> Summary:
    by_seed = {("task", seed): float(score) for seed, score in enumerate(scores)}
    value = interval(by_seed.values())
    counts = {"trainable_parameters": float(size)}
    return Summary(
        name, name, "lora", {}, {"score": value}, {"task": value}, counts, by_seed, len(scores), len(scores), 0, 0, 2
    )


def _bins(predicted: list[tuple[float, bool]]) -> str:
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


def choosing(noise: float, seeds: int, sweeps: int) -> list[str]:
    """`choose: front` with a margin of 1 on 16 configurations with true differences of two points: the share of the true front
    that it stops replicating while it is not known to be there, and further trainings of all possible ones. First by the rule
    of earlier versions (out if beaten by two margins, each divided by the root of the seeds), then by P(front)."""
    random = np.random.default_rng(11)
    lost, spent = np.zeros(2), np.zeros(2)
    fronts = 0
    for _ in range(sweeps):
        size, true = _truth(random, 16, 2.0)
        on_front = shares(true[None], size[:, None]) > 0
        fronts += on_front.sum()
        drawn = true + random.normal(0, noise, (1 + seeds, 16))
        for rule in (0, 1):
            count, kept = np.ones(16, dtype=int), np.ones(16, dtype=bool)
            for _seed in range(seeds):
                scores = [drawn[:many, one] for one, many in enumerate(count)]
                if rule:
                    chance = front_chances(scores, size[:, None], size, 1.0)
                    kept = chance >= POSSIBLE
                    more = kept & ((chance <= 1 - POSSIBLE) | (count == 1))
                else:
                    mean, off = np.array([one.mean() for one in scores]), 1 / np.sqrt(count)
                    kept = more = np.array([not (mean[:at] - off[:at] > mean[at] + off[at]).any() for at in range(16)])
                count += more
            spent[rule] += (count - 1).sum()
            lost[rule] += (on_front & ~kept).sum()
    return [f"{100 * lost[rule] / fronts:.0f} %, {100 * spent[rule] / (16 * seeds * sweeps):.0f} %" for rule in (0, 1)]


def _truth(random: np.random.Generator, many: int, differences: float) -> tuple[Any, Any]:
    """Sizes in ascending order, and true scores around a curve that levels off."""
    size = np.exp(np.sort(random.uniform(math.log(1e3), math.log(1e6), many))).round()
    along = np.log(size / 1e3) / math.log(1e3)
    return size, 60 + 4 * differences * (1 - np.exp(-2 * along)) + random.normal(0, differences, many)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=300, help="simulated sweeps a row (300)")
    sweeps = parser.parse_args().sweeps
    heads = "configurations | seeds | differences | spread | seed effect | coverage | P(front) | P(within 1)"
    print(f"| {heads} |\n{'| --- ' * 8}|")
    rows: list[tuple[int, int, float, bool, float]] = [(16, 3, d, False, 0) for d in (0.3, 1, 2, 3, 5)]
    rows += [(16, 2, 1, True, 0), (16, 2, 3, True, 0), (16, 3, 1, True, 0), (16, 3, 3, True, 0), (16, 5, 1, True, 0)]
    rows += [(16, 5, 3, False, 0), (16, 3, 2, False, 2), (16, 5, 2, True, 2), (6, 3, 2, False, 0), (3, 3, 2, False, 0)]
    for many, seeds, differences, unequal, effect in rows:
        cells = simulate(many, seeds, differences, unequal, effect, sweeps)
        spread = "unequal" if unequal else "equal"
        print("| " + " | ".join(map(str, (many, seeds, differences, spread, effect, *cells))) + " |", flush=True)
    print("\n| tasks x seeds | false verdicts of `compare` |\n| --- | --- |")
    for tasks, seeds in ((1, 3), (3, 3), (8, 3), (8, 2), (8, 5)):
        print(f"| {tasks} x {seeds} | {100 * false_verdicts(tasks, seeds, 10 * sweeps):.1f} % |", flush=True)
    print("\n| noise | further seeds | margins: lost, trained | P(front): lost, trained |\n| --- | --- | --- | --- |")
    for noise in (0.5, 1, 2, 5):
        print("| " + " | ".join([f"{noise:g}", "4", *choosing(noise, 4, sweeps // 3)]) + " |", flush=True)


if __name__ == "__main__":
    main()
