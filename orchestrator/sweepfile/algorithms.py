"""The names `search.algorithm` and `scheduler.name` may take, and what each needs of a sweep file. No Ray, no Optuna.

A sweep file is checked before anything heavy is imported, so what a check must know stands here, one row each;
`orchestrator.tune.schedulers` holds the rows that do the work, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """One row of ALGORITHMS.

    Attributes:
        title: how people write it.
        samples: whether it draws configurations, so that `search.trials` says how many and ranges (`min`, `max`) have a
            meaning; otherwise it runs every combination of the `values`.
        adaptive: whether it chooses while the sweep runs, from an Optuna study, so that the plan lists nothing beforehand.
        learns: whether what has run tells it where to go on, so that it can begin with the results of earlier sweeps.
        one_block: whether it can search a single method block only: it has no way to learn across blocks of other dimensions.
        one_objective: whether it can aim at one objective only.
        numeric: whether every dimension must be a range, or have values with an order.
    """

    title: str
    samples: bool
    adaptive: bool = False
    learns: bool = False
    one_block: bool = False
    one_objective: bool = False
    numeric: bool = False


@dataclass(frozen=True)
class SchedulerFacts:
    """One row of SCHEDULER_SETTINGS.

    Attributes:
        settings: the keys that may stand beside `name` in the file's `scheduler` section.
        serves: the algorithms that it can run beside; all of them if none is named.
        pauses: whether trials wait for their turn and may never get one; nothing that needs all of them to end goes with it.
    """

    title: str
    settings: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    pauses: bool = False


ALGORITHMS: dict[str, Algorithm] = {
    "grid": Algorithm("every combination of the values", samples=False),
    "random": Algorithm("configurations drawn at random, seeded", samples=True),
    "sobol": Algorithm("configurations spread evenly (a scrambled Sobol sequence)", samples=True, adaptive=True),
    "tpe": Algorithm("tree-structured Parzen estimators: learns from what has run", samples=True, adaptive=True, learns=True),
    "nsga2": Algorithm("a genetic algorithm for several objectives", samples=True, adaptive=True, learns=True, one_block=True),
    "nsga3": Algorithm("a genetic algorithm for many objectives", samples=True, adaptive=True, learns=True, one_block=True),
    "gp": Algorithm("Gaussian processes: few, expensive configurations", samples=True, adaptive=True, learns=True),
    "cmaes": Algorithm(
        "covariance matrix adaptation: many trials over numbers, one objective",
        samples=True,
        adaptive=True,
        learns=True,
        one_block=True,
        one_objective=True,
        numeric=True,
    ),
}

SCHEDULER_SETTINGS: dict[str, SchedulerFacts] = {
    "none": SchedulerFacts("every trial runs to its end"),
    "asha": SchedulerFacts("asynchronous successive halving: at each rung the best of every few go on", ("grace", "factor")),
    "hyperband": SchedulerFacts("ASHA in brackets that begin to stop later and later", ("grace", "factor", "brackets")),
    "promotion": SchedulerFacts(
        "ASHA that pauses: at each rung, and between a configuration's trials, the best of every few go on and the others wait",
        ("grace", "factor"),
        serves=("grid", "random", "sobol", "tpe", "gp"),
        pauses=True,
    ),
    "median": SchedulerFacts("stops what is below the median of its rivals", ("grace", "rivals")),
    "pbt": SchedulerFacts(
        "population based training: the worst go on from the best, with other hyper-parameters",
        ("interval", "share"),
        serves=("random", "grid"),
    ),
}
