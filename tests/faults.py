"""The longer part of the fault suite: `python -m tests.faults [--times 20] [--seed N]`.

The driver of a 12-trial sweep is killed with -9 at random moments and resumed each time; then what must hold is asserted: no
result is ever lost or changed, no trial finishes twice, scores equal those of a run that nothing happened to.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.orchestrator.stand_in import kill_at_random


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    flags.add_argument("--times", type=int, default=20, help="how often the driver is killed (20)")
    flags.add_argument("--seed", type=int, default=None, help="of the moments; a new one each time if not given")
    given = flags.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for line in kill_at_random(Path(folder), given.times, random.Random(seed)):
            print(line)
    print(f"{given.times} kills: 12 of 12 trials done, each once, scores as undisturbed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
