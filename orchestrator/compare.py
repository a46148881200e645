"""`python -m orchestrator.compare SWEEP_A SWEEP_B` says in a plain sentence whether one sweep is better than the other.

Exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from orchestrator.command import answer, flags_for
from orchestrator.review.comparing import compare_sweeps, show_comparison
from orchestrator.review.past_sweep import find_sweep

EXAMPLES = """\
The difference is that of the reported scores, first minus second, over what both configurations finished, with a 95 % t
interval over the seeds: a seed's tasks share its luck, so each seed counts once, with its mean over the tasks. If the interval
holds zero, no difference is shown. That does not mean that there is none: more seeds narrow the interval
(--set 'seeds=[0,1,2,3,4]' --resume). Where credits of the examples are on record, the luck that a configuration has with them
for all its seeds is in the interval, which then is about new examples. The interval of one seed is over the examples alone.

examples:
  python -m orchestrator.compare longer ranks
      the best configuration of each, best by the search score
  python -m orchestrator.compare ranks ranks --configuration-a 'CRAFT 64, q k v o' --configuration-b 'LoRA r8, q v'
      two that you name, by label or id, or by a rule: knee, enough, under:70000
  python -m orchestrator.compare longer runs/ranks --metric accuracy --tracking-uri http://tracker:5000
      `longer` from a shared store, `ranks` from a folder, by a metric's name

exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare
"""


def parser() -> argparse.ArgumentParser:
    """Returns the command line's flags."""
    about = "Compare two sweeps seed by seed: is one better, by how much, and how sure is that?"
    flags = flags_for("compare", about, EXAMPLES)
    flags.add_argument("first", metavar="SWEEP_A", help="a sweep's name, or its folder runs/NAME")
    flags.add_argument(
        "second", metavar="SWEEP_B", help="the one it is compared with; may be the same, with other configurations"
    )
    flags.add_argument("--configuration-a", metavar="WHICH", default="best", help="of SWEEP_A: an id, a label or a rule (best)")
    flags.add_argument("--configuration-b", metavar="WHICH", default="best", help="of SWEEP_B: the same (best)")
    flags.add_argument("--metric", default="score", help="what is compared: score, or a metric such as f1 (score)")
    flags.add_argument("--rows", metavar="FILE.csv", type=Path, help="also write the rows that are answered differently")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main)


def _main(flags: argparse.Namespace, console: Console) -> None:
    first, second = (find_sweep(name, flags.tracking_uri, flags.storage) for name in (flags.first, flags.second))
    compared = compare_sweeps(first, second, flags.configuration_a, flags.configuration_b, flags.metric)
    show_comparison(compared, console, flags.rows)


if __name__ == "__main__":
    sys.exit(main())
