"""What carrying a learning rate over ranks saves and costs, replayed on scores of every rank with every rate.

    python -m tests.benchmarks.carried_rates [runs/rates ...] [--losses FILE.csv]

Scores are those in `recorded_grid.csv.gz`, of CRAFT in finished sweeps such as `sweeps/rates.yaml`, and losses in a CSV
file with the columns model, rank, learning_rate and test_nll. Of each the largest part counts in which three ranks or more have
the same three rates or more. `compare: fair` tunes at the middle rank (`orchestrator.plan.carrying`); the smallest and the
largest are there for comparison.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from craft.methods import METHODS
from craft.methods.craft_tucker import REFERENCE_RANK
from orchestrator.plan.carrying import LEAST, choose, to_try
from orchestrator.review.past_sweep import read_folder
from tests.benchmarks.replay.curves import read_record

Cells = Mapping[tuple[int, float], float]
"""Scores by rank and rate."""


def recorded_grid(method: str) -> list[Cells]:
    found: dict[str, dict[tuple[int, float], float]] = defaultdict(dict)
    for curve in read_record(Path(__file__).with_name("recorded_grid.csv.gz")).curves:
        of = curve.parameters
        if of["method"] == method:
            rank, alike = of.get("rank") or of["r2"], f"{of['projections']} {of['dropout']}"
            found[alike][rank, of["learning_rate"]] = curve.evaluations[-1][1]
    return [*found.values()]


def craft_sweep(folder: Path, scaling: str) -> list[Cells]:
    """By task, the search scores of one seed; at the reference rank both scalings are the same training."""
    found: dict[str, dict[tuple[int, float], float]] = defaultdict(dict)
    for one in read_folder(folder).entries:
        rank, rate = int(one.parameters["r2"]), float(one.parameters["learning_rate"])
        if one.result and (one.parameters.get("rate_scaling", "none") == scaling or rank == REFERENCE_RANK):
            found[one.task][rank, rate] = one.result.metrics["search_score"]
    return [*found.values()]


def losses(file: Path) -> list[Cells]:
    found: dict[str, dict[tuple[int, float], float]] = defaultdict(dict)
    for row in csv.DictReader(file.open()):
        found[row["model"]][int(row["rank"]), float(row["learning_rate"])] = -float(row["test_nll"])
    return [*found.values()]


def full_grid(cells: Cells) -> list[list[float]]:
    """The largest part that has all rates at all its ranks; a row a rank. Empty if it is too small."""
    ranks, best = sorted({rank for rank, _ in cells}), list[list[float]]()
    for some in (part for size in range(LEAST, len(ranks) + 1) for part in itertools.combinations(ranks, size)):
        rates = sorted(rate for rate in {rate for _, rate in cells} if all((rank, rate) in cells for rank in some))
        if len(rates) >= LEAST and len(some) * len(rates) >= sum(map(len, best)):
            best = [[cells[rank, rate] for rate in rates] for rank in some]
    return best


def replay(grid: Sequence[Sequence[float]], start: int) -> tuple[int, list[float]]:
    """How many trainings carrying takes, and by how much each rank's score is below its best."""
    tried: list[dict[int, float]] = [{} for _ in grid]
    while any(wanted - known.keys() for wanted, known in zip(to_try(tried, len(grid[0]), start), tried, strict=True)):
        for known, row, wanted in zip(tried, grid, to_try(tried, len(grid[0]), start), strict=True):
            known |= {rate: row[rate] for rate in wanted}
    rows = zip(grid, choose(tried, len(grid[0]), start), strict=True)
    return sum(map(len, tried)), [max(row) - row[place or 0] for row, (place, _) in rows]


def lines_of(name: str, several: Sequence[Cells]) -> list[str]:
    grids, lines = [grid for cells in several if (grid := full_grid(cells))], list[str]()
    at_random = fmean(max(row) - fmean(row) for grid in grids for row in grid)
    for at, share in (("smallest", 0.0), ("**middle**", 0.5), ("largest", 1.0)):
        replays = [replay(grid, int((len(grid) - 1) * share)) for grid in grids]
        below = [one for _, ranks in replays for one in ranks]
        spent = f"{sum(trainings for trainings, _ in replays)} of {sum(len(grid) * len(grid[0]) for grid in grids)}"
        numbers = " | ".join(f"{number:.{5 if at_random < 1 else 2}f}" for number in (fmean(below), max(below), at_random))
        lines.append(f"| {name} | {at} | {spent} | {numbers} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", type=Path, help="folders of finished sweeps of CRAFT")
    parser.add_argument("--losses", type=Path, help="a CSV file of losses by model, rank and learning rate")
    given = parser.parse_args()
    sources = {f"CRAFT, {how}: {one.name}": craft_sweep(one, how) for how in ("none", "rank") for one in given.sweeps}
    sources |= {f"{METHODS[one].title}: recorded grid": recorded_grid(one) for one in ("craft", "lora")}
    sources |= {f"LoRA: {given.losses.stem}": losses(given.losses)} if given.losses else {}
    print("| scores | tuned at | trainings | below the best: mean | at most | of any rate: mean |\n" + "| --- " * 6 + "|")
    print("\n".join(line for name, several in sources.items() for line in lines_of(name, several)))


if __name__ == "__main__":
    main()
