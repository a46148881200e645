"""One function for each searcher over an Optuna study: its proposer, with the sampler that makes a suggestion.

SEARCHERS (`orchestrator.sweepfile.algorithms`) names them; a new searcher over a study is one function here and one row there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optuna.samplers import NSGAIIISampler, NSGAIISampler

from orchestrator.search.cma import CmaSampler
from orchestrator.search.dimensions import Encoding
from orchestrator.search.gp import BlockGp
from orchestrator.search.study import StudyProposer
from orchestrator.search.tpe import BlockTpe, Memory
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


def sobol(plan: Plan, folder: Path | None) -> StudyProposer:
    return StudyProposer(plan, folder, None)


def tpe(plan: Plan, folder: Path | None) -> StudyProposer:
    encoding, memory = Encoding(plan.sweep.blocks), Memory()
    return StudyProposer(plan, folder, lambda seed: BlockTpe(encoding, memory, seed))


def nsga2(plan: Plan, folder: Path | None) -> StudyProposer:
    return StudyProposer(plan, folder, lambda seed: NSGAIISampler(seed=seed, population_size=_population(plan)))


def nsga3(plan: Plan, folder: Path | None) -> StudyProposer:
    return StudyProposer(plan, folder, lambda seed: NSGAIIISampler(seed=seed, population_size=_population(plan)))


def gp(plan: Plan, folder: Path | None) -> StudyProposer:
    memory = Memory()

    def known(point: Point) -> dict[str, float] | None:
        try:
            return plan.planner.configuration(point).known
        except SweepError:
            return None

    sweep = plan.sweep
    return StudyProposer(plan, folder, lambda seed: BlockGp(sweep.blocks, memory, seed, sweep.search.seed, known))


def cmaes(plan: Plan, folder: Path | None) -> StudyProposer:
    return StudyProposer(plan, folder, CmaSampler)


def _population(plan: Plan) -> int:
    # At least five generations: a population as large as the sweep would be nothing but its random first generation.
    return min(50, max(4, (plan.sweep.search.trials or 0) // 5))
