"""SEARCHERS and SCHEDULERS: the names that `search.algorithm` and `scheduler.name` of a sweep file may take, one row each.

A searcher's row says what a sweep file must fulfil, and where its code is. That place is a text, `module:name`, imported on
use: a sweep file is checked without Ray and Optuna, and a grid needs neither to be planned. `auto` is no row:
`orchestrator.sweepfile.sections` replaces it with one when the file is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from craft.plugins import add_row

AUTO = "auto"


@dataclass(frozen=True)
class SearcherRow:
    """One row of SEARCHERS.

    Attributes:
        make: where its strategy is made, as `module:name`, from a plan; `orchestrator.search.stages.make_strategy` calls it.
        samples: whether it draws configurations, so that `search.configurations` says how many and ranges (`min`, `max`) have a
            meaning; otherwise it runs every combination of the `values`.
        adaptive: whether it chooses while the sweep runs, so that the plan lists nothing beforehand.
    """

    make: str
    samples: bool
    adaptive: bool = False


@dataclass(frozen=True)
class SchedulerRow:
    """One row of SCHEDULERS; `settings` are the keys that its section may have with `name`."""

    settings: tuple[str, ...] = ()


LISTED = "orchestrator.search.strategy:Listed"

SEARCHERS: dict[str, SearcherRow] = {
    "grid": SearcherRow(LISTED, samples=False),
    "random": SearcherRow(LISTED, samples=True),
    "gp": SearcherRow("orchestrator.search.learned:gp", samples=True, adaptive=True),
    "tpe": SearcherRow("orchestrator.search.learned:tpe", samples=True, adaptive=True),
}

SCHEDULERS: dict[str, SchedulerRow] = {"none": SchedulerRow(), "promotion": SchedulerRow(("grace", "factor"))}


def register_searcher(name: str, row: SearcherRow) -> None:
    """Adds a searcher that `search.algorithm` may name. Raises PluginError if there is one of that name."""
    add_row(SEARCHERS, "searcher", name, row)
