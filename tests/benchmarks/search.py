"""How many trial-epochs each searcher x scheduler needs for the front of a recorded grid, over many seeds.

    python -m tests.benchmarks.search                      all combinations, the whole space: the project's own grids
    python -m tests.benchmarks.search --block 0            over the first method block alone
    python -m tests.benchmarks.search --grid recorded_cola_mrpc      another: sweeps/NAME.yaml, tests/benchmarks/NAME.csv.gz

A replay stops when its front has 95 % of the hypervolume of the whole grid's (reported scores, counts on a log axis, complete
configurations only). The ratio is to random search without stopping, in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep
from tests.benchmarks.replay.curves import RecordedCurves, read_record
from tests.benchmarks.replay.simulation import simulate
from tests.benchmarks.replay.yardstick import Yardstick, whole_record

ROOT = Path(__file__).parent.parent.parent
GRID = "recorded_grid"
SEARCHERS = ("random", "tpe", "gp")
SCHEDULERS: dict[str, tuple[int, dict[str, Any]]] = {
    "none": (0, {"name": "none"}),
    "promotion": (1, {"name": "promotion", "factor": 3}),
    "promotion, later": (2, {"name": "promotion", "factor": 3}),
    "promotion, latest": (3, {"name": "promotion", "factor": 3}),
}
"""By name, from which evaluation on it judges, and its settings but for `grace`, which follows from that."""


@dataclass(frozen=True)
class Row:
    """A combination over all seeds: trial-epochs of each replay, None where it never came so far."""

    searcher: str
    scheduler: str
    epochs: list[float | None]
    seconds: float

    @property
    def middle(self) -> float:
        """The median, replays that never came so far counted as endless."""
        return median(math.inf if needed is None else needed for needed in self.epochs)

    @property
    def quarters(self) -> tuple[float, float]:
        ordered = sorted(math.inf if needed is None else needed for needed in self.epochs)
        place = (len(ordered) - 1) // 4  # of the replays themselves: between one and an endless one there is no number
        return ordered[place], ordered[-1 - place]


def main(arguments: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--seeds", type=int, default=20)
    flags.add_argument("--first-seed", type=int, default=0, help="other seeds than those a strategy was made with")
    flags.add_argument("--workers", type=int, default=4)
    flags.add_argument("--reach", type=float, default=0.95)
    flags.add_argument("--block", type=int)
    flags.add_argument("--grid", default=GRID)
    flags.add_argument("--searchers", nargs="+")
    flags.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    options = flags.parse_args(arguments)
    console = Console(highlight=False, width=110)
    searchers = options.searchers or SEARCHERS
    record = read_record(Path(__file__).with_name(f"{options.grid}.csv.gz"))
    rows = []
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for row in measure(
        record, options.grid, searchers, options.schedulers, seeds, options.workers, options.reach, options.block
    ):
        console.print(f"{row.searcher} + {row.scheduler}: {_epochs(row.middle)} ({row.seconds:.0f} s)", style="dim")
        rows.append(row)
    _, cost = whole_record(sweep_of("grid", "none", 0, options.block, None, grid=options.grid, training=record.unnamed), record)
    console.print(table(rows, f"trial-epochs to {options.reach:.0%} of the grid's hypervolume; the grid takes {cost:g}"))


def measure(
    record: RecordedCurves,
    grid: str,
    searchers: Sequence[str],
    schedulers: Sequence[str],
    seeds: Sequence[int],
    workers: int,
    reach: float,
    block: int | None,
) -> Iterator[Row]:
    """Every combination, one after another."""
    summaries, _ = whole_record(sweep_of("grid", "none", 0, block, None, grid=grid, training=record.unnamed), record)
    size = len(summaries)
    for searcher in searchers:
        for scheduler in schedulers:
            started, reached = time.perf_counter(), []
            for seed in seeds:
                sweep = sweep_of(
                    searcher, scheduler, seed, block, size, epochs=epochs_of(record), grid=grid, training=record.unnamed
                )
                yardstick = Yardstick(summaries, sweep.objectives)
                enough = reach * yardstick.whole
                reached.append(simulate(sweep, record, workers, yardstick, enough).epochs_to(enough))
            yield Row(searcher, scheduler, reached, time.perf_counter() - started)


def table(rows: Sequence[Row], title: str) -> Table:
    """The table of a run; ratios are to random search without stopping, where that was run."""
    grid_table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("searcher", "scheduler"):
        grid_table.add_column(name)
    for name in ("median", "quartiles", "of random", "reached"):
        grid_table.add_column(name, justify="right")
    plain = next((row.middle for row in rows if (row.searcher, row.scheduler) == ("random", "none")), math.nan)
    for row in rows:
        low, high = row.quarters
        reached = sum(needed is not None for needed in row.epochs)
        grid_table.add_row(
            row.searcher,
            row.scheduler,
            _epochs(row.middle),
            f"{_epochs(low)} - {_epochs(high)}",
            f"{row.middle / plain:.2f}" if row.middle < math.inf else "",
            f"{reached}/{len(row.epochs)}",
        )
    return grid_table


def _epochs(number: float) -> str:
    return f"{number:.0f}" if number < math.inf else "never"


def epochs_of(record: RecordedCurves) -> list[float]:
    """At which epoch every trial of the record has had its first evaluation, its second ..."""
    curves = [curve.evaluations for curve in record.curves]
    return [max(evaluations[place][0] for evaluations in curves) for place in range(min(map(len, curves)))]


def sweep_of(
    searcher: str,
    scheduler: str,
    seed: int,
    block: int | None,
    trials: int | None,
    changes: dict[str, Any] | None = None,
    epochs: Sequence[float] = (0.5, 1.0),
    grid: str = GRID,
    training: Mapping[str, Any] | None = None,
) -> Sweep:
    """The grid's sweep file with another searcher and scheduler, over one of its blocks or all."""
    file = ROOT / "sweeps" / f"{grid}.yaml"
    search = {"algorithm": searcher} | ({"seed": seed, "configurations": trials} if trials else {})
    judged_from, keys = SCHEDULERS[scheduler]
    stopping = keys | ({"grace": epochs[judged_from - 1]} if judged_from else {})
    settings = {f"training.{name}": value for name, value in (training or {}).items()}
    settings |= {"search": search, "scheduler": stopping} | (changes or {})
    if block is not None:
        settings["space"] = [yaml.safe_load(file.read_text())["space"][block]]
    return load_sweep(file, [f"{name}={json.dumps(value)}" for name, value in settings.items()])


if __name__ == "__main__":
    main()
