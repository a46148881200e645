"""Searchers that learn, on objective functions that cost nothing, and the space without conditions in which they draw."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pymoo.indicators.hv import HV

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended, Event, Paused, Reported, Started, Wanted
from orchestrator.record.state import State, fold
from orchestrator.search.flat import FlatSpace
from orchestrator.search.learned import Learned, gp, tpe
from orchestrator.sweepfile.settings import SEARCHERS
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Point, Range, sample
from tests.orchestrator.plans import rank, toy_plan

ADAPTIVE = [
    pytest.param(name, marks=() if name == "tpe" else pytest.mark.slow) for name, row in SEARCHERS.items() if row.adaptive
]
RATES = "{min: 1e-5, max: 1e-1, distribution: log_uniform}"
LORA = f"{{method: lora, rank: {{values: [1, 2, 4, 8, 16, 32]}}, learning_rate: {RATES}}}"
CRAFT = "{method: craft, ranks: {values: [[all, 4, 4], [all, 16, 16], [all, 64, 64]]}, dropout: {values: [0.0, 0.1]}}"
BOUND = "constraints: {trainable_parameters: {max: 900}}\n"
PROMOTION = "seeds: [0, 1]\nscheduler: {name: promotion, grace: 1}\ntraining: {epochs: 3}\n"


def size(run: RunSpec) -> int:
    return rank(run) if run.method == "lora" else sum(int(r) ** 2 for r in run.parameters["ranks"][1:])


def plan_of(
    folder: Path, algorithm: str = "tpe", configurations: int = 20, space: str = LORA, more: str = "", seed: int = 3
) -> Plan:
    search = f"{{algorithm: {algorithm}, configurations: {configurations}, seed: {seed}}}"
    return toy_plan(folder, f"space: [{space}]\nsearch: {search}\n{more}", size)


def learned(folder: Path, *settings: Any, **further: Any) -> Learned:
    plan = plan_of(folder, *settings, **further)
    return {"tpe": tpe, "gp": gp}[plan.sweep.search.algorithm](plan)


def score_of(configuration: Configuration) -> float:
    """Best near a learning rate of 1e-3, and better with more parameters."""
    rate = configuration.training.get("learning_rate", 1e-3)
    size = configuration.counts.trainable_parameters
    return 90 - 8 * abs(math.log10(rate) + 3) + 2 * math.log2(size) - 20 * configuration.parameters.get("dropout", 0)


def ask(strategy: Learned, state: State) -> State:
    """The state after a draw whose trials are asked for."""
    state = fold(strategy.draw(state), state)
    new = [trial.trial for trial in strategy.wanted(state) if trial.key not in state.entries]
    return state.after(Wanted(keys=[trial.key for trial in new], trials=new))


def end(state: State, configuration: Configuration, score: float | None) -> State:
    """The state after all trials of a configuration finished with a score, or failed for want of one."""
    for entry in [entry for entry in state.entries.values() if entry.trial.configuration == configuration.id]:
        metrics = {} if score is None else {"search_score": score, "score": -1.0}
        state = state.after(Ended(result=TrialResult(entry.key, "failed" if score is None else "finished", metrics)))
    return state


def run(strategy: Learned, state: State | None = None, at_most: int = 1000) -> State:
    """One worker: each configuration ends before the next draw."""
    state = state or State()
    while at_most and strategy.is_open(state):
        at_most -= 1
        state = ask(strategy, state)
        for configuration in strategy.configurations(state)[-1:]:
            state = end(state, configuration, score_of(configuration))
    return state


def points(state: State) -> list[dict[str, Any]]:
    return [proposal.point for proposal in state.proposals]


@pytest.mark.parametrize("algorithm", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_equal_states_lead_to_equal_draws_and_nothing_runs_twice(tmp_path: Path, algorithm: str) -> None:
    strategy = learned(tmp_path, algorithm, 14)
    uncut = run(strategy)
    drawn = [configuration.id for configuration in strategy.configurations(uncut)]
    assert len(set(drawn)) == len(drawn) == 14
    assert [trial.configuration for trial in strategy.wanted(uncut)] == drawn
    for cut in (1, 11, 12):  # the driver dies after a draw, and the next session continues from the log
        state = ask(learned(tmp_path, algorithm, 14), run(learned(tmp_path, algorithm, 14), at_most=cut))
        # As a later session reads it: the proposals are JSON in between.
        stored = tuple(Event.from_json(json.dumps(proposal.to_json())) for proposal in state.proposals)
        strategy, state = learned(tmp_path, algorithm, 14), replace(state, proposals=stored)
        last = strategy.configurations(state)[-1]
        assert points(run(strategy, end(state, last, score_of(last)))) == points(uncut)


def test_a_crash_between_two_draws_changes_nothing(tmp_path: Path) -> None:
    uncut = run(learned(tmp_path, "tpe", 6, CRAFT))
    cuts = [place for place, proposal in enumerate(uncut.proposals[:-1], 1) if proposal.verdict is not None]
    assert cuts
    for cut in cuts:
        state = replace(uncut, proposals=uncut.proposals[:cut])
        assert points(fold(learned(tmp_path, "tpe", 6, CRAFT).draw(state), state)) == points(uncut)[: cut + 1]


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_what_breaks_a_constraint_is_shown_to_the_sampler_and_never_wanted(tmp_path: Path, algorithm: str) -> None:
    strategy = learned(tmp_path, algorithm, 15, more=BOUND)
    state = run(strategy)
    assert max(configuration.counts.trainable_parameters for configuration in strategy.configurations(state)) <= 900
    refused = [proposal.verdict is not None for proposal in state.proposals]
    broken = [draw for draw, is_refused in zip(strategy.draws(state), refused, strict=True) if is_refused]
    assert broken
    assert state.refused.keys() == {row.configuration for row in state.proposals if row.verdict is not None}
    for draw in broken:
        assert draw.excess == {"trainable_parameters max": pytest.approx((draw.values[1] - 900) / 900)}
        assert draw.values[1] > 900
    assert all(draw.excess["trainable_parameters max"] <= 0 for draw in strategy.draws(state) if draw not in broken)


def test_a_looser_constraint_opens_a_space_that_was_used_up(tmp_path: Path) -> None:
    tight = learned(tmp_path, "tpe", 50, CRAFT, BOUND)
    state = run(tight)
    assert len(tight.configurations(state)) == 4
    assert tight.notes(state) == ["Every point of the space is known: 4 configurations"]
    loose = learned(tmp_path, "tpe", 50, CRAFT)
    assert len(loose.configurations(run(loose, state))) == 6
    again = learned(tmp_path, "tpe", 50, CRAFT, BOUND)
    assert len(again.configurations(run(loose, state))) == 4, "what breaks a constraint now is not wanted any more"


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_a_small_space_is_run_to_its_end_and_an_equal_point_has_the_values_of_the_first(tmp_path: Path, algorithm: str) -> None:
    strategy = learned(tmp_path, algorithm, 50, CRAFT)
    state = run(strategy)
    assert len(strategy.configurations(state)) == 6 < len(state.proposals)
    values: dict[str | None, set[Any]] = {}
    for draw, proposal in zip(strategy.draws(state), state.proposals, strict=True):
        values.setdefault(proposal.configuration, set()).add(draw.values)
    assert len(values) == 6
    assert all(len(distinct) == 1 for distinct in values.values())
    state = State()
    while strategy.is_open(state):
        state = ask(strategy, state)
    assert len(strategy.configurations(state)) == 6, "six at once"
    assert {(draw.values, draw.ended) for draw in strategy.draws(state)} == {(None, False)}, "what runs has no values"
    for configuration in strategy.configurations(state):
        state = end(state, configuration, None)
    assert {(draw.values, draw.ended) for draw in strategy.draws(state)} == {(None, True)}, "what failed never has"
    assert not strategy.is_open(state)


def test_a_point_that_cannot_be_built_has_failed_and_another_is_drawn(tmp_path: Path) -> None:
    def fails(run: RunSpec) -> Counts:
        if run.training.learning_rate > 1e-2:
            raise ValueError("too large")
        return Counts(size(run), 2, 10_000, 0)

    plan = plan_of(tmp_path)
    plan.planner.counter = fails
    state = run(strategy := tpe(plan))
    drawn = zip(strategy.draws(state), state.proposals, strict=True)
    broken = [draw for draw, proposal in drawn if (proposal.verdict or "").startswith("cannot be built")]
    assert broken
    assert all((draw.values, draw.ended) == (None, True) and draw.point.training["learning_rate"] > 1e-2 for draw in broken)
    assert len(strategy.configurations(state)) == 20
    assert "too large" in strategy.notes(state)[0]


def test_another_space_has_draws_of_its_own(tmp_path: Path) -> None:
    state = run(learned(tmp_path, "tpe", 5, CRAFT))
    strategy = learned(tmp_path, "tpe", 5, LORA)
    assert points(run(strategy, state))[len(state.proposals) :] == points(run(learned(tmp_path, "tpe", 5, LORA)))
    assert {configuration.method for configuration in strategy.configurations(run(strategy, state))} == {"lora"}


def test_where_trials_pause_a_configuration_counts_with_its_scores_so_far(tmp_path: Path) -> None:
    strategy = learned(tmp_path, more=PROMOTION)
    state = end(ask(strategy, State()), strategy.configurations(state := ask(strategy, State()))[0], 60.0)
    state = ask(strategy, state)
    first, second = [trial.key for trial in strategy.wanted(state)[2:]]

    def value() -> tuple[float | None, bool]:
        draw = strategy.draws(state)[1]
        return draw.values and draw.values[0], draw.ended

    def report(key: str, epoch: float, score: float) -> Reported:
        return Reported(key=key, rows=[{"step": 10 * epoch, "search_score": score}], epoch=epoch, total_steps=30)

    state = fold([Started(keys=[first]), report(first, 0.5, 40.0)], state)
    assert value() == (None, False), "before the first rung"
    state = fold([report(first, 1.0, 50.0), Paused(keys=[first])], state)
    assert value() == ((50 + 60) / 2, False), "a trial without a score counts as the average on its task with its seed"
    state = fold([Started(keys=[second]), report(second, 1.0, 70.0)], state)
    assert value() == ((50 + 70) / 2, False)
    stopped = [TrialResult(first, "stopped", {"search_score": 50.0}), TrialResult(second, "stopped")]
    state = fold([Ended(result=result) for result in stopped], state)
    assert value() == ((50 + 60) / 2, True)


def test_a_training_that_is_cut_counts_with_the_area_under_all_sizes_once_these_have_ended(tmp_path: Path) -> None:
    strategy = learned(tmp_path, "tpe", 2, "{method: lora, rank: {values: [1, 2]}, sizes: [50]}")
    state = ask(strategy, State())
    cut, trained = strategy.configurations(state)
    assert [trial.configuration for trial in strategy.wanted(state)] == [cut.id, trained.id]
    state = end(state, trained, 80.0)
    assert [(draw.values, draw.ended) for draw in strategy.draws(state)] == [(None, False)]
    (draw,) = strategy.draws(end(state, cut, 60.0))
    assert draw.values == (pytest.approx(70.0), trained.counts.trainable_parameters)
    assert [(draw.values, draw.ended) for draw in strategy.draws(end(state, cut, None))] == [(None, True)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_a_learning_searcher_beats_chance_on_a_smooth_function(tmp_path: Path, algorithm: str) -> None:
    def reached(algorithm: str, seed: int) -> float:
        settings = tmp_path, algorithm, 24, LORA.replace("[1, 2, 4, 8, 16, 32]", "[8]")
        plan = plan_of(*settings, seed=seed)
        strategy = learned(*settings, seed=seed) if plan.adaptive else None
        configurations = strategy.configurations(run(strategy)) if strategy else plan.configurations
        rows = [[score_of(configuration), configuration.known["trainable_parameters"]] for configuration in configurations]
        costs = np.array(rows) * [-1, 1]  # scores are maximized
        return float(HV(ref_point=np.array([-60.0, 4000.0]))(costs))

    assert sum(reached(algorithm, seed) for seed in range(3)) > sum(reached("random", seed) for seed in range(3))


def test_a_searcher_that_learns_proposes_as_many_as_the_trials_allow(tmp_path: Path) -> None:
    space = "seeds: [0, 1]\nspace: [{method: lora, rank: 4, learning_rate: {min: 1e-5, max: 1e-2}}]\n"
    plan = toy_plan(tmp_path, f"{space}search: {{algorithm: tpe, configurations: 10}}\nbudget: {{trials: 7}}\n")
    assert (plan.wanted, plan.most_jobs) == (3, 6)


RANGED = Block(0, "lora", {"rank": Range(1, 64, "int_log_uniform"), "learning_rate": Range(1e-4, 1e-2, "log_uniform")})
CHOSEN: dict[str, Dimension] = {
    "ranks": Choice((["all", 64, 64], ["all", 8, 8], ["all", 32, 32])),
    "projections": Choice((["q"], ["q", "v"])),
    "learning_rate": Choice((1e-3, 1e-2)),
    "dropout": Choice((0.1,)),
}


def known_cost(point: Point) -> float:
    if point.method == "lora":
        return 768.0 * point.values["rank"]
    return 6.0 * point.values["ranks"][1] ** 2 * len(point.values["projections"])


@pytest.mark.parametrize(
    "blocks",
    [
        (RANGED,),
        (Block(0, "craft", CHOSEN),),
        (RANGED, Block(1, "craft", CHOSEN)),
        (Block(0, "craft", CHOSEN | {"dropout": Range(1e-5, 1e-1, "log_uniform")}),),
    ],
)
def test_a_point_is_found_again_by_its_parameters(blocks: tuple[Block, ...]) -> None:
    space = FlatSpace(blocks, known_cost)
    for point in islice(sample(blocks, 0), 60):
        parameters = space.parameters(point)
        assert parameters.keys() == space.distributions.keys()
        assert all(kind._contains(kind.to_internal_repr(parameters[name])) for name, kind in space.distributions.items())
        again = space.point(parameters)
        assert again.values.keys() == point.values.keys()
        for name, value in point.values.items():
            assert again.values[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_a_size_is_the_nearest_cost_that_each_block_has() -> None:
    space = FlatSpace((RANGED, Block(1, "craft", CHOSEN)), known_cost)
    assert set(space.distributions) >= {"block", "size", "learning_rate"}
    low, high = math.log(6 * 8**2), math.log(768 * 64)
    for size in (0.0, 0.3, 0.5, 0.8, 1.0):
        wanted = low + size * (high - low)
        for block, title in ((RANGED, "0 lora"), (Block(1, "craft", CHOSEN), "1 craft")):
            flat = space.parameters(next(sample((block,), 0))) | {"block": title, "size": size, "learning_rate": 0.5}
            chosen = space.point(flat)
            sized = "rank" if block is RANGED else "ranks"
            sizes = range(1, 65) if block is RANGED else CHOSEN["ranks"].values  # type: ignore[union-attr]
            costs = [
                known_cost(Point(chosen.block, chosen.method, chosen.parameters | {sized: size}, chosen.training))
                for size in sizes
            ]
            gap = abs(math.log(known_cost(chosen)) - wanted)
            assert gap == pytest.approx(min(abs(math.log(nearest) - wanted) for nearest in costs))


def test_a_rate_is_a_place_in_each_method_s_own_range() -> None:
    wide = Block(1, "bitfit", {"learning_rate": Range(1e-3, 1e-1, "log_uniform")})
    space = FlatSpace((RANGED, wide), lambda point: None)
    assert "size" not in space.distributions, "no cost is known beforehand"
    for block, low in ((RANGED, 1e-4), (wide, 1e-3)):
        flat = space.parameters(next(sample((block,), 0))) | {"learning_rate": 0.25}
        assert space.point(flat).values["learning_rate"] == pytest.approx(low * 10**0.5)
