"""Tuners that PEFT lacks, in PEFT's layout: CRAFT (`craft.tuners.craft`), and baselines written from their papers.

PEFT is imported before any module of this folder, so that the hook in `craft` registers all before one is half imported.
"""

import peft  # noqa: F401
