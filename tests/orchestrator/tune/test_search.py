"""Where trials come from: every row of the tables does its work, and configurations fan out as they should."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.tune.search import Searcher

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Trial
from orchestrator.search.proposers import Listed, propose
from orchestrator.sweepfile.algorithms import SEARCHERS, imported
from orchestrator.sweepfile.load import load_sweep
from orchestrator.tune.trial_source import TrialSource


def plan_of(folder: Path, algorithm: str) -> Plan:
    file = folder / "sweep.yaml"
    search = f"{{algorithm: {algorithm}{', configurations: 3' if SEARCHERS[algorithm].samples else ''}}}"
    file.write_text(
        "name: t\nmodel: m\ntasks: [toy/acceptability, toy/sentiment]\nseeds: [0, 1]\n"
        f"space: [{{method: lora, rank: {{values: [1, 2, 4]}}}}]\nsearch: {search}\n"
    )
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, lambda run: Counts(10, 2, 100, 40), lambda run: 1000))


def trial(seed: int) -> Trial:
    return Trial(RunSpec(model="m", task="toy/acceptability", method="lora", seed=seed), "c", "l")


def drain(source: TrialSource) -> list[str]:
    keys: list[str] = []
    while (handed := source.suggest(f"id{len(keys)}")) not in (None, Searcher.FINISHED):
        keys.append(handed["key"])
    return keys


def test_every_algorithm_a_file_may_name_is_there_to_do_it() -> None:
    places = [row.make for row in SEARCHERS.values()]
    assert all(callable(imported(place)) for place in places)


@pytest.mark.parametrize("algorithm", sorted(SEARCHERS))
def test_every_searcher_hands_out_its_plan_once_and_then_is_finished(tmp_path: Path, algorithm: str) -> None:
    plan = plan_of(tmp_path, algorithm)
    proposer = propose(plan, tmp_path)
    source = TrialSource(proposer, lambda c: plan.trials_of(c.id), lambda key: False)
    keys = drain(source)
    assert len(plan.configurations) == 3
    assert sorted(keys) == sorted(trial.key for trial in plan.trials)
    assert source.suggest("more") == Searcher.FINISHED


def test_a_configuration_s_trials_follow_each_other(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "grid")
    by_key = {trial.key: trial.configuration for trial in plan.trials}
    by_configuration = {c.id: [t for t in plan.trials if t.configuration == c.id] for c in plan.configurations}
    order = [
        by_key[key]
        for key in drain(TrialSource(Listed(plan.configurations), lambda c: by_configuration[c.id], lambda k: False))
    ]
    assert order == [configuration.id for configuration in plan.configurations for _ in range(4)]


def test_what_is_settled_is_not_handed_out_and_what_waits_goes_first() -> None:
    one, two, three = (Trial(RunSpec(model="m", task="toy/acceptability", method="lora", seed=s), "c", "l") for s in range(3))

    class Configuration:
        id = "c"

    source = TrialSource(Listed([Configuration()]), lambda c: [one, two, three], lambda key: key == two.key, [three])  # type: ignore[list-item]
    assert drain(source) == [three.key, one.key, three.key]


def test_no_more_than_so_many_are_out_at_once() -> None:
    trials = [trial(seed) for seed in range(4)]
    source = TrialSource(Listed(()), lambda c: [], lambda key: False, trials, max_concurrent=2)
    assert source.suggest("a")["key"] == trials[0].key
    assert source.suggest("b")["key"] == trials[1].key
    assert source.suggest("c") is None
    source.on_trial_complete("a", error=True)
    assert source.suggest("c")["key"] == trials[2].key
    assert source.suggest("d") is None


def test_a_proposer_that_waits_is_asked_again() -> None:
    class Waits:
        exhausted = False

        def suggest(self) -> None:
            return None

    source = TrialSource(Waits(), lambda c: [], lambda key: False)  # type: ignore[arg-type]
    assert source.suggest("a") is None
    Waits.exhausted = True
    assert source.suggest("a") == Searcher.FINISHED
