"""A driver killed at random moments, and a tracking server that is gone for a minute; about fifteen minutes.

python -m tests.faults [--times 20] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.orchestrator.outage import sweep_through_an_outage
from tests.orchestrator.stand_in import kill_at_random


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    flags.add_argument("--times", type=int, default=20, help="how often the driver is killed (20)")
    flags.add_argument("--seed", type=int, default=None, help="of the moments; a new one each time if not given")
    given = flags.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for line in kill_at_random(Path(folder), given.times, random.Random(seed)):
            print(line, flush=True)
        for line in sweep_through_an_outage(Path(folder) / "outage", step_seconds=15.0, over=2, away=60.0):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
