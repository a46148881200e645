"""Does a plan say how many of ten sweeps will have an answer? Simulated sweeps of both generators.

    python -m tests.benchmarks.power

Said is what `orchestrator.results.power` gives for the configurations, seeds and rows of a sweep: by a pilot, which is the
same sweep with three seeds, and by what is assumed without one. An answer is what `judge` says of other seeds, on rows that are
drawn again: three seeds, five, and three on twice the rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from craft.results import Counts
from orchestrator.plan.configuration import Configuration
from orchestrator.results.front import enough_of
from orchestrator.results.metrics import SIZE
from orchestrator.results.power import Members, assume, foresee
from orchestrator.sweepfile.settings import Enough
from tests.benchmarks.answer import Simulation
from tests.benchmarks.calibration import GENERATORS

PILOT = 3
PLANS = ((3, 1), (5, 1), (3, 2))
"""Seeds, and how many times as many rows as the pilot has."""
Outcome = list[list[float]]
"""Of each sweep: for every plan what a pilot says, what is assumed, and whether there is an answer."""


def members_of(sweep: Simulation) -> Members:
    """Returns the configurations of a sweep as its plan has them."""
    members = []
    for name, row in sweep.summaries.items():
        counts = Counts(int(row.counts[SIZE]), 2, 10_000, 4)
        members.append((row.source or name, Configuration(name, name, row.method, row.parameters, {}, counts)))
    return members


def simulated(generator: type[Simulation], world: str, sweeps: int, seed: int = 11) -> Iterator[list[float]]:
    random = np.random.default_rng(seed)
    for _ in range(sweeps):
        sweep, values = generator(world, random), list[float]()
        members, rows, pilot = members_of(sweep), float(sweep.rows * sweep.tasks), sweep.mark([*sweep.truths], PILOT)
        outlooks = foresee(members, pilot, rows, ""), assume(members, sweep.tasks, "tuned" in world)
        for seeds, times in PLANS:
            sweep.score_again(times)
            values += [outlook.answered(seeds, times * rows, Enough()) if outlook else np.nan for outlook in outlooks]
            values.append(float(enough_of(sweep.mark([*sweep.truths], seeds, PILOT)) is not None))
        yield values


def cells(rows: Outcome) -> list[str]:
    means = np.nanmean(rows, axis=0).reshape(len(PLANS), 3)
    return [str(len(rows)), *("/".join(f"{10 * share:.1f}" for share in plan) for plan in means)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=60, help="sweeps of each world (60)")
    parser.add_argument("--only", nargs="*", default=[], help="worlds; all if none is named")
    parser.add_argument("--keep", type=Path, help="a JSON file to which outcomes are added, so that a run may be in parts")
    options, total = parser.parse_args(), dict[str, Outcome]()
    if options.keep and options.keep.exists():
        total = json.loads(options.keep.read_text())
    heads = " | ".join(f"{seeds} seeds{', twice the rows' if times > 1 else ''}" for seeds, times in PLANS)
    print(f"| of 10: by a pilot/assumed/answered | sweeps | {heads} |\n{'| --- ' * 5}|")
    for generator, worlds in GENERATORS.items():
        for world in worlds if not options.only else [name for name in options.only if name in worlds]:
            total[world] = total.get(world) or [*simulated(generator, world, options.sweeps)]
            print(f"| {' | '.join([world, *cells(total[world])])} |", flush=True)
            if options.keep:
                options.keep.write_text(json.dumps(total))
    every = [row for rows in total.values() for row in rows]
    print(f"| {' | '.join(['all', *cells(every)])} |")
    means = np.array([np.nanmean(rows, axis=0).reshape(len(PLANS), 3) for rows in total.values()])
    near = np.abs(means[:, :, :2] - means[:, :, 2:]) <= 0.08
    pilot, assumed = near.sum(axis=(0, 1))
    print(f"off by at most 0.8: {pilot} of {near[..., 0].size} by a pilot, {assumed} by what is assumed")


if __name__ == "__main__":
    main()
