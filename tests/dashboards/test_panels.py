"""Each panel's data against an independent computation, and every row of PANELS against what all panels promise."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from craft.scoring.predictions import CREDITS, credits_of
from dashboards.frames import Frames
from dashboards.page import as_json, everything_in, state_of
from dashboards.panels import PANELS, View
from dashboards.panels.base import moving_together, parameters_that_differ
from orchestrator.plan.trial import Why
from orchestrator.record.events import Decided
from orchestrator.record.state import State
from orchestrator.results.metrics import colours
from orchestrator.review.comparing import compare_sweeps
from orchestrator.review.past_sweep import find_sweep
from tests.dashboards.synthetic import FakeRun, FakeSession, StoreAt, configuration
from tests.dashboards.views import VIEWS, candidate, draw, frames_of, full_view, read_feed, rows_of, see, view_of
from tests.golden import check_golden

TAKE = "take ranks --pick a --to adapters/a"


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_draws_or_says_why_not(panel: str, view: str) -> None:
    spec = json.loads(as_json(PANELS[panel].draw(see(view))))
    if "empty" in spec:
        assert len(spec["empty"]) > 10
        return
    if "pairs" in spec:
        count = len(spec["pairs"]["id"])
        assert [len(row) for row in spec["pairs"]["said"]] == list(range(count - 1, -1, -1))
        return
    if "table" in spec:
        assert {len(column["values"]) for column in spec["table"]["columns"]} == {len(spec["table"]["id"])}
        return
    chosen = {choice["name"]: [option["value"] for option in choice["options"]] for choice in spec["choices"]}
    assert all(choice["value"] in chosen[choice["name"]] for choice in spec["choices"])
    for combination in itertools.islice(itertools.product(*chosen.values()), 200):
        for trace in spec["figure"]["data"]:
            lengths = {
                len(got)
                for key in ("x", "y", "customdata")
                if (got := resolved(trace.get(key), spec["values"], dict(zip(chosen, combination, strict=True)))) is not None
            }
            assert len(lengths) <= 1


def resolved(node: Any, values: dict[str, Any], chosen: dict[str, str]) -> list[Any] | None:
    """What the page's script makes of a reference (the same rule, written again)."""
    if not isinstance(node, dict):
        return node
    fill = lambda key: "".join(chosen.get(part, part) for part in key.replace("{", "\0").replace("}", "\0").split("\0"))  # noqa: E731
    found = values.get(fill(node["$"]))
    if found is None or "pick" not in node:
        return found
    return [found[index] for index in values.get(fill(node["pick"]), [])]


@pytest.mark.parametrize("sizes", [{"a": ",10", "b": ",99"}, {}])
def test_a_table_of_trainings_is_a_page(sizes: dict[str, str], tmp_path: Path) -> None:
    rows = [
        f"{name},{score + seed},{seed}{sizes.get(name, '')}" for name, score in (("a", 80), ("b", 90)) for seed in (0, 1, 2)
    ]
    (tmp_path / "runs.csv").write_text("\n".join(["configuration,accuracy,seed" + (",params" if sizes else ""), *rows]))
    content = everything_in(tmp_path / "runs.csv")
    assert content["state"]["status"] == "finished · 6/6 trainings done, 0 running, 0 failed"
    assert "Enough: b" in content["state"]["answers"][0]["text"]
    assert not any("could not be drawn" in spec.get("empty", "") for spec in content["specs"].values())
    columns = {column["label"]: column["values"] for column in content["specs"]["table"]["table"]["columns"]}
    assert (columns["Configuration"], columns.get("# Params")) == (["b", "a"], [99, 10] if sizes else None)
    assert not any(said in content["specs"]["front"]["help"] for said in ("has 0 parameters", "no rows for unknown"))
    (tmp_path / "runs.csv").write_text("configuration,accuracy\na,80\na,81\n")
    with pytest.raises(ValueError, match="`page` has no options for that: rename the columns"):
        everything_in(tmp_path / "runs.csv")


