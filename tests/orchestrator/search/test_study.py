"""Proposers over an Optuna study, on objective functions that cost nothing: what they suggest, keep, avoid and remember."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from rich.console import Console

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.table import print_plan
from orchestrator.record.folder import SweepFolder
from orchestrator.search import proposers
from orchestrator.search.dimensions import Encoding
from orchestrator.search.study import StudyProposer
from orchestrator.sweepfile.algorithms import SEARCHERS
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.space.dimensions import Block, Choice, Range, covering, sample
from tests.benchmarks.hypervolume import hypervolume

ADAPTIVE = [name for name, row in SEARCHERS.items() if row.adaptive]
LORA = "{method: lora, rank: {values: [1, 2, 4, 8, 16, 32]}, learning_rate: {min: 1e-5, max: 1e-1, distribution: log_uniform}}"
CRAFT = "{method: craft, ranks: {values: [[all, 4, 4], [all, 16, 16], [all, 64, 64]]}, dropout: {values: [0.0, 0.1]}}"


def counted(run: RunSpec) -> Counts:
    size = 100 * run.parameters["rank"] if run.method == "lora" else sum(int(r) ** 2 for r in run.parameters["ranks"][1:])
    return Counts(size, 2, 10_000, 4 * size)


def plan_of(folder: Path, algorithm: str = "tpe", trials: int = 20, space: str = LORA, more: str = "") -> Plan:
    file = folder / "sweep.yaml"
    file.write_text(
        f"name: t\nmodel: m\ntasks: [toy/acceptability]\nspace: [{space}]\n"
        f"search: {{algorithm: {algorithm}, configurations: {trials}, seed: 3}}\n{more}"
    )
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, counted))


def value(configuration: Configuration) -> dict[str, float]:
    """Best near a learning rate of 1e-3, and better with more parameters."""
    rate = configuration.training.get("learning_rate", 1e-3)
    size = configuration.counts.trainable_parameters
    score = 90 - 8 * abs(math.log10(rate) + 3) + 2 * math.log2(size) - 20 * configuration.parameters.get("dropout", 0)
    return {"score": score, "trainable_parameters": float(size)}


def run_all(
    proposer: StudyProposer, answer: Callable[[Configuration], dict[str, float]] = value, at_most: int = 1000
) -> list[Configuration]:
    seen: list[Configuration] = []
    while len(seen) < at_most and (configuration := proposer.suggest()) is not None:
        seen.append(configuration)
        proposer.tell(configuration.id, answer(configuration), "complete")
    return seen


def propose(plan: Plan, folder: Path | None = None) -> StudyProposer:
    proposer = proposers.propose(plan, folder)
    assert isinstance(proposer, StudyProposer)
    return proposer


def stored(folder: Path) -> list[optuna.trial.FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(SweepFolder(folder).study)))
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).get_trials()


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_equal_seeds_suggest_the_same_and_nothing_twice(tmp_path: Path, algorithm: str) -> None:
    first, again = (run_all(propose(plan_of(tmp_path, algorithm, 12))) for _ in range(2))
    assert [one.id for one in first] == [one.id for one in again]
    assert len({one.id for one in first}) == len(first) == 12


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_a_resumed_study_goes_on_as_if_it_had_never_stopped(tmp_path: Path, algorithm: str) -> None:
    whole = [one.id for one in run_all(propose(plan_of(tmp_path, algorithm), tmp_path / "whole"))]
    plan = plan_of(tmp_path, algorithm)
    proposer = propose(plan, tmp_path / "cut")
    run_all(proposer, at_most=12)
    open_one = proposer.suggest()  # asked for, and then the driver dies
    assert open_one is not None
    plan = plan_of(tmp_path, algorithm)
    proposer = propose(plan, tmp_path / "cut")
    assert [one.id for one in plan.configurations] == whole[:13]
    proposer.tell(whole[0], {"score": -1.0, "trainable_parameters": 1.0}, "complete")  # it has been told that one
    proposer.tell(open_one.id, value(open_one), "complete")
    run_all(proposer)
    assert [one.id for one in plan.configurations] == whole
    trials = stored(tmp_path / "cut")
    assert all(trial.state == TrialState.COMPLETE for trial in trials)
    assert [trial.values for trial in trials] == [trial.values for trial in stored(tmp_path / "whole")]


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_what_breaks_a_constraint_is_told_and_never_handed_out(tmp_path: Path, algorithm: str) -> None:
    plan = plan_of(tmp_path, algorithm, 15, more="constraints: {trainable_parameters: {max: 900}}\n")
    heard: list[str] = []
    plan.on_refusal(lambda dropped: heard.append(dropped.configuration.id))
    seen = run_all(propose(plan, tmp_path / "run"))
    assert len(seen) == 15
    assert max(one.counts.trainable_parameters for one in seen) <= 900
    broken = [trial for trial in stored(tmp_path / "run") if "not trained" in trial.user_attrs]
    assert heard == list(dict.fromkeys(trial.user_attrs["configuration"] for trial in broken)), "each once"
    assert broken
    for trial in broken:
        (excess,) = trial.constraints.values()
        assert excess > 0
        assert excess == pytest.approx((trial.values[1] - 900) / 900)


def test_blocks_are_conditional_and_none_has_another_s_dimensions(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "tpe", 24, f"{LORA}, {CRAFT}")
    run_all(propose(plan, tmp_path / "run"))
    by_block = {"0 lora": set(), "1 craft": set()}
    for trial in stored(tmp_path / "run"):
        by_block[trial.params["block"]] |= set(trial.params) - {"block"}
    assert by_block == {
        "0 lora": {"0 lora.rank.place", "0 lora.learning_rate"},
        "1 craft": {"1 craft.ranks.place", "1 craft.dropout.place"},
    }
    assert sum(one.method == "craft" for one in plan.configurations) <= 6


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_a_small_space_is_run_whole_and_then_ends(tmp_path: Path, algorithm: str) -> None:
    plan = plan_of(tmp_path, algorithm, 50, CRAFT)
    proposer = propose(plan)
    assert len(run_all(proposer)) == 6
    assert proposer.exhausted


def test_a_point_asked_for_again_gets_the_answer_it_had(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "tpe", 50, CRAFT)
    run_all(propose(plan, tmp_path / "run"))
    by_configuration: dict[str, set[tuple[float, ...]]] = {}
    trials = [trial for trial in stored(tmp_path / "run") if trial.state == TrialState.COMPLETE]
    for trial in trials:
        by_configuration.setdefault(trial.user_attrs["configuration"], set()).add(tuple(trial.values))
    assert len(trials) > len(by_configuration) == 6
    assert all(len(values) == 1 for values in by_configuration.values())


def test_one_asked_for_twice_while_it_runs_is_answered_for_both(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "tpe", 50, CRAFT)
    proposer = propose(plan, tmp_path / "run")
    running = []
    while (configuration := proposer.suggest()) is not None:
        running.append(configuration)
    assert len(running) == 6
    for one in running:
        proposer.tell(one.id, value(one), "complete")
    assert {trial.state for trial in stored(tmp_path / "run")} == {TrialState.COMPLETE}


def test_a_failed_configuration_is_told_so_and_stays_so(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "tpe", 5)
    run_all(propose(plan, tmp_path / "run"), lambda one: {"trainable_parameters": 100.0, "score": math.nan})
    assert [trial.state for trial in stored(tmp_path / "run")] == [TrialState.FAIL] * 5
    assert propose(plan_of(tmp_path, "tpe", 5), tmp_path / "run").exhausted


def test_another_space_is_another_study_of_the_same_file(tmp_path: Path) -> None:
    run_all(propose(plan_of(tmp_path, "tpe", 5, CRAFT), tmp_path / "run"))
    plan = plan_of(tmp_path, "tpe", 5, LORA)
    assert len(run_all(propose(plan, tmp_path / "run"))) == 5
    assert {one.method for one in plan.configurations} == {"lora"}


@pytest.mark.parametrize(("space", "name"), [(LORA, "t 9628d7"), (f"{LORA}, {CRAFT}", "t bac48f")])
def test_a_study_of_an_earlier_version_is_found_by_its_name(tmp_path: Path, space: str, name: str) -> None:
    propose(plan_of(tmp_path, space=space), tmp_path / "run")
    storage = JournalStorage(JournalFileBackend(str(SweepFolder(tmp_path / "run").study)))
    assert [one.study_name for one in optuna.get_all_study_summaries(storage)] == [name]


@pytest.mark.parametrize("algorithm", ADAPTIVE)
def test_a_learning_searcher_beats_chance_on_a_smooth_function(tmp_path: Path, algorithm: str) -> None:
    def reached(algorithm: str, seed: int) -> float:
        plan = plan_of(tmp_path, algorithm, 24, LORA.replace("[1, 2, 4, 8, 16, 32]", "[8]"))
        search = plan.sweep.search.model_copy(update={"seed": seed})
        sweep = plan.sweep.model_copy(update={"search": search})
        plan = make_plan(sweep, Planner(sweep, counted))
        seen = run_all(propose(plan)) if SEARCHERS[algorithm].adaptive else plan.configurations
        points = [list(value(one).values()) for one in seen]
        return hypervolume(points, ["maximize", "minimize"], [60.0, 4000.0])

    assert sum(reached(algorithm, seed) for seed in range(3)) > sum(reached("random", seed) for seed in range(3))


def test_ordered_values_are_places_and_others_are_words() -> None:
    block = Block(
        0,
        "craft",
        {
            "ranks": Choice((["all", 64, 64], ["all", 8, 8])),
            "projections": Choice((["q"], ["q", "v"])),
            "dropout": Choice((0.1, 0.0)),
            "scaling": Choice((1.0,)),
            "learning_rate": Range(1e-4, 1e-1, "log_uniform"),
        },
    )
    encoding = Encoding([block])
    first = next(sample((block,), 0))
    parameters = encoding.parameters(first)
    assert set(parameters) == {"ranks.place", "projections", "dropout.place", "learning_rate"}
    trial = optuna.trial.FixedTrial(parameters)
    assert encoding.suggest(trial) == first  # type: ignore[arg-type]
    small = next(point for point in covering((block,)) if point.parameters["ranks"] == ["all", 8, 8])
    assert encoding.parameters(small)["ranks.place"] == 0


def test_where_one_block_is_good_and_the_other_not_the_good_one_is_searched(tmp_path: Path) -> None:
    other = LORA.replace("method: lora,", "method: lora, weight_decay: {values: [0.0, 0.1]},")
    plan = plan_of(tmp_path, "tpe", 40, f"{other}, {LORA}")

    def answer(one: Configuration) -> dict[str, float]:
        return {"score": value(one)["score"] - (30 if one.path == ("space", 0) else 0), "trainable_parameters": 1.0}

    seen = run_all(propose(plan), answer)
    assert sum(one.path == ("space", 1) for one in seen[20:]) > 14


def test_the_plan_tells_bounds_where_nothing_can_be_listed(tmp_path: Path) -> None:
    screen = io.StringIO()
    plan = plan_of(tmp_path, more="constraints: {trainable_parameters: {max: 900}}\n")
    print_plan(plan, Console(file=screen, width=160))
    assert "tpe chooses configurations while the sweep runs" in screen.getvalue()
    assert "at most 20 configurations x 1 tasks x 1 seeds = 20 trials" in screen.getvalue()
    assert "trainable parameters of points tried out: 100 to 800" in screen.getvalue()
    assert "is above max 900" in screen.getvalue()
