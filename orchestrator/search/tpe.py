"""TPE over method blocks: Optuna's sampler, told what the blocks are, and with a bound on what a suggestion costs.

    results --a tenth are good--> which block? --the results of that block--> its dimensions, together

Optuna finds out by itself which parameters occur together, going through all results at every suggestion; it then samples the
dimensions of every block, and takes what it does not use for what a running trial is about to try. Here the block is chosen
first and only its dimensions are sampled. And where Optuna goes through all results, ordering them and setting the good ones
against all the others, here it gets the latest ones and the best of those before them, so that a suggestion of a long study
costs what one of a short study does. Up to two hundred results nothing is left out.

Source: Watanabe 2023, Tree-Structured Parzen Estimator (arXiv 2304.11127).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Mapping
from typing import Any, cast

from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.samplers._tpe.sampler import _RELATIVE_PARAMS_KEY, _split_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from orchestrator.search.dimensions import BLOCK, Encoding

LATEST = 200
"""So many of the latest suggestions are looked at whatever came of them."""
BEST = 50
"""And so many of the best results before those."""


SO_FAR = "so far"
"""The attribute of a trial that waits: its values as far as they are known. To a searcher they are its values."""


class Memory:
    """What of a study's results is looked at. One goes with a study from suggestion to suggestion."""

    def __init__(self) -> None:
        self._best: list[FrozenTrial] = []
        self._open: list[int] = []
        self._seen = 0

    def of(self, study: Study) -> list[FrozenTrial]:
        """The latest trials, those before them that still run, and the best of the rest, in the study's order."""
        trials = study.get_trials(deepcopy=False)
        before = max(0, len(trials) - LATEST)
        older = [trials[number] for number in (*self._open, *range(self._seen, before))]
        self._open = [trial.number for trial in older if not trial.state.is_finished()]
        self._seen = max(self._seen, before)
        for trial in older:
            if trial.state == TrialState.COMPLETE:
                # One at a time, so that a resumed study comes to the same ones as one that was never stopped.
                known = sorted([*self._best, trial], key=lambda one: one.number)
                self._best = known if len(known) <= BEST else _split_trials(study, known, BEST)[0]
        return [*self._best, *(_as_known(trials[number]) for number in self._open), *map(_as_known, trials[before:])]


def _as_known(trial: FrozenTrial) -> FrozenTrial:
    """The trial; one that waits as if what is known of it were its result."""
    if trial.state != TrialState.RUNNING or SO_FAR not in trial.user_attrs:
        return trial
    known = copy.copy(trial)
    known.state, known.values = TrialState.COMPLETE, trial.user_attrs[SO_FAR]
    return known


class BlockTpe(TPESampler):
    """Suggests a block of `encoding` and then that block's dimensions, all of them together."""

    def __init__(self, encoding: Encoding, memory: Memory, seed: int) -> None:
        super().__init__(seed=seed, multivariate=True, constant_liar=True)
        self._choice, self._dimensions = encoding.distributions
        self._memory = memory

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._choice | {name: one for dimensions in self._dimensions.values() for name, one in dimensions.items()}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
        view = cast(Study, _View(study, self._memory.of(study)))
        chosen = self._sample_relative(view, trial, self._choice)
        title = chosen.get(BLOCK) if self._choice else next(iter(self._dimensions))
        if title is None:
            return {}  # too few results: Optuna then draws each parameter at random
        chosen |= self._sample_relative(view, trial, self._dimensions[title])
        if chosen:
            # Where Optuna looks for what a running trial is about to try.
            study._storage.set_trial_system_attr(trial._trial_id, f"{_RELATIVE_PARAMS_KEY}:0", json.dumps(chosen))
        return chosen


class _View:
    """A study of some of its trials, as far as TPE asks."""

    def __init__(self, study: Study, trials: list[FrozenTrial]) -> None:
        self._study, self._trials = study, trials

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        return [trial for trial in self._trials if states is None or trial.state in states]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)