def test_a_proposals_reason_is_shown_before_there_is_an_answer() -> None:
    state = replace(State(), decisions=(Decided(why="a smaller rate, by anna", seeds={"a": [0]}),))
    view = View([Frames("ranks", state)])
    assert [row["text"] for row in state_of([], view)["answers"]] == ["Added: a smaller rate, by anna"]


def test_the_table_is_as_the_golden_file_has_it() -> None:
    """It has a column for what differs, best score first; what all configurations share is said once, and what some lack is
    not said of all."""
    scores = {"mrpc": [80.0, 82.0], "rte": [70.0, 71.0]}
    chances = {"p_front": 0.9, "p_enough": 0.95, "normalized": 88.125, "forgetting": 0.0125}
    runs = configuration("tuned00000", scores=scores, params={"rank": 4, "learning_rate": 1e-3}, extra=chances)
    params = {"rank": 8, "learning_rate": 3e-3, "alpha": 16}
    runs += configuration("fixed00000", method="lora", scores=scores, params=params, parameters=2000,
                          extra={"p_front": 0.3})  # fmt: skip
    runs += configuration("failed0000", states={("mrpc", 0): "failed"}, scores={"mrpc": [0.0]})
    runs += configuration("partial000", scores={"mrpc": [81.0, 1.0]}, states={("mrpc", 1): "running"})
    table = draw("table", view_of(("ranks", runs)))
    assert table["label"] == table["columns"][0]["values"]
    shown = {key: value for key, value in table.items() if key != "label"} | {"commands": table["commands"][:1]}
    check_golden("page/table.json", json.dumps(shown, indent=1, ensure_ascii=False))


def test_what_only_tunes_is_in_no_table_and_no_front_but_was_paid_for() -> None:
    runs = configuration("tuned00000", scores={"toy": [80.0, 82.0]}, params={"learning_rate": 0.01})
    for place, rate in enumerate((0.001, 0.01)):
        runs += candidate(f"candidate{place}", "tuned00000", scores={"toy": [99.0]}, params={"learning_rate": rate})
    view = view_of(("ranks", runs))
    plain = draw("table", view)
    columns = {column["key"]: column["values"] for column in plain["columns"]}
    assert (plain["id"], columns["m.score"]) == (["tuned00000"], [81.0])
    assert columns["tuning"] == ["learning_rate 0.01, 2 trials, 1 min 40 s"]
    assert len(view.trials) == 4
    assert "v/tuning_seconds" in draw("front", view)["values"]
    assert "tuning" not in [column["key"] for column in draw("table", full_view())["columns"]]


