"""`search.until: answered`: what the answer needs is run, and no more."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from orchestrator.plan.plan import Plan
from orchestrator.plan.table import choices
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, Status, TrialResult
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.record.state import State
from orchestrator.results.answer import answer_of
from orchestrator.results.probabilities import _variances, moderate
from orchestrator.review.progress import read_status
from tests.orchestrator.plans import outcomes, rank, run_some, toy_plan

Score = Callable[[PlannedTrial], float]
RANKS = [1, 2, 4, 8, 16]


def plan_of(folder: Path, ranks: Sequence[int] = RANKS, more: str = "", rates: str = "0.001", seeds: str = "[0, 1]") -> Plan:
    space = f"[{{method: lora, rank: {{values: {[*ranks]}}}, learning_rate: {rates}}}]"
    head = f"tasks: [toy/sentiment]\nseeds: {seeds}\nspace: {space}\nsearch: {{until: answered}}\n"
    return toy_plan(folder, head + more, rank)


def noise(trial: PlannedTrial) -> float:
    return float(np.random.default_rng([trial.run.parameters["rank"], trial.run.seed]).normal(0, 0.8))


def levelling(trial: PlannedTrial) -> float:
    """1 and 2 are far behind; 4 is a point and a half below 8 and 16, which are equal."""
    return {1: 60.0, 2: 70.0, 4: 88.5}.get(trial.run.parameters["rank"], 90.0) + noise(trial)


def ending(
    fails: Callable[[int, int], bool], status: Status = "failed", retryable: bool = False
) -> Callable[[Job], Sequence[Outcome]]:
    """Lets the trainings end like this whose rank and seed pass the test, and the others finish."""

    def end(job: Job) -> Sequence[Outcome]:
        if fails(job.training.run.parameters["rank"], job.training.run.seed):
            return [Outcome(TrialResult(job.key, status, error="boom" if status == "failed" else None, retryable=retryable))]
        return outcomes(job, levelling, lambda trial: 1000.0 * rank(trial.run))

    return end


def run(plan: Plan, folder: Path, score: Score = levelling, at_most: int = 1000) -> tuple[State, list[str], Counter[int]]:
    notes = list[str]()
    run_some(plan, folder, lambda job: outcomes(job, score, lambda trial: 1000.0 * rank(trial.run)), at_most, notes)
    state = read_state(SweepFolder(folder).record)
    return state, notes, Counter(entry.trial.parameters["rank"] for entry in state.requested)


def test_only_what_decides_gets_seeds_until_one_is_enough(tmp_path: Path) -> None:
    state, notes, seeds = run(plan_of(tmp_path), tmp_path / "s")
    assert notes[-1].startswith("Answered: LoRA r8"), notes
    assert seeds[1] == seeds[2] == 2, "they are far behind"
    assert seeds[8] >= 3
    assert [f"Added for the answer: {decision.why}" for decision in state.decisions] == notes[:-1]
    assert all("to decide" in decision.why for decision in state.decisions)
    assert read_status(tmp_path / "s").added == [decision.why for decision in state.decisions]
    assert max(seeds.values()) <= 5


def test_what_may_be_enough_gets_seeds_and_a_smaller_one_may_stay_open(tmp_path: Path) -> None:
    """4 is a point below the best, so more seeds hardly decide whether it is enough."""

    def close(trial: PlannedTrial) -> float:
        return {1: 60.0, 4: 89.0}.get(trial.run.parameters["rank"], 90.0) + noise(trial)

    _, notes, seeds = run(plan_of(tmp_path, [1, 4, 8, 16]), tmp_path / "s", close)
    assert (seeds[1], min(seeds[4], seeds[8]) > 2) == (2, True)
    assert re.search("LoRA r8, q v is enough; no step .* whether a smaller one is too", notes[-1]), notes


def test_a_budget_ends_it_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, notes, seeds = run(plan_of(tmp_path, more="budget: {trials: 10}\n"), tmp_path / "s")
    assert sum(seeds.values()) == 10
    assert state.decisions == ()
    assert notes == [
        "Not answered: no step to at most 5 seeds that the budget allows decides with a probability of 10 % which one is enough"
    ]
    monkeypatch.setattr(State, "pace", 1.0)
    short = plan_of(tmp_path, more="budget: {wall_clock: 1s}\n")
    assert run(short, tmp_path / "short")[0].decisions == (), "a training takes 9 s"


def test_nothing_above_random_guessing_gets_no_seeds(tmp_path: Path) -> None:
    def end(job: Job) -> list[Outcome]:
        (outcome,) = outcomes(job, lambda trial: 49 + noise(trial) / 10)
        outcome.result.counts.update(examples=100.0, random_guessing=50.0)
        return [outcome]

    notes = list[str]()
    ran = run_some(plan_of(tmp_path, [1, 2, 4]), tmp_path / "s", end, notes=notes)
    assert len(ran) == 6
    assert notes == ["Not answered: nothing is above random guessing, and more seeds or sizes do not change that"]


def test_a_curve_that_rises_gets_a_larger_size(tmp_path: Path) -> None:
    def rising(trial: PlannedTrial) -> float:
        return min(60 + 6 * math.log2(trial.run.parameters["rank"]), 84) + 0.2 * noise(trial)

    _, notes, seeds = run(plan_of(tmp_path, [1, 2, 4, 8], seeds="[0, 1, 2]"), tmp_path / "s", rising)
    assert (seeds[16], seeds[32], seeds[64]) == (3, 3, 0), "32 is no better than 16"
    assert notes[-1].startswith("Answered")
    bounded = plan_of(tmp_path, [1, 2, 4, 8], f"constraints: {{trainable_parameters: {{max: {10**9}}}}}\n")
    assert any("trials at most" in line.value for line in choices(bounded))


def test_the_next_rate_is_tried_where_the_best_is_at_the_end(tmp_path: Path) -> None:
    def peak(trial: PlannedTrial) -> float:
        return 90 - 8 * abs(math.log10(trial.run.training.learning_rate) + 2) + 0.2 * noise(trial)

    state, notes, _ = run(plan_of(tmp_path, [4], rates="{values: [0.0001, 0.001, 0.01]}"), tmp_path / "s", peak)
    rates = Counter(entry.trial.parameters["learning_rate"] for entry in state.requested)
    assert state.decisions[0].why.endswith("the best, has the highest learning_rate tried")
    assert rates[0.1] == 2, "as many seeds as the best had"
    assert 1.0 not in rates, "0.1 is worse"
    assert notes[-1].startswith("Answered: LoRA r4, q v, lr 0.01")


def test_a_configuration_alone_gets_the_seeds_that_an_answer_needs(tmp_path: Path) -> None:
    _, notes, seeds = run(plan_of(tmp_path, [8], seeds="[0]"), tmp_path / "s")
    assert (seeds[8] > 1, notes[0].startswith("Added for the answer")) == (True, True), notes


def test_variances_of_different_seeds_are_those_of_least_squares() -> None:
    """Configurations and seeds as dummies of one linear model; a seed that fewer than three have has none."""
    random, shown = np.random.default_rng(3), [range(3)] * 4 + [range(5)] * 3 + [range(6)]
    scores = [{seed: float(random.normal(80, 1) + seed) for seed in seeds} for seeds in shown]
    rows = [(place, seed) for place, seeds in enumerate(shown) for seed in seeds]
    design = np.array(
        [[float(place == row) for row in range(8)] + [float(seed == one) for one in range(5)] for place, seed in rows]
    )
    hat = design @ np.linalg.pinv(design)
    rest = (np.eye(len(rows)) - hat) @ [scores[place][seed] for place, seed in rows]
    places = np.array([place for place, _ in rows])
    freedom = np.array([(1 - np.diag(hat))[places == place].sum() for place in range(8)])
    squares = np.array([(rest**2)[places == place].sum() for place in range(8)])
    found, degrees, _ = _variances(scores)
    expected, sure = moderate(squares / freedom, freedom)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(degrees, sure, rtol=1e-9)


@pytest.mark.parametrize(
    ("test", "retryable", "note", "kind"),
    [
        pytest.param(
            *(lambda rank, seed: rank == 8 and seed == 1, False, "1 trial that was added has failed .boom.", "enough"),
            marks=pytest.mark.slow,
        ),
        (lambda rank, seed: seed > 0, True, "Not answered: 3 trials that were added have failed .boom.", "one seed"),
        (lambda rank, seed: seed > 0, False, "Not answered: 3 trials that were added have failed .boom.", "one seed"),
        (lambda rank, seed: True, False, "Not answered: 5 trials have failed .boom.", "failed"),
        (lambda rank, seed: rank > 16, False, "Answered: LoRA r8", "enough"),
    ],
)
def test_an_added_seed_that_fails_leaves_the_answer_that_there_was(
    tmp_path: Path, test: Callable[[int, int], bool], retryable: bool, note: str, kind: str
) -> None:
    plan = plan_of(tmp_path, seeds="[0]")
    said = list[str]()
    for _ in range(3):
        notes = list[str]()
        run_some(plan, tmp_path / "s", ending(test, retryable=retryable), notes=notes)
        said.append(notes[-1])
    assert len(set(said)) == 1, "every session says the same"
    assert re.search(note, said[-1]), said
    assert "decided" not in said[-1] or "failed" not in said[-1]
    state = read_state(SweepFolder(tmp_path / "s").record)
    summaries, answer = answer_of(state)
    assert answer.kind == kind
    if kind != "failed":
        assert all(row.complete for row in summaries if row.finished)
        assert ("seed 1" in answer.text or "seed failed" in answer.text) == any(row.lost for row in summaries)


def test_a_second_seed_goes_where_it_fits_and_first_where_one_seed_leaves_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(State, "pace", 1.0)

    def second(limit: str) -> list[int]:
        plan = plan_of(tmp_path, more=f"budget: {{{limit}}}\n", seeds="[0]")
        state, _, _ = run(plan, tmp_path / re.sub(r"\W", "", limit))
        return sorted(entry.trial.parameters["rank"] for entry in state.requested if entry.trial.seed == 1)

    assert second("wall_clock: 1h") == [4, 8, 16], "1 and 2 are far behind"
    assert second("wall_clock: 20s") == [8, 16], "a training takes 9 s"
    assert second("wall_clock: 10s") == []
    assert second("trials: 7") == [8, 16]


EACH = "after each trial"


@pytest.mark.slow
@pytest.mark.parametrize("story", [EACH, "budget", "kill", "stopped", "apply", "failed"])
def test_no_answer_is_lost_however_a_sweep_ends(tmp_path: Path, story: str) -> None:
    """Once five configurations have a seed there is an answer over all five when the driver is killed, and no seed is lost: one
    sweep that is killed after each trial, and ten of each other story."""
    random = np.random.default_rng(len(story))
    end = ending(lambda rank, seed: story in ("failed", "stopped") and seed > 0 and random.random() < 1 / 3, story)  # type: ignore[arg-type]
    for number in range(1 if story == EACH else 10):
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = plan_of(folder, more=f"budget: {{trials: {random.integers(5, 16)}}}\n" * (story == "budget"), seeds="[0]")
        best = dict.fromkeys(RANKS, 0)
        for session in range(40 if story == EACH else 3):
            if story == "apply":  # seeds or a configuration are added to the file
                plan = plan_of(folder, [*RANKS, 32] if session == 2 else RANKS, seeds="[0, 1, 2]" if session else "[0]")
            most = 5 if session == 0 else 1 if story == EACH else 1000 if story == "failed" else int(random.integers(1, 6))
            if not run_some(plan, folder / "s", end, at_most=most) and story == EACH:
                break
            summaries, answer = answer_of(read_state(SweepFolder(folder / "s").record))
            seeds = {row.parameters["rank"]: row.score.n for row in summaries if row.complete}
            assert answer.kind in ("enough", "unsure", "one seed"), answer.text
            assert {*RANKS} <= {*seeds}
            assert all(seeds[rank] >= least for rank, least in best.items()), (number, session)
            best |= {rank: seeds[rank] for rank in RANKS}
            assert answer.kind == "one seed" or max(best.values()) > 1, "no probability in the middle of a seed"
        assert sum(best.values()) > 5 or story != EACH
