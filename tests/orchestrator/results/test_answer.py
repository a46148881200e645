"""The answer of a sweep: what it says in each case, what it proposes, and that it is right as often as it says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from craft.models.files import MINILM
from orchestrator.plan.trial import Why
from orchestrator.record.events import Ended, Reported, SessionStarted, Wanted
from orchestrator.record.state import State, fold
from orchestrator.results.answer import Answer, answer_of, find_answer
from orchestrator.results.front import knee, mark_front, not_shown_to_beat_head
from orchestrator.results.luck import helps_most
from orchestrator.results.summary import Summary
from orchestrator.results.tuning import Tuning
from orchestrator.review.pick import pick
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES, Enough
from tests.orchestrator.recorded import entry, made

AGAIN = "craft-sweeps run s.yaml --resume"
SPACE: tuple[dict[str, Any], ...] = (
    {"method": "head"},
    {"method": "craft", "ranks": {"values": [["all", 8, 8], ["all", 16, 16]]}, "learning_rate": 3e-3},
    {"method": "lora", "rank": 8, "learning_rate": {"values": [1e-3, 3e-3, 9e-3]}},
)


ANSWERED = {"search.until": "answered"}
RATES = {"space.2.learning_rate": {"values": [1e-3, 3e-3, 9e-3, 0.00033, 0.027]}}


def state_of(file: dict[str, Any], again: str = AGAIN) -> State:
    """The state of a sweep whose session has begun with this file."""
    file = {"name": "s", "model": MINILM, "tasks": ["toy/sentiment"], "space": [*SPACE], **file}
    return State().after(SessionStarted(sweep=file, configurations=1, trainings=1, again=again))


def answered(*summaries: Summary, rule: Enough | None = None, **file: Any) -> Answer:
    rule = rule or Enough()
    seeds = list(range(max(summary.score.n for summary in summaries)))
    state = state_of({"seeds": seeds, "enough": rule.model_dump(), **file})
    return find_answer(mark_front(summaries, DEFAULT_OBJECTIVES, rule), state)


def around(center: float, spread: float = 0.3, seeds: int = 3) -> list[float]:
    return [center + spread * step for step in (-1, 1, 0, 1, -1)[:seeds]]


STEEP = [made("small", 1_000, around(70)), made("middle", 4_000, around(95.1)), made("large", 73_728, around(95.7))]
DOUBTFUL = [made("small", 1_000, around(95.0, 0.9)), *STEEP[1:]]
FLAT = [made(f"c{size}", size, around(score, 0.05)) for size, score in ((100, 60), (1_000, 90), (1e5, 90.1), (1e6, 90))]
LEVEL = [made(f"r{2**place}", 2**place, around(score, 0.5 if place else -0.5), rank=2**place)
         for place, score in enumerate((60, 75, 83, 86, 86.6))]  # fmt: skip
LARGER = {"space.1.ranks": {"values": [["all", 8, 8], ["all", 16, 16], ["all", 32, 32]]}}


def growing(method: str, *scores: float) -> list[Summary]:
    """Ranks 2, 4, 8, ... with these scores."""
    ranks = [2 * 2**place for place in range(len(scores))]
    rows = enumerate(zip(ranks, scores, strict=True))
    return [made(f"r{r}", 1e3 * r, around(score, 0.3 * (-1) ** at), method, ranks=f"all,{r},{r}") for at, (r, score) in rows]


@pytest.mark.parametrize(
    ("rows", "file", "configuration", "said", "changes"),
    [
        (STEEP, {}, "middle", [
            "Enough: lora middle (4,000 parameters): 95.1 ± ", "anything in this sweep is better by more than 1 point is ",
            "The best, lora large (73,728), uses 18 times as many parameters for 0.6 points more.",
        ], None),
        (STEEP, {"rule": Enough(within=30)}, "small", [], None),
        (STEEP, {"rule": Enough(within=0.2)}, "large", [], None),
        (DOUBTFUL, {"rule": Enough(sure=0.6)}, "small", [], None),
        (DOUBTFUL, {"rule": Enough(sure=0.97)}, "large", [], None),
        (FLAT, {}, "c1000", [], {}),
        # Two whose scores differ by the margin itself.
        ([STEEP[0], made("middle", 4_000, around(94, 1)), made("large", 73_728, around(95, 1))], {}, "large",
         ["whether lora middle", "No more seeds or other size is likely to settle it (5 % at most). A larger `within`"], None),
        # The best at the end of what was tried asks for more, where the curve rises.
        (growing("craft", 60, 65, 70, 75), {}, "r16", ["The best has the largest size tried", "run a larger size of craft r16"],
         LARGER),
        (growing("craft_star", 60, 65, 70, 75), {"space": [SPACE[0], SPACE[1] | {"method": "craft_star"}]}, "r16",
         ["The best has the largest size tried", "run a larger size of craft_star r16"], LARGER),
        (LEVEL, {}, "r16", [], None),
        ([*(made(f"lr {rate}", 4_000, around(2e4 * rate), learning_rate=rate) for rate in (1e-3, 2e-3, 4e-3)),
          made("full", 1e6, around(79), "full")], {}, "lr 0.004",
         ["The best has the highest learning_rate tried", "run a lower and a higher rate of "], None),
    ],
)  # fmt: skip
def test_the_smallest_that_is_enough_is_named_and_what_would_say_more(
    rows: list[Summary], file: dict[str, Any], configuration: str, said: list[str], changes: dict[str, Any] | None
) -> None:
    answer = answered(*rows, **file)
    assert (answer.kind, answer.configuration) == ("enough", configuration)
    assert [phrase for phrase in said if phrase not in answer.text] == []
    if configuration == "r16":
        assert ("larger size" in answer.text) == ("largest size" in answer.unknown) == (changes == LARGER)
    assert changes is None or answer.changes == changes
    if rows is STEEP:
        assert (answer.best, answer.p_better < 0.1) == ("large", True)
    if changes == {}:
        assert (answer.unknown, answer.proposal, answer.command) == ("", "", ""), "it is decided"


@pytest.mark.parametrize(
    ("summaries", "kind", "phrases", "changes"),
    [
        ([made("small", 1_000, [70]), made("large", 8_000, [90])], "one seed",
         ["By one seed: lora large", "One seed cannot tell", "Next: run two more seeds of all 2", "2 min) to get"],
         {"seeds": [0, 1, 2]}),
        ([made("small", 1_000, [70])], "one seed", ["Next: run two more seeds of lora small (about "], {"seeds": [0, 1, 2]}),
        ([made("small", 1_000, [90.5], examples=60, chance=50), made("large", 8_000, [91], examples=60, chance=50)], "one seed",
         ["By one seed: lora small", "More scored examples would help most; more seeds would help less."], {}),
        ([made("small", 1_000, around(70, seeds=2)), made("large", 8_000, around(95, seeds=2)), made("l", 9, [1, 2])], "unsure",
         ["Not decided: lora large", "2 seeds do not show how seeds spread, 3 do", "run one more seed of lora large"],
         ANSWERED),
        ([made("small", 1_000, around(70)), made("large", 8_000, [95]), made("l", 9, around(50))], "unsure",
         ["Not decided: lora large", "1 seed does not show how seeds spread, 3 do"], ANSWERED),
        ([made(f"c{place}", 1_000 * place, [46.6 + place * 0.7], examples=277, chance=52.7) for place in range(1, 10)],
         "random guessing",
         ["Nothing in this sweep is shown to be above random guessing", "52.9", "52.7", "Try another learning rate"], RATES),
        ([made("Head alone", 0, around(80, 1), "head", 60, 50), made("small", 1_000, around(80, -1), examples=60, chance=50),
          made("l", 9_000, around(79), examples=60, chance=50), made("Head alone, slow", 0, around(70, 1), "head", 60, 50)],
         "head", ["No adapter is shown to be better than none: Head alone (0 parameters) has 80.0", "not ruled out."], RATES),
        ([made("Head alone, slow", 0, [70], "head"), made("Head alone", 0, [80], "head"), made("small", 1_000, [79])], "head",
         ["better than none by this one seed: Head alone (0 parameters) has 80.0"], RATES),
        ([made("Base model", 0, around(80, 1), "head"), made("small", 1_000, around(79, -1))], "head",
         ["better than none: Base model (0 parameters) has 80.0", ", the best of all. A gain of "], RATES),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_said_with_the_next_experiment(
    summaries: list[Summary], kind: str, phrases: list[str], changes: dict[str, Any]
) -> None:
    answer = answered(*summaries)
    assert answer.kind == kind
    assert [phrase for phrase in phrases if phrase not in answer.text] == []
    assert kind != "head" or "scored examples" not in answer.text, "they do the same to the head"
    assert (answer.command, answer.changes) == ("craft-sweeps more s" if changes else "", changes)


@pytest.mark.parametrize("rule", ["smallest-within:1", "knee"])
@pytest.mark.parametrize("scores", [[52.0], around(52, 0.5)])
def test_nothing_is_picked_as_enough_where_nothing_is_above_chance(scores: list[float], rule: str) -> None:
    level = [made(f"c{size}", size, scores, examples=277, chance=52.7) for size in (1_000, 8_000)]
    assert knee(mark_front(level, DEFAULT_OBJECTIVES), DEFAULT_OBJECTIVES) is None
    with pytest.raises(NothingMeets, match="nothing in this sweep is shown to be above random guessing"):
        pick(rule, mark_front(level, DEFAULT_OBJECTIVES), DEFAULT_OBJECTIVES)


def test_pairs_of_two_seeds_do_not_hide_that_the_head_alone_is_not_enough() -> None:
    """Each difference of two seeds has an interval with zero in it; all seeds together show how seeds spread."""
    adapters = [made(f"r{place}", 1_000 * place, [85.2 + place / 50, 84.5 - place / 50]) for place in range(1, 6)]
    head = made("Head alone", 0, [80.0, 80.6], "head")
    judged = mark_front([head, *adapters], DEFAULT_OBJECTIVES)
    assert len(not_shown_to_beat_head(judged)) == len(adapters)
    assert judged[0].counts["p_enough"] < 0.1
    assert answered(head, *adapters).kind == "unsure"


def test_equal_differences_of_one_row_do_not_show_that_an_adapter_beats_the_head() -> None:
    head, adapter = made("Head alone", 0, [80.0, 80.0], "head"), made("small", 1_000, [80.5, 80.5])
    rows = [replace(adapter, graded={"toy/sentiment": examples}) for examples in (200, 20_000)]
    assert [len(not_shown_to_beat_head([head, row])) for row in rows] == [1, 0]


def test_the_answer_is_the_configuration_that_is_enough() -> None:
    """The head alone may be enough too: no difference from it is shown by pairs of seeds."""
    rows = [made("Head alone", 0, [80.4, 81.7, 80.3], "head"), made("small", 1_000, [82.0, 81.7, 81.6])]
    rows += [made(f"c{size}", size, [81.9, 81.8, 81.5]) for size in (2_000, 4_000, 8_000, 16_000)]
    answer = answered(*rows, rule=(rule := Enough(within=1.0)))
    (enough,) = [row.label for row in mark_front(rows, DEFAULT_OBJECTIVES, rule) if row.enough]
    assert (answer.kind, answer.configuration, enough) == ("enough", "small", "small")


WAITING = replace(made("waiting", 500, [99]), planned=3)
RATES_OF_ONE = [replace(made(f"lr{place}", 500, [99]), tunes="tuned") for place in range(2)]


@pytest.mark.parametrize(
    ("incomplete", "finished", "finishes"),
    [
        ([WAITING], [], True),
        ([replace(WAITING, failed=2)], [], False),  # it has ended
        # Two rates of one configuration on two tasks, of which none is chosen yet: one may be, where each task has one.
        (RATES_OF_ONE, ["lr0 a", "lr0 b", "lr1 a", "lr1 b"], True),
        (RATES_OF_ONE, ["lr0 a", "lr1 b"], True),
        (RATES_OF_ONE, ["lr0 a", "lr1 a"], False),
        (RATES_OF_ONE, [], False),
    ],
)
def test_what_is_not_complete_is_not_judged_and_comes_first(
    incomplete: list[Summary], finished: list[str], finishes: bool
) -> None:
    state, why = state_of({"seeds": [0, 1, 2]}), Why("candidate", "tuned")
    for row, task in itertools.product(incomplete, "ab"):
        metrics = {"search_score": 99.0} if f"{row.label} {task}" in finished else None
        candidate = entry(row.label, metrics, task=task, why=why)
        if row.tunes:
            state = fold(
                [Wanted(keys=[*state.wanted, candidate.key], trials=[candidate.trial]), Ended(result=candidate.result)], state
            )
    answer = find_answer(mark_front([*STEEP, *incomplete], DEFAULT_OBJECTIVES), state)
    assert answer.verdict.startswith("Complete: 3 of 4. Among these: Enough: lora middle")
    assert "anything among them is better" in answer.verdict
    assert ((answer.proposal, answer.command) == ("Next: finish the sweep:", AGAIN)) == finishes
    tuned = made("tuned", 4_000, around(80))
    assert not finished or answered(*STEEP, *RATES_OF_ONE, tuned).verdict.startswith("Enough:")


def test_one_configuration_among_others_that_run_has_no_probability() -> None:
    rows = mark_front([STEEP[0], *(replace(row, finished=1) for row in STEEP[1:])], DEFAULT_OBJECTIVES)
    assert not any("p_enough" in row.counts for row in rows)
    answer = find_answer(rows, state_of({"seeds": [0, 1, 2]}))
    assert (answer.kind, answer.configuration, answer.command) == ("unfinished", "", AGAIN)


def test_where_another_objective_is_not_exact_there_are_means_alone() -> None:
    objectives = {**DEFAULT_OBJECTIVES, "forgetting": "minimize"}
    uncertain = [replace(row, metrics=row.metrics | {"forgetting": row.score}) for row in STEEP]
    answer = find_answer(mark_front(uncertain, objectives), state_of({"objectives": objectives}))  # type: ignore[arg-type]
    assert (answer.kind, answer.configuration, answer.command) == ("means", "middle", "")
    assert answer.verdict.startswith("By the means: lora middle")


def test_what_is_cut_has_no_seconds_and_a_probability_of_being_enough() -> None:
    cut = replace(STEEP[1], counts={name: value for name, value in STEEP[1].counts.items() if name != "seconds"})
    rows = mark_front([STEEP[0], cut, STEEP[2]], {"score": "maximize", "seconds": "minimize"})
    assert ["p_enough" in row.counts for row in rows] == [True] * 3
    assert ["p_front" in row.counts for row in rows] == [True, False, True]


def test_the_end_of_another_rate_is_no_end_of_the_learning_rate() -> None:
    tuning = Tuning(3, at_end=("highest head_learning_rate",))
    assert "highest" not in answered(*STEEP[:2], replace(STEEP[2], tuning=tuning)).text
    tuning = replace(tuning, at_end=("highest learning_rate on a",))
    assert "highest learning_rate" in answered(*STEEP[:2], replace(STEEP[2], tuning=tuning)).text


@pytest.mark.parametrize(("ranks", "rates"), [([8], {"values": [0.0021, 0.0007, 0.0063]}), ([2, 8, 32], None)])
def test_rates_that_would_replace_those_of_finished_trials_are_not_proposed(ranks: list[int], rates: Any) -> None:
    """Where a block has no rate, each of its ranks has its own."""
    adapter = made("l", 9_000, around(79), rank=8, learning_rate=0.0021)
    space = [SPACE[0], {"method": "lora", "rank": {"values": ranks}}]
    answer = answered(made("Head alone", 0, around(80, 1), "head"), adapter, space=space)
    assert answer.changes.get("space.1.learning_rate") == rates


def test_a_proposal_has_the_price_of_all_that_its_block_adds() -> None:
    head, adapter = made("Head alone", 0, around(80, 1), "head"), made("l", 9_000, around(79), rank=8)
    space = [SPACE[0], SPACE[2] | {"rank": {"values": [2, 4, 8, 16]}}]
    prices = [answered(head, adapter, space=blocks, budget={"trials": 15}) for blocks in ([*SPACE], space)]
    assert ["(about 3 min)" in prices[0].proposal, "(about 12 min)" in prices[1].proposal] == [True, True]
    assert [answer.changes["budget.trials"] for answer in prices] == [15, 24]


def test_a_sweep_that_goes_on_until_it_is_answered_is_not_offered_seeds_that_it_does_not_train() -> None:
    level = [made(f"c{size}", size, around(90 + size / 9_000, 0.9, seeds=5)) for size in (1_000, 8_000)]
    proposals = [answered(*level, search=search).proposal for search in ({}, {"until": "answered"})]
    assert ["more seed" in proposal for proposal in proposals] == [True, False]


def test_time_is_the_sweeps_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    one_seed = [made("small", 1_000, [70]), replace(made("cut", 500, [60]), source="small"), made("large", 8_000, [90])]
    assert "about 2 min" in answered(*one_seed).proposal, "two seeds of two trainings of 30 s"
    monkeypatch.setattr(State, "pace", 4.0)
    assert "about 30 s" in answered(*one_seed).proposal


def test_a_seed_that_fell_is_named_with_what_few_seeds_cannot_show() -> None:
    rising = [made(f"r{place}", 1_000.0 * 2**place, around(score, seeds=5)) for place, score in enumerate((70, 80, 95.1, 95.2))]
    fallen = [replace(rising[0], scores=rising[0].scores | {("toy/sentiment", 4): 62.0}), *rising[1:]]
    sentence = "1 of 20 seeds fell by 8 points; 5 seeds of lora r2 cannot show that it will not."
    assert sentence in answered(*fallen, rule=Enough(within=2)).verdict
    assert "fell by" not in answered(*STEEP).verdict
    single = made("r9", 500, [20.0])
    assert sentence in answered(single, *fallen, rule=Enough(within=2)).verdict, "one seed cannot fall behind others"
    base = made("Base model", 0, [60.0] * 5, "head")
    base = replace(base, counts=base.counts | {"head_parameters": 0.0})
    assert sentence in answered(base, *fallen, rule=Enough(within=2)).verdict, "no seed of what is not trained is counted"


@pytest.mark.parametrize(("reasons", "why"), [((), ""), (("no memory\nat step 3",), " (no memory)")])
def test_an_added_seed_that_is_lost_is_counted_once_with_its_cuts(reasons: tuple[str, ...], why: str) -> None:
    lost = replace(STEEP[0], lost=(3,), reasons=reasons)
    verdict = answered(replace(lost, configuration="cut", label="cut", source="small"), lost, *STEEP[1:]).verdict
    assert f" 1 added seed failed or was stopped{why}, and what is left counts: lora small (seed 3)." in verdict


def test_more_rows_help_most_where_their_luck_is_larger_than_that_of_the_seeds() -> None:
    random, sweep = np.random.default_rng(3), list[Summary]()
    for place in range(4):
        own = random.normal(0, 20, 200)
        summary = made(f"c{place}", 1_000.0 * 2**place, around(80.0 + place))
        sweep.append(replace(summary, credits={key: own + random.normal(0, 5, 200) for key in summary.scores}))
    luck = 20**2 / 200
    assert helps_most(sweep, [luck / 3] * 4) == "examples"
    assert helps_most(sweep, [luck * 3] * 4) == "seeds"


@pytest.mark.parametrize(
    ("epoch", "best_step", "max_steps", "verdict", "changes", "select"),
    [
        (0.6, 40, 60, "The best trained for 0.6 of a pass over the rows of toy/sentiment, so", {"training.epochs": 3}, "best"),
        (0.6, 60, None, "The best trained for 0.6 of a pass over its rows and ", {"training.epochs": 3}, "best"),
        (3.0, 60, None, "The best still rose at its last step", {}, "best"),
        (3.0, 60, None, "Enough: ", {}, "last"),  # which is the last step, however the score ran
        (3.0, 40, None, "Enough: ", {}, "best"),
        (0.6, 40, 0, "The best trained for 0.6 of a pass over its rows, so", {}, "best"),  # its steps are its task's own
    ],
)
def test_what_trained_too_little_says_so_before_it_speaks_of_seeds(
    epoch: float, best_step: int, max_steps: int | None, verdict: str, changes: dict[str, Any], select: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(State, "pace", 1.0)
    training, chosen = {"max_steps": max_steps} if max_steps else {}, {"evaluate_every": 0.2, "select": select}
    own = {"task_training": {"toy/sentiment": {"max_steps": 60}}} if max_steps == 0 else {}
    tasks = {"toy/sentiment": epoch} | ({"toy/paraphrase": 10 * epoch} if max_steps == 60 else {})
    file = {"seeds": [0, 1, 2], "tasks": [*tasks], "training": training, "budget": {"wall_clock": "10min"}, **own}
    state, keys = state_of(file), list[str]()
    for row in STEEP:
        for task, ((_, seed), score) in itertools.product(tasks, row.scores.items()):
            metrics, facts = {"score": score, "search_score": score}, {"best_step": best_step}
            one = entry(row.label, metrics, task=task, seed=seed, counts=row.counts, facts=facts, **chosen)
            report = Reported(key=one.key, rows=[{"step": 60, "search_score": score}], epoch=tasks[task], total_steps=60)
            ended = Ended(result=replace(one.result, steps=60, seconds=30.0))
            keys.append(one.key)
            state = fold([Wanted(keys=[*keys], trials=[one.trial]), report, ended], state)
    answer = answer_of(state)[1]
    assert answer.verdict.startswith(verdict), answer.verdict
    longer = {"name": "s-longer", **changes, "budget.wall_clock": "3000s"}
    assert answer.changes == longer if changes else "name" not in answer.changes
    if epoch < 1:  # nine trainings of 30 s, for five times as many passes; those of a second task for half as many
        minutes = 22 if len(tasks) == 1 else 25
        assert answer.proposal.startswith(f"Next: train for 3 passes, in a sweep of its own (about {minutes} min)")
        assert bool(answer.command) == bool(changes)