def test_importance_finds_the_parameter_that_decides() -> None:
    rng = np.random.default_rng(0)
    runs: list[FakeRun] = []
    for index in range(40):
        rate, dropout = float(rng.choice([1e-4, 1e-3, 1e-2])), float(rng.uniform(0, 0.1))
        score = {1e-4: 60.0, 1e-3: 80.0, 1e-2: 70.0}[rate] + rng.normal(0, 0.5)
        params = {"learning_rate": rate, "dropout": dropout, "layers": (None, 2, "all")[index % 3]}
        runs += configuration(f"{index:04}", params=params, scores={"toy": [score]})
    view = view_of(("ranks", runs))
    values = draw("importance", view)["values"]
    assert dict(zip(values["name/craft"], values["share/craft"], strict=True))["learning_rate"] > 0.8
    assert "empty" in draw("importance", view_of(("ranks", runs[: len(runs) // 5]))), "8 configurations tell nothing"


def test_parameters_that_always_change_together_are_one() -> None:
    """The run that an adapter started from is no hyperparameter."""
    params = [{"r2": r, "r3": r, "alpha": 2 * r, "dropout": drop} for r in (8, 16) for drop in (0.0, 0.1)]
    runs = [run for at, one in enumerate(params) for run in configuration(str(at), params=one | {"warm_start": f"run-{at}"})]
    rows = view_of(("ranks", runs)).configurations
    assert set(parameters_that_differ(rows)) == {"r2", "r3", "alpha", "dropout"}
    assert moving_together(rows) == {"r2": "r2, r3, alpha", "dropout": "dropout"}


@pytest.mark.slow
def test_a_pair_of_the_page_is_that_of_the_command_where_some_trials_have_no_stored_answers(
    store_at: StoreAt,
) -> None:
    """Nothing has finished on a second task either, so how seeds spread is known over the shared task alone."""
    random, runs = np.random.default_rng(0), list[FakeRun]()
    for place, name in enumerate("abcd"):
        scores = {"toy": [80.0 + place, 81.0 + 2 * place, 80.5 - place]}
        for number, run in enumerate(configuration(name, scores=scores, label=f"craft {name}")):
            own = random.normal(0, 20, 200)
            if number:  # the first seed of each lacks its answers
                run.facts["credits"] = credits_of(lambda rows, own=own: own[rows].mean(), 200)[CREDITS]  # type: ignore[misc]
            runs.append(run)
    runs += configuration("e", scores={"other": [50.0]}, states={("other", 0): "failed"})
    store = store_at("ranks", [FakeSession(status="finished"), *runs])
    plain = draw("pair", View([read_feed(store, "ranks").frames]))
    record = find_sweep("ranks", store.uri)
    for place, first in enumerate(plain["id"]):
        for second, said in zip(plain["id"][place + 1 :], plain["said"][place], strict=True):
            compared = compare_sweeps(record, record, first, second)
            assert said == compared.sentence.replace(" (ranks)", ""), "as the command says it"
            assert "on new examples" in said


def test_pairs_of_two_sweeps_are_left_to_the_command() -> None:
    plain = draw("pair", view_of(("one", configuration("a")), ("two", configuration("a"))))
    assert plain["said"][0] == ["They are of one and two. The command compares them if their scores mean the same."]
    assert plain["sides"] == {"0/a": ["one", "a"], "1/a": ["two", "a"]}


@pytest.mark.parametrize(
    ("given", "uri", "commands"),
    [
        ({}, "", [TAKE, "cut ranks --pick a --size parameters:500 --to adapters/a-cut", "more ranks"]),
        ({"method": "head", "parameters": 0}, "", [TAKE, "more ranks"]),
        ({"method": "full"}, "http://t:5000", [f"{TAKE} --tracking-uri http://t:5000", "more ranks"]),
        ({"states": {("toy", 0): "failed"}}, "", []),
    ],
    ids=["an adapter", "the head alone", "whole weights in a server's store", "nothing finished"],
)  # fmt: skip
def test_a_configuration_shows_the_commands_that_apply_to_it(given: dict[str, Any], uri: str, commands: list[str]) -> None:
    view = replace(view_of(("ranks", configuration("a", **given))), uri=uri)
    assert [command for _, command in draw("table", view)["commands"][0]] == [f"craft-sweeps {command}" for command in commands]


def test_the_command_that_continues_a_sweep_names_its_folder() -> None:
    frames = frames_of("ranks", configuration("a"))
    assert frames.state.started is not None
    elsewhere = replace(frames.state.started, folder="/a disk/ranks")
    view = View([replace(frames, state=replace(frames.state, started=elsewhere))])
    assert draw("table", view)["commands"][0][-1][1] == "craft-sweeps more '/a disk/ranks'"


def test_curves_are_read_from_the_store_and_stopped_ones_end_where_they_stopped(store_at: StoreAt) -> None:
    runs = configuration("a", scores={"toy": [80.0, 75.0]}, states={("toy", 1): "stopped"})
    broken = configuration("b", states={("toy", 0): "failed"})
    broken[0].curve.clear()
    store = store_at("ranks", [FakeSession(), *runs, *broken])
    spec = draw("curves", View([read_feed(store, "ranks").frames]))
    values = spec["values"]
    assert spec["note"] == "Trials: 1 stopped early (|), 1 with no evaluation yet."
    assert values["x/search_score/toy/0"] == [0, 1, 2, None, 0, 1, None]
    assert values["y/search_score/toy/0"] == [74, 78, 80, None, 69, 73, None]
    assert (values["x/search_score/toy/stopped"], values["y/search_score/toy/stopped"]) == ([1], [73])


def test_a_long_curve_is_drawn_as_it_was_logged_and_named_at_its_end() -> None:
    losses = [float(value) for value in np.random.default_rng(0).normal(1.0, 0.3, 100)]
    runs = [*configuration("a", scores={"toy": [80.0, 81.0]}), *configuration("b", extra={"train_loss": 0.1})]
    for run in runs:
        run.curve = {"search_score": [70.0, 80.0], "train_loss": losses}
    spec = draw("curves", view_of(("ranks", runs)))
    assert spec["values"]["y/train_loss/toy/0"][:100] == pytest.approx(losses, rel=1e-5)
    assert spec["values"]["y/search_score/toy/0"][:3] == [70, 80, None]
    assert spec["values"]["text/train_loss/toy/name"] == ["craft a", "craft b", ""], "a name for each, and room beyond it"
    assert spec["values"]["x/train_loss/toy/name"] == [99, 99, pytest.approx(1.2 * 99)]


def test_what_was_evaluated_once_or_cut_is_no_curve() -> None:
    trained, cut = configuration("a"), configuration("b", params={"cut_to": "parameters:9"})
    for run in (*trained, *cut):
        run.curve = {"search_score": [80.0], "train_loss": [0.5, 0.1]}
    values = draw("curves", view_of(("ranks", [*trained, *cut])))["values"]
    assert {key: ids for key, ids in values.items() if key.endswith("toy/0") and key.startswith("id/")} == {
        "id/train_loss/toy/0": ["a", "a", None]
    }


def test_methods_keep_their_colours() -> None:
    assert colours(["lora", "craft"])["craft"] == colours(["craft", "vera", "mine"])["craft"]
    assert colours(["bitfit"]) == {"bitfit": colours(["adalora", "bitfit", "head", "mine"])["bitfit"]}
    assert colours(["mine"]) == {"mine": colours(["craft", "lora", "mine"])["mine"]}
    for many in (["craft", "lora", "mine", "yours"], [f"method {number}" for number in range(14)]):
        assert len(set(colours(many).values())) == len(many)


def test_mistakes_of_the_answer_are_named_with_how_many_others_make_them() -> None:
    def lines(answers: str) -> list[dict[str, Any]]:
        rows = enumerate(zip("aab", answers, strict=True), 1)
        return [
            {"row": row, "label": label, "answer": answer, "right": label == answer, "margin": float(row), "text": f"t{row}"}
            for row, (label, answer) in rows
        ]

    runs = configuration("small", scores={"toy": [60.0]}, extra={"trainable_parameters": 10})
    runs += configuration("large", scores={"toy": [90.0]}, extra={"trainable_parameters": 99})
    (cut,) = configuration("large")
    cut.trial = replace(cut.trial, key="cut", task="to be cut", why=Why("source", "large"))
    view = view_of(("ranks", [*runs, cut]), ("other-rows", runs))
    answers = {"large": lines("abb"), "small": lines("aba")}
    view = replace(view, predictions=lambda trial: {"reported": answers[trial.entry.trial.configuration]})
    assert rows_of("confusions", view) == [["toy", "a", 2, 0.5, "b 1"], ["toy", "b", 1, 1.0, ""]]
    assert rows_of("mistakes", view) == [["toy", 2, "a", "b", None, 2, "t2"]]
    assert "wrong of 2" in [column["label"] for column in draw("mistakes", view)["columns"]]
    answers |= {name: [{"row": 1, "label": 1.0, "answer": 3.0, "text": "t1"}] for name in answers}
    assert rows_of("mistakes", view) == [["toy", 1, 1.0, 3.0, None, "t1"]], "how many are wrong says nothing of values"
