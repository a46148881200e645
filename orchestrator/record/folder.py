"""`SweepFolder`: the folder `runs/NAME` of a sweep, and the name of every file and folder in it.

These names are a format. No other module spells them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EFFECTIVE_FILE = "sweep.yaml"
"""Also the name of that file as an artifact in the tracking store."""
LOG_FILE = "log.jsonl"
FRONT_CSV, FRONT_TEX, FRONT_PNG, FRONT_HTML = "front.csv", "front.tex", "front.png", "front.html"


def sweeps_in(storage: Path) -> list[str]:
    """Returns the names of the sweeps in a folder such as `runs`."""
    return sorted(path.parent.name for path in storage.glob(f"*/{EFFECTIVE_FILE}")) if storage.is_dir() else []


@dataclass(frozen=True)
class SweepFolder:
    """The paths inside a sweep's folder. It makes nothing and asks nothing of the disk."""

    path: Path

    @property
    def effective(self) -> Path:
        """The effective sweep file: the sweep with every default written out."""
        return self.path / EFFECTIVE_FILE

    @property
    def overrides(self) -> Path:
        """What earlier sessions changed by flags (`orchestrator.record.overrides`)."""
        return self.path / "overrides.json"

    @property
    def record(self) -> Path:
        """The events of the sweep, in order (`orchestrator.state.log`)."""
        return self.path / LOG_FILE

    @property
    def judged(self) -> Path:
        """The answer as `status` last computed it (`orchestrator.reports.status`)."""
        return self.path / ".answer.json"

    @property
    def tracking(self) -> Path:
        """How far the tracking store is, for people and the driver; nothing is resumed from it."""
        return self.path / "tracking.json"

    @property
    def log(self) -> Path:
        """Messages of libraries, and everything that is printed outside the display."""
        return self.path / "sweep.log"

    @property
    def lock(self) -> Path:
        """The lock that the driver holds (`orchestrator.record.lock`)."""
        return self.path / ".lock"

    @property
    def driver(self) -> Path:
        """The process and the machine of the driver that holds the lock."""
        return self.path / ".driver.json"

    @property
    def requests(self) -> Path:
        """What people ask of the driver (`orchestrator.control.request`)."""
        return self.path / "requests"

    @property
    def ray(self) -> Path:
        """Checkpoints of the trials, unless the sweep's `storage` names another place for them."""
        return self.path / "ray"

    @property
    def adapters(self) -> Path:
        """Copies of adapters, by trial key, that the driver cannot read where they are stored."""
        return self.path / "adapters"

    @property
    def scratch(self) -> Path:
        """Working files of the trials that run at the moment, a folder for each attempt."""
        return self.path / "scratch"

    @property
    def page(self) -> Path:
        """The sweep's page, as one file."""
        return self.path / FRONT_HTML
