"""Tuners that PEFT lacks, as PEFT lays a tuner out: CRAFT, and baselines written from their papers.

PEFT is imported here, before any module of this folder: the hook in `craft` then registers every tuner while none of them is
half imported.
"""

import peft  # noqa: F401
