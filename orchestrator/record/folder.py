"""`SweepFolder`: the folder `runs/NAME` of a sweep, and the name of every file and folder in it.

These names are a format. No other module spells them.
"""

from __future__ import annotations

from pathlib import Path

EFFECTIVE_FILE = "sweep.yaml"
"""Also the name of that file as an artifact in the tracking store."""
LOG_FILE = "log.jsonl"
FRONT_CSV, FRONT_TEX, FRONT_PNG, FRONT_HTML = "front.csv", "front.tex", "front.png", "front.html"


def sweeps_in(storage: Path) -> list[str]:
    """Returns the names of the sweeps in a folder such as `runs`."""
    return sorted(path.parent.name for path in storage.glob(f"*/{EFFECTIVE_FILE}")) if storage.is_dir() else []


class SweepFolder:
    """The paths inside a sweep's folder. It makes nothing and asks nothing of the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.effective = path / EFFECTIVE_FILE
        """The effective sweep file: the sweep with every default written out."""
        self.written = path / "written.json"
        """The sweep file as it is written, and the changes of it, by which the sweep runs (`orchestrator.record.options`)."""
        self.record = path / LOG_FILE
        """The events of the sweep, in order (`orchestrator.record.log`)."""
        self.tracking = path / "tracking.json"
        """How far the tracking store is, for people and the driver; nothing is resumed from it."""
        self.log = path / "sweep.log"
        """Messages of libraries, and everything that is printed outside the display."""
        self.lock = path / ".lock"
        """The lock that the driver holds (`orchestrator.record.lock`)."""
        self.driver = path / ".driver.json"
        """The process and the machine of the driver that holds the lock."""
        self.requests = path / "requests"
        """What people ask of the driver (`orchestrator.driver.request`)."""
        self.ray = path / "ray"
        """Checkpoints of the trials, unless the sweep's `storage` names another place for them."""
        self.adapters = path / "adapters"
        """Copies of adapters, by trial key, that the driver cannot read where they are stored."""
        self.scratch = path / "scratch"
        """Working files of the trials that run at the moment, a folder for each attempt."""
        self.page = path / FRONT_HTML
        """The sweep's page, as one file."""
