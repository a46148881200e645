"""A driver killed at random moments, and a tracking server that is gone for a minute; about fifteen minutes.

python -m tests.faults [--times 20] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.orchestrator.outage import sweep_through_an_outage
from tests.orchestrator.stand_in import kill_at_random


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    flags.add_argument("--times", type=int, default=20, help="how often the driver is killed (20)")
    flags.add_argument("--seed", type=int, default=None, help="of the moments; a new one each time if not given")
    flags.add_argument("--folder", type=Path, help="work here, and go on with what a call with --kills-only left")
    flags.add_argument("--part", type=int, nargs=2, metavar=("FIRST", "LAST"), help="these of the kills only, from 1")
    flags.add_argument("--kills-only", action="store_true", help="stop after the kills")
    flags.add_argument("--outage-only", action="store_true", help="the tracking server's part alone")
    given = flags.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        folder.mkdir(parents=True, exist_ok=True)
        if not given.outage_only:
            print(f"seed {seed}", flush=True)
            part = range(given.part[0] - 1, given.part[1]) if given.part else None
            for line in kill_at_random(folder, given.times, random.Random(seed), not given.kills_only, part):
                print(line, flush=True)
        if not given.kills_only and not given.part:
            for line in sweep_through_an_outage(folder / "outage", step_seconds=15.0, over=2, away=60.0):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
