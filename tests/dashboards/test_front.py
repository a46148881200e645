"""The panel of the front, and what the page says of trials that run, failed or were stopped."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dashboards.frames import Frames
from dashboards.page import state_of
from dashboards.panels import View
from dashboards.panels.front import published_model, published_rows
from dashboards.store import SweepEntry
from orchestrator.record.events import Refused, Underway
from orchestrator.record.log import read_state
from tests.dashboards.synthetic import FakeRun, FakeSession, configuration, grid
from tests.dashboards.views import draw, full_view, rows_of, view_of
from tests.orchestrator.logged import SweepLog, entry
from tests.orchestrator.results.test_front import brute_front


def test_the_head_alone_stands_at_the_edge_of_a_logarithmic_axis() -> None:
    sizes = (("head", "head", 0, 60.0), ("a", "craft", 1024, 70.0), ("b", "craft", 4096, 72.0))
    runs = list[FakeRun]()
    for name, method, size, score in sizes:
        runs += configuration(name, method=method, scores={"toy": [score]}, parameters=size, facts={"metric": "accuracy"})
    spec = draw("front", view_of(("ranks", runs)))
    assert sorted(spec["values"]["v/trainable_parameters"]) == [512, 1024, 4096]
    assert spec["values"]["axis/score"]["title"]["text"] == "accuracy, %"
    axis = spec["values"]["axis/trainable_parameters"]
    assert axis["type"] == "log"
    assert (axis["tickvals"][:4], axis["ticktext"][:4]) == ([512, 2000, 5000, 1e4], ["0", "2k", "5k", "10k"])
    assert "The control, without an adapter, has 0 parameters and is at the left edge." in spec["help"]


def test_an_axis_of_scores_ends_at_100_unless_one_is_above() -> None:
    axes = [draw("front", view_of(("ranks", configuration("a", scores={"toy": [score]}))))["values"] for score in (90.0, 130.0)]
    assert [axis["axis/score"].get("maxallowed") for axis in axes] == [100, None]


def test_what_was_cut_is_on_the_front_but_teaches_nothing_of_training() -> None:
    sizes = ((1024, 60.0, 16), (4096, 70.0, 32))
    runs = [run for size, score, r in sizes for run in configuration(f"t{r}", scores={"toy": [score]}, parameters=size,
            params={"r2": r, "r3": r, "ranks": f"all,{r},{r}"})]  # fmt: skip
    cut = {"r2": 8, "r3": 8, "ranks": "all,8,8", "cut_to": "all,8,8"}
    view = view_of(("ranks", [*runs, *configuration("cut8", scores={"toy": [90.0]}, parameters=512, params=cut)]))
    assert "cut8" in draw("front", view)["values"]["id"]
    parallel = draw("parallel", view)
    assert "Whole adapters only" in parallel["note"]
    bands = [trace for trace in parallel["figure"]["data"] if trace.get("name") != "selected"]
    assert {trace["line"]["color"] for trace in bands} == {"ink"}, "colours are methods on this page"
    assert not any("cut8" in trace["customdata"] for trace in bands)
    assert next(column for column in draw("table", view)["columns"] if column["key"] == "p.ranks")["values"][0] == "all,8,8"


def test_fronts_of_all_pairs_are_what_brute_force_finds() -> None:
    values = draw("front", full_view())["values"]
    better = {key.removeprefix("step/"): "minimize" if step == "hv" else "maximize" for key, step in values.items()
              if key.startswith("step/")}  # fmt: skip
    assert len(better) >= 7
    for x, y in itertools.permutations(better, 2):
        points = np.array([values[f"v/{x}"], values[f"v/{y}"]], dtype=float).T
        expected = set(np.flatnonzero(brute_front(points, [better[x], better[y]])))
        chosen = values[f"front/{x}/{y}/0"]
        assert set(chosen) == expected
        along = [values[f"v/{x}"][index] for index in chosen]
        assert along == sorted(along)


def test_two_sweeps_keep_their_configurations_apart() -> None:
    values = draw("front", view_of(("one", grid()), ("two", grid())))["values"]
    assert len(set(values["id"])) == len(values["id"]) == 44
    for sweep in range(2):
        members = values[f"front/trainable_parameters/score/{sweep}"]
        assert {values["id"][index][:2] for index in members} == {f"{sweep}/"}


def test_published_rows_are_those_of_the_papers_tables() -> None:
    rows = published_rows()
    assert len(rows) == 38
    craft = next(row for row in rows if row["model"] == "LLaMA3-8B" and row["values"]["trainable_parameters"] == 67584)
    assert (craft["method"], craft["suite"]) == ("CRAFT", "commonsense")
    assert (craft["values"]["score"], craft["values"]["score/arc_easy"]) == (82.9, 90.3)
    assert all(row["source"] and "customary" in row["protocol"] for row in rows)
    for name, known in {"roberta-large": "RoBERTa-large", "meta-llama/Llama-2-7b-hf": "LLaMA2-7B", "gpt2": None}.items():
        assert published_model(name) == known
    # Those of the sweep's model are shown.
    runs = configuration("a", params={"model": "FacebookAI/roberta-base"}, scores={"mrpc": [80.0], "rte": [70.0]})
    spec = draw("front", view_of(("ranks", runs)))
    assert spec["choices"][2]["value"] == "RoBERTa-base"
    place = spec["values"]["published/RoBERTa-base/name"].index("VeRA")
    assert spec["values"]["published/RoBERTa-base/score/mrpc"][place] == 89.5
    about = spec["details"][spec["values"]["published/RoBERTa-base"][place]]
    assert dict(about["lines"])["averaged over"] == "6 tasks"


def test_a_configuration_has_the_state_of_its_trials_and_only_whole_ones_are_on_the_front() -> None:
    alone = ("running", "failed", "stopped")
    states = {"whole": "", "partial": "running", "waiting": "waiting", "incomplete": "failed"}
    runs = [run for state, last in states.items() for run in
            configuration(state, scores={"mrpc": [80.0, 1.0]}, states={("mrpc", 1): last} if last else {})]  # fmt: skip
    runs += [run for state in alone for run in configuration(state, states={("toy", 0): state})]
    view = view_of(("ranks", runs))
    known = {"whole": "finished", "partial": "running", "waiting": "waiting", "incomplete": "failed"}
    assert {row.id: row.state for row in view.configurations} == known | {name: name for name in alone}
    assert {row.id: row.value("score") for row in view.configurations}["incomplete"] == 80.0
    spec = draw("front", view)
    counted = (
        "Configurations: 2 running, 2 failed, 1 finished, 1 waiting for seeds, 1 stopped early. × is the mean so far of 3 "
    )
    assert spec["note"].startswith(counted)
    assert (spec["values"]["id"], spec["values"]["so far"]) == (["whole"], ["partial", "waiting", "incomplete"])
    traces = spec["figure"]["data"]
    rings = [trace for trace in traces if trace.get("marker", {}).get("symbol") == "circle-open"]
    assert rings == [], "a ring means that it may be on the front"
    begun = draw("front", view_of(("ranks", [run for run in runs if run.trial.configuration == "partial"])))
    assert begun["note"] == "Configurations: 1 running. × is the mean so far of 1 that are not complete."


def test_a_configuration_stopped_early_is_no_failure_and_its_spared_trials_are_over() -> None:
    runs = [FakeSession(planned=9, status="finished"), *configuration("a", scores={"mrpc": [80.0, 81.0, 82.0]})]
    for identity, first in (("b", "finished"), ("c", "failed")):
        states = {("mrpc", 0): first, ("rte", 0): "stopped", ("cola", 0): "stopped"}
        runs += configuration(identity, scores={task: [70.0] for task, _ in states}, states=states)
    view = view_of(("ranks", runs))
    assert {row.id: row.state for row in view.configurations} == {"a": "finished", "b": "stopped", "c": "failed"}
    said = "4/9 trainings done, 0 running, 1 failed, 4 stopped"
    assert state_of([], view)["status"] == said
    more = [FakeSession(planned=2), *configuration("d", scores={"rte": [1.0, 2.0, 3.0, 4.0]})]
    status = state_of([], view_of(("ranks", runs), ("more", more)))["status"]
    assert status.startswith(f"ranks: {said} · more: 4/4 trainings done, 0 running, 0 failed, ")


def test_the_page_says_what_trials_do_as_the_driver_last_reported_it() -> None:
    report = Underway(time=time.time() - 60, left=300.0, doing="scoring 300/872 (reported)")
    trials = configuration("a", scores={"rte": [1.0]}, states={("rte", 0): "running"})
    view = view_of(("ranks", [FakeSession(planned=9, underway=report), *trials]))
    now = view.sweeps[0].progress()
    assert now.seconds_left == pytest.approx(240.0, abs=30.0), "a minute has passed since"
    entries = [SweepEntry("ranks", "running")]
    state = state_of(entries, view)
    status = state["status"]
    assert state["running"]
    assert ([row.state for row in view.configurations], state["sweeps"][0]["status"]) == (["running"], "running")
    assert status.startswith("0/9 trainings done, 1 running (scoring 300/872 (reported)), 0 failed, ")
    assert re.search(r"about [34] min \d\d s left$", status), "as the terminal has it"
    silent = replace(report, time=time.time() - 3600)
    view = view_of(("ranks", [FakeSession(planned=9, underway=silent), *trials]))
    now, state = view.sweeps[0].progress(), state_of(entries, view)
    assert (now.seconds_left, now.doing) == (None, ""), "a driver that has been silent for an hour is gone"
    assert (state["running"], state["status"].rpartition(", ")[2]) == (False, "interrupted: its driver is gone")
    assert ([row.state for row in view.configurations], state["sweeps"][0]["status"]) == (["interrupted"], "interrupted")
    assert [trial.entry.phase for trial in view.trials] == ["waiting"]


def test_failures_give_their_reasons(tmp_path: Path) -> None:
    log, trial, other = SweepLog(tmp_path / "demo"), entry(8), entry(16)
    log.begin(trial, other)
    log.end(trial, "failed", error="its machine is gone")
    log.finish(other)
    names = {"configuration": "f" * 10, "label": "too large", "method": "craft", "protocol": "honest"}
    log.add(Refused, **names, parameters={}, counts={"trainable_parameters": 1e6}, reason="above max 40,000")
    view = View([Frames("demo", read_state(tmp_path / "demo" / "log.jsonl"))])
    assert "1 dropped as infeasible" in draw("front", view)["note"]
    rows = [[1, "trial", "its machine is gone"], [1, "dropped before training", "above max 40,000"]]
    assert [row[:3] for row in rows_of("failures", view)] == rows


def test_where_the_time_went_is_one_bar_a_method_of_the_trainings_alone() -> None:
    runs = configuration("a", scores={"mrpc": [80.0, 81.0]}) + configuration("b", method="lora", scores={"mrpc": [70.0]})
    phases = {"a-mrpc-0": {"start": 10.0, "train": 60.0}, "a-mrpc-1": {"train": 30.0}, "b-mrpc-0": {"train": 45.0, "cut": 5.0}}
    for run in runs:
        if spent := phases.get(run.trial.key):
            run.facts["phases"] = spent
    drawn = draw("time", view_of(("ranks", runs)))
    minutes = {bar["name"]: bar["x"] for bar in drawn["figure"]["data"]}
    assert minutes == {"starting": [0.166667, 0], "training": [1.5, 0.75], "cutting": [0, 0.0833333]}
    assert drawn["note"] == "Mean of a training: craft 50 s, lora 50 s."
