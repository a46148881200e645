"""Does a sweep settle differences as often as its plan says?

    python -m tests.benchmarks.power

A pair is two configurations of a sweep of which the larger one is better by 0.25 to 4 points. It is settled if the sweep's
posterior says so with a probability of 0.9. Said is what `orchestrator.judging.power` gives for this difference.

`drawn`: sweeps with seeds drawn around the means of a record, which are then the truth. `held out`: two seeds of a record say
the difference, with their error, and the three others judge. `world`: those of `tests.benchmarks.answer`, with five seeds. A
pilot has three seeds: of the record, or of the sweep itself. `assumed` is said without a pilot.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from orchestrator.judging.control import HEAD
from orchestrator.judging.power import Size, Spread, assume_spread, effective_rows, measure_spread, settles
from orchestrator.judging.probabilities import evidence
from orchestrator.results.intervals import by_seed, interval
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks.answer import WORLDS, Simulation
from tests.benchmarks.answered import drawn, judged
from tests.benchmarks.recorded_front import summaries_of

FOLDER, SURE, BINS = Path("docs/measurements/records"), 0.9, (0.2, 0.4, 0.6, 0.8)
RECORDS: Mapping[str, Mapping[str, int]] = {
    "fair": {"glue/stsb": 1000, "glue/sst2": 872, "glue/qqp": 1000},
    "sizes": {"glue/stsb": 500, "glue/sst2": 500, "glue/qqp": 500},
    "smollm2-commonsense": {"commonsense": 600},
    "smollm2-heads": {"glue/sst2": 872},
}
"""The scored rows of each task."""
Pair = tuple[float, float, bool]
"""The probability said by a pilot, that said by what is assumed, and whether the pair was settled."""


@dataclass(frozen=True)
class Case:
    """Configurations of a record on some of its tasks, and the rows on which they were scored."""

    recorded: Sequence[Summary]
    rows: float
    assumed: Spread

    @property
    def pilot(self) -> Spread:
        return spread(seeds_of(self.recorded, (0, 1, 2)), self.rows)


def spread(complete: Sequence[Summary], rows: float) -> Spread:
    measured = measure_spread(complete, DEFAULT_OBJECTIVES, rows, "")
    assert measured is not None
    return measured


@cache
def cases(name: str) -> tuple[Case, ...]:
    """Returns a record on each of its tasks and on all of them."""
    tasks = RECORDS[name]
    full = [row for row in summaries_of([FOLDER / f"{name}.csv"]) if row.method != HEAD]
    made = []
    for chosen in {(task,) for task in tasks} | {tuple(tasks)}:
        rows = [replace(row, tasks={task: row.tasks[task] for task in chosen}) for row in full]
        # The record has no credits, so its probabilities are about these examples.
        assumed = replace(assume_spread(len(chosen)), shared=0.0)
        made.append(Case(seeds_of(rows, range(10)), effective_rows([tasks[task] for task in chosen]), assumed))
    return tuple(made)


def seeds_of(summaries: Sequence[Summary], seeds: Sequence[int]) -> list[Summary]:
    """Returns the configurations with some of their seeds, with new numbers."""
    rows = []
    for row in summaries:
        scores = {
            (task, seeds.index(seed)): score
            for (task, seed), score in row.scores.items()
            if seed in seeds and task in row.tasks
        }
        rows.append(replace(row, scores=scores, metrics={"score": interval([*by_seed(scores, row.tasks).values()])}))
    return rows


def pairs_of(
    full: Sequence[Summary], seeds: int, differences: Mapping[str, float], spreads: tuple[Spread, Spread], rows: float,
    error: float = 0.0,
) -> Iterator[Pair]:  # fmt: skip
    """Yields the pairs of a sweep.

    Args:
        differences: a score of each configuration, between which the differences are.
        error: the variance of one such score.
    """
    complete = judged(full, dict.fromkeys((row.source or row.configuration for row in full), seeds))
    observed = evidence(complete, DEFAULT_OBJECTIVES, 1.0)
    assert observed is not None
    scores, size = observed.draw(), Size(seeds, rows, len(complete))
    at, weights = np.polynomial.hermite_e.hermegauss(9)
    for small, large in combinations(np.argsort(observed.size, kind="stable"), 2):
        gap = differences[complete[large].configuration] - differences[complete[small].configuration]
        if observed.size[small] < observed.size[large] and 0.25 < gap < 4:
            gaps = gap + at * np.sqrt(2 * error)
            said = (np.average([settles(each, part, size, SURE) for each in gaps], weights=weights) for part in spreads)
            yield *said, (scores[:, large] > scores[:, small]).mean() >= SURE


def recorded_pairs(name: str, sweeps: int, seed: int = 3) -> list[Pair]:
    """Returns pairs of sweeps that are drawn around a record's means, with three and five seeds."""
    random, pairs = np.random.default_rng(seed), list[Pair]()
    for case in cases(name):
        truths = {row.configuration: row.score.mean for row in case.recorded}
        for place in range(sweeps):
            new, seeds = drawn(case.recorded, random), (3, 5)[place % 2]
            pairs += pairs_of(new, seeds, truths, (case.pilot, case.assumed), case.rows)
    return pairs


