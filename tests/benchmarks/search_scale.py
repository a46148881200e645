"""What choosing and judging cost in a large sweep: 2,000 simulated trials on 200 workers, on curves that a formula makes.

    python -m tests.benchmarks.search_scale

Everything that a trial costs the driver beside Ray and the record is in it: a suggestion, the study's file, the scheduler's
judgement of six evaluations, the answer to the searcher. Processor time over the first 500 trials and the last, so that what
else the machine does is not counted; wall time of all, with the waits for the disk; the memory that the process had by then.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.results.summary import Summary
from tests.benchmarks.replay.curves import Curve, RecordedCurves
from tests.benchmarks.replay.simulation import simulate
from tests.benchmarks.replay.yardstick import Yardstick
from tests.benchmarks.search import sweep_of

PAIRS = (
    ("random", "none"),
    ("random", "promotion"),
    ("tpe", "promotion"),
)
LARGE = {
    "name": "scale",
    "tasks": ["toy/sentiment"],
    "seeds": [0],
    "space": [
        {
            "method": "lora",
            "rank": {"min": 1, "max": 256, "distribution": "int_log_uniform"},
            "learning_rate": {"min": 1e-5, "max": 1e-1, "distribution": "log_uniform"},
            "dropout": {"min": 0.0, "max": 0.2},
        }
    ],
}


class MadeUp(RecordedCurves):
    """Curves by a formula: best near a learning rate of 1e-3, better with rank, with noise of the trial's own."""

    def __init__(self) -> None:
        super().__init__(())
        self.stamps: list[tuple[float, float]] = []

    def curve(self, run: RunSpec) -> Curve:
        self.stamps.append((time.process_time(), resident()))
        final = 80 - 8 * abs(math.log10(run.training.learning_rate) + 3) + math.log2(run.parameters["rank"])
        final += random.Random(run.key).gauss(0, 1)
        points = [(epoch / 2, final - 3 * (6 - epoch)) for epoch in range(1, 7)]
        return Curve("", flat_parameters(run), run.task, run.seed, points, final, final - 1, 60.0, self.counts(run).known())

    def counts(self, run: RunSpec) -> Counts:
        rank = run.parameters["rank"]
        return Counts(9216 * rank, 770, 22_000_000, 4 * 9216 * rank)


class NoYardstick(Yardstick):
    """Measures nothing: the front's volume is no part of what a sweep does while it runs."""

    def __init__(self) -> None:
        self.whole = 1.0

    def point(self, summary: Summary) -> list[float]:
        return []

    def measure(self, points: list[list[float]]) -> float:
        return 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--trials", type=int, default=2000)
    flags.add_argument("--workers", type=int, default=200)
    flags.add_argument("--pairs", nargs="+", metavar="SEARCHER+SCHEDULER", default=["+".join(pair) for pair in PAIRS])
    given = flags.parse_args(arguments)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.title = f"{given.trials:,} trials on {given.workers} workers"
    table.add_column("searcher + scheduler")
    for name in ("stopped", "CPU ms a trial: first quarter", "last quarter", "wall ms", "MB at a quarter", "at the end"):
        table.add_column(name, justify="right")
    for pair in given.pairs:
        searcher, scheduler = pair.split("+")
        table.add_row(f"{searcher} + {scheduler}", *cost(searcher, scheduler, given.trials, given.workers))
    Console(highlight=False, width=120).print(table)


def cost(searcher: str, scheduler: str, trials: int, workers: int) -> list[str]:
    """One line of the table."""
    search = {"algorithm": searcher, "configurations": trials}
    record, started = MadeUp(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sweep = sweep_of(searcher, scheduler, 0, None, None, LARGE | {"search": search})
        outcome = simulate(sweep, record, workers, NoYardstick(), folder=Path(folder))
        wall = 1000 * (time.perf_counter() - started) / trials
    stamps, quarter = record.stamps, len(record.stamps) // 4
    first, last = (
        1000 * (stamps[start + quarter - 1][0] - stamps[start][0]) / (quarter - 1) for start in (0, len(stamps) - quarter)
    )
    return [
        f"{outcome.stopped:,}",
        f"{first:.1f}",
        f"{last:.1f}",
        f"{wall:.1f}",
        f"{stamps[quarter][1]:.0f}",
        f"{stamps[-1][1]:.0f}",
    ]


def resident() -> float:
    """Megabytes of memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    main()
