"""Does `compare` find a difference that is there, and none where there is none? Pairs of simulated sweeps on the same rows.

    python -m tests.benchmarks.compared

A world of `tests.benchmarks.answer` is split into two sweeps with three seeds. Each gets one more configuration, whose true
scores differ by a number of points. Shown before: by the variance of the three differences; now: by the seeds of both sweeps.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.results.intervals import compare
from orchestrator.results.luck import difference
from orchestrator.results.probabilities import spread_between, spreads
from orchestrator.results.summary import Summary
from orchestrator.results.tuning import Tuning
from tests.benchmarks.answer import COMMON, MOST_SEEDS, Simulation

WORLDS = ("equal", "unequal", "larger ones scatter", "failing seeds", "t seeds")
GAPS, SEEDS, ROWS = (0.0, 2.0), 3, 872


class OnRows(Simulation):
    """A sweep with ROWS scored rows."""

    def _start(self) -> None:
        super()._start()
        self.rows, self.common, names = ROWS, self.random.normal(0, COMMON, (1, ROWS)), [*self.truths]
        for name in names:
            method, factor = name.split()
            self.train(int(method), float(factor))


def found(world: str, sweeps: int, seed: int = 5) -> list[tuple[float, float]]:
    """Returns for each gap how often a difference is shown by the three differences alone, and by the seeds of both sweeps."""
    random, shown = np.random.default_rng(seed), []
    for _ in range(sweeps):
        sweep = OnRows(world, random)
        names, levels = [*sweep.truths], (80.0, *(80.0 - gap for gap in GAPS))
        for number, level in enumerate(levels):
            name, noise = f"9 {number + 1}", sweep.spread * random.normal(0, 1, MOST_SEEDS) + sweep.seed_effect
            sweep.truths[name] = level
            sweep.summaries[name] = sweep.score(name, 0, 8.0, (level + noise)[None], None, Tuning())
        first = sweep.mark([*names[::2], "9 1"], SEEDS)
        others = [sweep.mark([*names[1::2], f"9 {number + 2}"], SEEDS) for number in range(len(GAPS))]
        known = spreads(first, ["t0"])
        shown.append([_shown([first[-1], rows[-1]], [known, spreads(rows, ["t0"])]) for rows in others])
    return [(float(before), float(now)) for before, now in np.mean(shown, axis=0)]


def _shown(rows: Sequence[Summary], known: Sequence[Mapping[str, tuple[float, float]]]) -> tuple[bool, bool]:
    luck = difference(rows[0].credits, rows[1].credits, {"t0": ROWS})
    pooled = spread_between(*(by_id.get(row.configuration) for row, by_id in zip(rows, known, strict=True)), one_sweep=False)
    before, now = (compare(rows[0].scores, rows[1].scores, luck, pooled=part).difference for part in (None, pooled))
    return not before.low <= 0 <= before.high, not now.low <= 0 <= now.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=200, help="pairs of sweeps of each world and gap (200)")
    parser.add_argument("--only", nargs="*", default=WORLDS, help="worlds (all)")
    sweeps, worlds = parser.parse_args().sweeps, parser.parse_args().only
    print(f"| world | true difference | shown before | shown now |\n{'| --- ' * 4}|")
    for world in worlds:
        for gap, (before, now) in zip(GAPS, found(world, sweeps), strict=True):
            print(f"| {world} | {gap:g} | {before:.0%} | {now:.0%} |", flush=True)


if __name__ == "__main__":
    main()
