"""The command line of the simulator: judge a search strategy on recorded curves before a cluster is spent on it.

python -m orchestrator.simulate record runs/NAME --to curves.csv     a sweep's curves as a file
python -m orchestrator.simulate SWEEP.yaml --recorded curves.csv --workers 8 --seeds 20
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from craft.words import be_printable, format_duration
from orchestrator.results.summary import Summary
from orchestrator.simulator.curves import MissingCurve, RecordedCurves, read_record, record_sweep, write_record
from orchestrator.simulator.nearest import SURROGATES, Nearest
from orchestrator.simulator.simulation import Faults, Outcome, simulate
from orchestrator.simulator.yardstick import Yardstick, everything, whole_record
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep

GOOD, WRONG = 0, 2

EXAMPLES = """\
examples:
  python -m orchestrator.simulate record runs/grid --to curves.csv
      the learning curves of a finished sweep, one evaluation a line
  python -m orchestrator.simulate sweeps/search.yaml --recorded curves.csv --workers 8 --seeds 20
      replay the file's searcher and scheduler 20 times
  python -m orchestrator.simulate sweeps/search.yaml --recorded curves.csv --workers 200 \\
      --set search.algorithm=random --set scheduler='{name: none}' --failures 0.02 --preemptions 0.1
      another strategy, on a cluster where things go wrong
  python -m orchestrator.simulate sweeps/search.yaml --recorded runs/ranks --surrogate nearest
      a space with ranges, on a sweep that never tried their values: curves of the nearest trials stand in, and are counted
"""


def parser() -> argparse.ArgumentParser:
    """The flags of a replay."""
    flags = argparse.ArgumentParser(
        prog="python -m orchestrator.simulate",
        description="Replay recorded learning curves under a sweep file's searcher and scheduler, with simulated time.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("sweep", metavar="SWEEP.yaml", help="the sweep file, whose every point must have been recorded")
    flags.add_argument(
        "--recorded", metavar="RUNS", type=Path, required=True, help="a sweep's folder, or its curves as .jsonl or .csv"
    )
    flags.add_argument("--workers", metavar="N", type=int, default=1, help="trials at once (1)")
    flags.add_argument("--seeds", metavar="N", type=int, default=1, help="replays, each with its own search seed (1)")
    flags.add_argument("--failures", metavar="P", type=float, default=0.0, help="chance that an evaluation's work is lost")
    flags.add_argument("--preemptions", metavar="P", type=float, default=0.0, help="chance to lose the worker after one")
    flags.add_argument("--reach", metavar="SHARE", type=float, default=0.95, help="share of the record's hypervolume (0.95)")
    flags.add_argument(
        "--surrogate", choices=SURROGATES, help="make up curves that were not recorded; without it they are refused"
    )
    flags.add_argument("--set", dest="overrides", metavar="KEY.PATH=VALUE", action="append", default=[], help="as for a run")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, or 2 where something is refused."""
    be_printable()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        if arguments[:1] == ["record"]:
            return _record(arguments[1:], console)
        given = parser().parse_args(arguments)
        if given.workers < 1 or given.seeds < 1:
            raise ValueError("--workers and --seeds are whole numbers from 1")
        if not all(0 <= chance < 1 for chance in (given.failures, given.preemptions)) or not 0 < given.reach <= 1:
            raise ValueError("--failures and --preemptions are chances from 0 to below 1, --reach a share up to 1")
        return _replay(given, console)
    except (ValueError, MissingCurve, OSError) as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(str(error))
        return WRONG


def _record(arguments: Sequence[str], console: Console) -> int:
    flags = argparse.ArgumentParser(prog="python -m orchestrator.simulate record", description="Write a sweep's curves.")
    flags.add_argument("folder", metavar="runs/NAME", type=Path)
    flags.add_argument("--to", metavar="FILE", type=Path, required=True, help=".jsonl (a trial a line) or .csv (an evaluation)")
    given = flags.parse_args(arguments)
    curves, left_out = record_sweep(given.folder)
    if not curves:
        raise ValueError(f"{given.folder} has no finished trial to record")
    write_record(curves, given.to)
    console.print(f"{given.to}: {len(curves)} finished trials" + (f"; {left_out} others left out" if left_out else ""))
    return GOOD


def _replay(given: argparse.Namespace, console: Console) -> int:
    record = _recorded(given.recorded)
    sweep = load_sweep(given.sweep, given.overrides, record.older)
    record, best, grid_epochs = _judged_by(sweep, record, given.surrogate)
    yardstick = Yardstick(best, sweep.objectives)
    faults = Faults(given.failures, given.preemptions)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("seed", "trial-epochs", f"to {given.reach:.0%}", "of the grid", "hypervolume", "time", "trials", "stopped"):
        table.add_column(name, justify="right")
    started, outcomes = time.perf_counter(), []
    for seed in range(given.seeds):
        search = sweep.search.model_copy(update={"seed": sweep.search.seed + seed})
        one = simulate(sweep.model_copy(update={"search": search}), record, given.workers, yardstick, faults, seed)
        outcomes.append(one)
        table.add_row(str(seed), *_row(one, yardstick, given.reach, grid_epochs))
    spent = time.perf_counter() - started
    console.print(table)
    reached = [one.epochs_to(given.reach * yardstick.whole) for one in outcomes]
    # A replay that never came so far counts as endless: leaving it out would flatter the strategy.
    middle = median(math.inf if epochs is None else epochs for epochs in reached)
    trials = sum(one.finished + one.stopped + one.failed for one in outcomes)
    console.print(
        f"{sweep.search.algorithm} + {sweep.scheduler.name}, {given.workers} workers: "
        + (f"median {middle:.1f} trial-epochs to {given.reach:.0%} of the record's hypervolume, " if middle < math.inf else "")
        + f"reached in {len(reached) - reached.count(None)} of {given.seeds} replays; the whole grid takes {grid_epochs:g}"
    )
    if isinstance(record, Nearest):
        console.print(f"made up: the curves of {len(record.made_up)} trials, from their nearest recorded ones")
    console.print(f"{trials} trials replayed, {1000 * spent / max(1, trials):.2f} ms each", style="dim")
    return GOOD


def _recorded(path: Path) -> RecordedCurves:
    if not path.is_dir():
        return read_record(path)
    curves, _ = record_sweep(path)
    if not curves:
        raise ValueError(f"{path} has no finished trial to replay")
    return RecordedCurves(curves)


def _judged_by(sweep: Sweep, record: RecordedCurves, surrogate: str | None) -> tuple[RecordedCurves, list[Summary], float]:
    """What is replayed, the configurations that give the hypervolume to reach, and the trial-epochs that those took."""
    if surrogate is None:
        return record, *whole_record(sweep, record)
    from craft.trainer.counting import planned_counts

    dimensions = {name for block in sweep.blocks for name in block.dimensions}
    return Nearest(record, dimensions, planned_counts), *everything(record)


def _row(one: Outcome, yardstick: Yardstick, reach: float, grid_epochs: float) -> list[str]:
    to = one.epochs_to(reach * yardstick.whole)
    last = one.progress[-1][2] if one.progress else 0.0
    return [
        f"{one.epochs:.1f}",
        "never" if to is None else f"{to:.1f}",
        "" if to is None else f"{to / grid_epochs:.0%}",
        f"{last / yardstick.whole:.1%}",
        format_duration(one.seconds),
        str(one.finished + one.stopped + one.failed),
        str(one.stopped),
    ]


if __name__ == "__main__":
    sys.exit(main())
