"""`python -m orchestrator`: the same as `craft-sweeps`, where that is not on the path."""

from __future__ import annotations

import sys

from orchestrator.commands.app import main

if __name__ == "__main__":
    sys.exit(main(start=("python", "-m", "orchestrator", *sys.argv[1:2])))
