"""The process that a running sweep starts to write its record to MLflow: `python -m orchestrator.commands.track FOLDER`.

    driver  -->  log.jsonl (on disk)  -->  this process (`orchestrator.tracking.follower`)  -->  MLflow

It makes the sweep's runs in the store equal to the state of the log (`orchestrator.tracking.mirror`), as long as its input
is open, by which it gets the store's address. While a server is slow, restarts or is gone, the log holds all.
`craft-sweeps replay` does the same once, without a running sweep.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from craft.plugins import load_inherited
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.tools.quiet import LOG_FORMAT, Lossy
from orchestrator.tracking import follower

if __name__ == "__main__":
    sys.stdout = sys.stderr = Lossy(2)
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    load_inherited()
    follower.follow(Path(sys.argv[1]), DesiredRuns)
