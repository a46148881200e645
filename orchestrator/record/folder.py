"""`SweepFolder`: the folder `runs/NAME` of a sweep, and the name of every file in it."""

from __future__ import annotations

JOURNAL = "journal.jsonl"

EFFECTIVE_FILE = "sweep.yaml"
