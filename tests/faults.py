"""The longer part of the fault suite: `python -m tests.faults [--times 20] [--seed N]`, about ten minutes.

The driver of a 12-trial sweep is killed with -9 at random moments and resumed each time; then what must hold is asserted: no
result is ever lost or changed, no trial finishes twice, scores equal those of a run that nothing happened to, and each trial
has one run in the tracking store.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.orchestrator.stand_in import kill_at_random


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    flags.add_argument("--times", type=int, default=20, help="how often the driver is killed (20)")
    flags.add_argument("--seed", type=int, default=None, help="of the moments; a new one each time if not given")
    flags.add_argument("--folder", type=Path, help="work here, and go on with what a call with --kills-only left")
    flags.add_argument("--kills-only", action="store_true", help="stop after the kills")
    given = flags.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}")
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        folder.mkdir(parents=True, exist_ok=True)
        for line in kill_at_random(folder, given.times, random.Random(seed), not given.kills_only):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
