"""SEARCHERS and SCHEDULERS: the names that `search.algorithm` and `scheduler.name` of a sweep file may take, one row each.

A row holds everything that differs from one searcher or scheduler to the next: what a sweep file must fulfil, and where its
code is. That place is a text, `module:name`, imported on use: a sweep file is checked without Ray and Optuna, and a grid needs
neither to be planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class SearcherRow:
    """One row of SEARCHERS.

    Attributes:
        title: how people write it.
        make: where its proposer is made, as `module:name`, from a plan and the sweep's folder (None keeps nothing on disk);
            `orchestrator.search.proposers.propose` calls it.
        samples: whether it draws configurations, so that `search.trials` says how many and ranges (`min`, `max`) have a
            meaning; otherwise it runs every combination of the `values`.
        adaptive: whether it chooses while the sweep runs, from an Optuna study, so that the plan lists nothing beforehand.
        learns: whether results tell it where to go on, so that it can begin with those of earlier sweeps.
        one_block: whether it can search a single method block only: it cannot learn across blocks of different dimensions.
        one_objective: whether it can aim at one objective only.
        numeric: whether every dimension must be a range, or have values with an order.
    """

    title: str
    make: str
    samples: bool
    adaptive: bool = False
    learns: bool = False
    one_block: bool = False
    one_objective: bool = False
    numeric: bool = False


@dataclass(frozen=True)
class SchedulerRow:
    """One row of SCHEDULERS.

    Attributes:
        title: how people write it.
        rule: where the rule that judges trials is made, as `module:name`, from the file's `scheduler` section;
            `orchestrator.search.judge.rule_of` calls it. Empty if it judges none.
        settings: the keys that may stand beside `name` in the file's `scheduler` section.
        serves: the searchers that it can run beside; all of them if none is named.
        pauses: whether its rule is a `orchestrator.search.judge.PausingRule`: trials wait for their turn and may never get
            one, so nothing that needs all of them to end goes with it.
        population: where the proposer is made, as `module:name`, that takes over from the searcher after the first
            generation; `settings` then has `interval`, the epochs of a generation. Empty if the searcher keeps the lead.
    """

    title: str
    rule: str = ""
    settings: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    pauses: bool = False
    population: str = ""

    @property
    def steers(self) -> bool:
        """Whether it does anything at all to a trial."""
        return bool(self.rule or self.population)


def imported(place: str) -> Callable[..., Any]:
    """What stands at `module:name`, a place that a row names."""
    module, _, name = place.partition(":")
    made: Callable[..., Any] = getattr(import_module(module), name)
    return made


LISTED = "orchestrator.search.proposers:listed"
SAMPLERS = "orchestrator.search.samplers"
STOPPING = "orchestrator.search.stopping"

SEARCHERS: dict[str, SearcherRow] = {
    "grid": SearcherRow("every combination of the values", LISTED, samples=False),
    "random": SearcherRow("configurations drawn at random, seeded", LISTED, samples=True),
    "sobol": SearcherRow(
        "configurations spread evenly (a scrambled Sobol sequence)", f"{SAMPLERS}:sobol", samples=True, adaptive=True
    ),
    "tpe": SearcherRow(
        "tree-structured Parzen estimators: learns from what has run",
        f"{SAMPLERS}:tpe",
        samples=True,
        adaptive=True,
        learns=True,
    ),
    "nsga2": SearcherRow(
        "a genetic algorithm for several objectives",
        f"{SAMPLERS}:nsga2",
        samples=True,
        adaptive=True,
        learns=True,
        one_block=True,
    ),
    "nsga3": SearcherRow(
        "a genetic algorithm for many objectives", f"{SAMPLERS}:nsga3", samples=True, adaptive=True, learns=True, one_block=True
    ),
    "gp": SearcherRow(
        "Gaussian processes: few, expensive configurations", f"{SAMPLERS}:gp", samples=True, adaptive=True, learns=True
    ),
    "cmaes": SearcherRow(
        "covariance matrix adaptation: many trials over numbers, one objective",
        f"{SAMPLERS}:cmaes",
        samples=True,
        adaptive=True,
        learns=True,
        one_block=True,
        one_objective=True,
        numeric=True,
    ),
}

SCHEDULERS: dict[str, SchedulerRow] = {
    "none": SchedulerRow("every trial runs to its end"),
    "asha": SchedulerRow(
        "asynchronous successive halving: at each rung the best of every few go on", f"{STOPPING}:halving", ("grace", "factor")
    ),
    "hyperband": SchedulerRow(
        "ASHA in brackets that begin to stop later and later", f"{STOPPING}:hyperband", ("grace", "factor", "brackets")
    ),
    "promotion": SchedulerRow(
        "ASHA that pauses: at each rung, and between a configuration's trials, the best of every few go on and the others wait",
        "orchestrator.search.promotion:promotion",
        ("grace", "factor"),
        serves=("grid", "random", "sobol", "tpe", "gp"),
        pauses=True,
    ),
    "median": SchedulerRow("stops what is below the median of its rivals", f"{STOPPING}:median", ("grace", "rivals")),
    "pbt": SchedulerRow(
        "population based training: the worst go on from the best, with other hyper-parameters",
        settings=("interval", "share"),
        serves=("random", "grid"),
        population="orchestrator.search.population:Population",
    ),
}