def held_out_pairs(name: str) -> list[Pair]:
    """Returns pairs of sweeps of three seeds of five; the other two say the difference."""
    pairs = list[Pair]()
    for case in cases(name):
        for others in combinations(range(5), 2):
            seeds = [seed for seed in range(5) if seed not in others]
            others_means = {row.configuration: row.score.mean for row in seeds_of(case.recorded, others)}
            pilot = spread(seeds_of(case.recorded, seeds), case.rows)
            error = (pilot.residual + pilot.drawn / case.rows) / len(others)
            pairs += pairs_of(seeds_of(case.recorded, seeds), 3, others_means, (pilot, case.assumed), case.rows, error)
    return pairs


def simulated_pairs(world: str, sweeps: int, seed: int = 3) -> list[Pair]:
    """Returns pairs of simulated sweeps of five seeds, whose truth is known."""
    random, pairs = np.random.default_rng(seed), list[Pair]()
    for _ in range(sweeps):
        sweep = Simulation(world, random)
        full, rows = [*sweep.summaries.values()], float(sweep.rows * sweep.tasks)
        pilot = spread(judged(full, dict.fromkeys(sweep.truths, 3) | {row.source: 3 for row in full if row.source}), rows)
        pairs += pairs_of(full, 5, sweep.truths, (pilot, assume_spread(sweep.tasks)), rows)
    return pairs


def shares(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Returns the mean probabilities said by pilots and by what is assumed, and the share that was settled."""
    by_pilot, assumed, settled = np.mean(np.array(pairs, dtype=float), axis=0)
    return float(by_pilot), float(assumed), float(settled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=40, help="sweeps of each record and world (40)")
    sweeps = parser.parse_args().sweeps
    print(f"| sweeps | pairs | said by a pilot | assumed | settled | by a pilot, in bins |\n{'| --- ' * 6}|")
    sources = {f"{name}, drawn": lambda name=name: recorded_pairs(name, sweeps) for name in RECORDS}
    sources |= {"fair, held out": lambda: held_out_pairs("fair")}
    sources |= {f"world: {world}": lambda world=world: simulated_pairs(world, sweeps) for world in WORLDS if world != "flat"}
    for title, make in sources.items():
        pairs = np.array(make(), dtype=float)
        said, assumed, settled = shares(pairs)
        places = np.digitize(pairs[:, 0], BINS)
        parts = [pairs[places == place] for place in range(len(BINS) + 1)]
        bins = ", ".join(f"{part[:, 0].mean():.2f}:{part[:, 2].mean():.2f}" for part in parts if len(part) >= 30)
        print(f"| {title} | {len(pairs)} | {said:.2f} | {assumed:.2f} | {settled:.2f} | {bins} |", flush=True)


if __name__ == "__main__":
    main()
