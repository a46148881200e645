"""Tuners that PEFT lacks, in PEFT's layout: CRAFT (`craft.tuners.craft`), and baselines written from their papers.

`joint` holds what the tuners share, and `registration` makes them known to PEFT. `optimizers` has GaLore and AdaLoRA.

PEFT is imported here, before any module of this folder, so that the hook in `craft` registers every tuner before one of them is
half imported.
"""

import peft  # noqa: F401
