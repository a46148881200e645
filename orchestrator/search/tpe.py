"""TPE over method blocks: Optuna's sampler, which is told the blocks and looks at a bounded number of results.

    results --a tenth are good--> which block? --the results of that block--> its dimensions, together

At every suggestion Optuna goes through all results to find out which parameters occur together. It then samples the dimensions
of every block, and believes that a running trial is about to try those it does not use. Here the block is chosen first, and
only its dimensions are sampled. Optuna also sorts all results and compares the good ones with all others; here it gets the
latest results and the best of the earlier ones, so that a suggestion of a long study costs no more than one of a short study.
Up to two hundred results nothing is left out.

The sampler is steered by names that Optuna keeps private, so pyproject.toml has an upper bound on its version.

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
"""This many of the latest suggestions are used, whatever their state."""
BEST = 50
"""This many of the best results before those are used too."""


SO_FAR = "so far"
"""The attribute of a waiting trial that holds its values as far as they are known; a searcher takes them for its result."""


class Memory:
    """Selects the results of a study that a suggestion uses. One object serves all suggestions of a study."""

    def __init__(self) -> None:
        self._best: list[FrozenTrial] = []
        self._open: list[int] = []
        self._seen = 0

    def of(self, study: Study) -> list[FrozenTrial]:
        """The latest trials, earlier trials that still run, and the best of the other earlier ones, in the study's order."""
        trials = study.get_trials(deepcopy=False)
        before = max(0, len(trials) - LATEST)
        older = [trials[number] for number in (*self._open, *range(self._seen, before))]
        self._open = [trial.number for trial in older if not trial.state.is_finished()]
        self._seen = max(self._seen, before)
        for trial in older:
            if trial.state == TrialState.COMPLETE:
                # Taken in one at a time, so that a resumed study keeps the same trials as one that was never stopped.
                known = sorted([*self._best, trial], key=lambda one: one.number)
                self._best = known if len(known) <= BEST else _split_trials(study, known, BEST)[0]
        return [*self._best, *(_as_known(trials[number]) for number in self._open), *map(_as_known, trials[before:])]


def _as_known(trial: FrozenTrial) -> FrozenTrial:
    """The trial; if it waits, a copy whose result is what is known of it so far."""
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
            # Optuna looks here for the parameters that a running trial is about to try.
            study._storage.set_trial_system_attr(trial._trial_id, f"{_RELATIVE_PARAMS_KEY}:0", json.dumps(chosen))
        return chosen


class _View:
    """A study that shows TPE only some of its trials."""

    def __init__(self, study: Study, trials: list[FrozenTrial]) -> None:
        self._study, self._trials = study, trials

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        return [trial for trial in self._trials if states is None or trial.state in states]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)
