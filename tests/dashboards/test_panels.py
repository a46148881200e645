"""Each panel's data against an independent computation, and every row of PANELS against what all panels promise."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dashboards.content import state_of
from dashboards.frames import Frames, RunRow, build_frames
from dashboards.page import as_json
from dashboards.panels import PANELS, View, make_view, spec_of
from dashboards.panels.base import colours, parameters_that_differ, text
from dashboards.panels.curves import data as curves_data
from dashboards.panels.energy import rank_correlation
from dashboards.panels.front import data as front_data
from dashboards.panels.front_figure import draw as front_draw
from dashboards.panels.progress import failures_data, pack, progress_data, progress_draw, timeline_data
from dashboards.panels.slices import heat_data, slices_data
from dashboards.panels.spending import volume_data
from dashboards.panels.table import data as table_data
from dashboards.published import comparison_rows, literature, published_model, published_rows
from dashboards.store import Store
from orchestrator.results.pareto import hypervolume, knee, log_axes, reference_point
from tests.dashboards.synthetic import FakeRun, configuration, grid, sweep_run


def frames_of(name: str, runs: list[FakeRun]) -> Frames:
    """Tables of runs that never saw a store."""
    rows = [
        RunRow(
            run_id=f"{index:032x}",
            experiment_id="1",
            status=run.status,
            started=run.started,
            ended=run.ended,
            tags={f"craft.{key}": value for key, value in {"kind": run.kind, **run.tags}.items()},
            params={key: str(value) for key, value in run.params.items()},
            metrics=run.metrics | {key: values[-1] for key, values in run.curve.items()},
        )
        for index, run in enumerate(runs)
    ]
    return build_frames(name, "1", rows)


def view_of(*sweeps: tuple[str, list[FakeRun]], curves: Any = None) -> View:
    frames = [frames_of(name, runs) for name, runs in sweeps]
    return make_view(frames, published_rows(), curves=curves or (lambda runs, metric: {run: [(1, 2.0)] for run, _ in runs}))


def full_view() -> View:
    runs = [sweep_run("ranks", planned=80), *grid("ranks", tasks=("mrpc", "rte"))]
    runs += configuration("failed0000", states={("toy", 0): "failed"}, summarize=False)
    runs += configuration("partial000", scores={"mrpc": [80.0, 1.0]}, states={("mrpc", 1): "running"}, summarize=False)
    return view_of(("ranks", runs))


VIEWS: dict[str, Callable[[], View]] = {
    "nothing yet": lambda: view_of(("ranks", [])),
    "only started": lambda: view_of(("ranks", [sweep_run("ranks", planned=3)])),
    "one trial running": lambda: view_of(("ranks", configuration("a", states={("toy", 0): "running"}, summarize=False))),
    "one done": lambda: view_of(("ranks", configuration("a"))),
    "all failed": lambda: view_of(("ranks", configuration("a", states={("toy", 0): "failed"}, summarize=False))),
    "equal scores": lambda: view_of(("ranks", [run for i in range(6) for run in configuration(str(i), params={"rank": i})])),
    "full": full_view,
    "two sweeps": lambda: view_of(("ranks", grid("ranks")), ("again", grid("again", tasks=("mrpc", "rte")))),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_draws_or_says_why_not(panel: str, view: str) -> None:
    spec = json.loads(as_json(spec_of(PANELS[panel], VIEWS[view]())))
    if "empty" in spec:
        assert len(spec["empty"]) > 10
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
            assert len(lengths) <= 1 or trace["type"] == "heatmap"


def resolved(node: Any, values: dict[str, Any], chosen: dict[str, str]) -> list[Any] | None:
    """What the page's script makes of a reference (the same rule, written again)."""
    if not isinstance(node, dict):
        return node
    fill = lambda key: "".join(chosen.get(part, part) for part in key.replace("{", "\0").replace("}", "\0").split("\0"))  # noqa: E731
    found = values.get(fill(node["$"]))
    if found is None or "pick" not in node:
        return found
    return [found[index] for index in values.get(fill(node["pick"]), [])]


def test_areas_are_told_below_the_front_for_each_sweep() -> None:
    sizes = (("a", 1024, 60.0), ("b", 4096, 70.0), ("c", 4096, 66.0))
    runs = [run for name, size, score in sizes for run in configuration(name, scores={"toy": [score]}, parameters=size)]
    words = "rea under score against log2 parameters (AURAC): craft 65.00 (1,024 to 4,096, 2 sizes)."
    assert f" A{words}" in spec_of(PANELS["front"], view_of(("ranks", runs)))["note"]
    assert f" Again: a{words}" in spec_of(PANELS["front"], view_of(("ranks", runs), ("again", runs)))["note"]


def test_what_was_cut_is_on_the_front_but_teaches_nothing_of_training() -> None:
    sizes = ((1024, 60.0, 16), (4096, 70.0, 32))
    runs = [run for size, score, r in sizes for run in configuration(f"t{r}", scores={"toy": [score]}, parameters=size,
            params={"r2": r, "r3": r})]  # fmt: skip
    cut = {"r2": 8, "r3": 8, "cut_to": "all,8,8"}
    view = view_of(("ranks", [*runs, *configuration("cut8", scores={"toy": [90.0]}, parameters=512, params=cut)]))
    assert "cut8" in front_data(view)["id"]
    note = spec_of(PANELS["front"], view)["note"]
    assert "craft 65.00 (1,024 to 4,096, 2 sizes)" in note, "the cut one is no trained size"
    assert 8 not in slices_data(view)["columns"]["r2"]
    assert next(one for one in table_data(view)["columns"] if one["key"] == "p.r2")["values"][0] == 8


def test_fronts_of_all_pairs_are_what_brute_force_finds() -> None:
    plain = front_data(full_view())
    better = {metric["name"]: metric["better"] for metric in plain["metrics"]}
    assert len(plain["fronts"]) == len(better) >= 7
    for x, y in itertools.permutations(better, 2):
        costs = np.array(
            [
                [value if better[name] == "minimize" else -value for name, value in ((x, a), (y, b))]
                if None not in (a, b)
                else [np.nan] * 2
                for a, b in zip(plain["values"][x], plain["values"][y], strict=True)
            ]
        )
        expected = {
            index
            for index, point in enumerate(costs)
            if np.isfinite(point).all() and not any((other <= point).all() and (other < point).any() for other in costs)
        }
        chosen = plain["fronts"][x][y][0]
        assert set(chosen) == expected
        along = [plain["values"][x][index] for index in chosen]
        assert along == sorted(along)


@pytest.mark.parametrize(
    ("sizes", "scores", "best"),
    [([12504, 49368, 196824, 331776], [42.4, 48.3, 59.9, 58.5], "c2"), ([1e3, 2e3, 1e6], [40.0, 70.0, 75.0], "c1")],
    ids=["bends the wrong way", "has a corner"],
)
def test_the_pages_knee_is_the_sweeps(sizes: list[float], scores: list[float], best: str) -> None:
    runs = [
        run
        for index, (size, score) in enumerate(zip(sizes, scores, strict=True))
        for run in configuration(f"c{index}", parameters=int(size), scores={"toy": [score]})
    ]
    sweeps = knee(log_axes(np.column_stack([scores, sizes]), [False, True]), ["maximize", "minimize"])
    plain = front_data(view_of(("ranks", runs)))
    assert plain["knee"][0] == f"c{sweeps}" == best


def test_the_page_marks_what_may_be_on_the_front() -> None:
    runs = configuration("sure", parameters=100, scores={"toy": [80.0, 81.0]}, extra={})
    runs += configuration("close", parameters=200, scores={"toy": [79.9, 80.1]})
    runs += configuration("worse", parameters=300, scores={"toy": [60.0, 61.0]})
    view = view_of(("ranks", runs))
    plain = front_data(view)
    assert [plain["id"][index] for index in plain["possible"]["trainable_parameters"]["score"]] == ["close"]
    assert (table_data(view)["front"], table_data(view)["possible"]) == (["sure"], ["close"])


def test_partial_and_failed_configurations_are_counted_but_on_no_front() -> None:
    plain = front_data(full_view())
    assert plain["counts"] == {
        "done": 22,
        "partial": 1,
        "incomplete": 0,
        "running": 0,
        "failed": 1,
        "stopped": 0,
        "interrupted": 0,
        "infeasible": 0,
    }
    assert "partial000" not in plain["id"]
    assert plain["partial"]["id"] == ["partial000"]


def test_a_configuration_stopped_early_is_no_failure_and_its_spared_trials_are_over() -> None:
    def incomplete(identity: str, **states: str) -> list[FakeRun]:
        """With three trials planned, of which those of `states` ran."""
        ran = {(task, 0): state for task, state in states.items()}
        runs = configuration(identity, scores={task: [70.0] for task in states}, states=ran, summarize=False)
        tally = {f"trials_{state}": float(list(states.values()).count(state)) for state in ("failed", "stopped")}
        tally["trials_stopped"] += 3 - len(states)
        status = "failed" if tally["trials_failed"] else "stopped"
        tags = {"sweep": "ranks", "configuration": identity, "label": identity, "status": status}
        return [*runs, FakeRun("configuration", tags, {}, {"trials_planned": 3.0, **tally})]

    runs = [sweep_run("ranks", planned=9, status="finished"), *configuration("a", scores={"mrpc": [80.0, 81.0, 82.0]})]
    runs += incomplete("b", mrpc="finished", rte="stopped") + incomplete("c", mrpc="failed", rte="stopped")
    view = view_of(("ranks", runs))
    assert dict(zip(view.configurations["label"], view.configurations["state"], strict=True)) == {
        "craft a": "done",
        "b": "stopped",
        "c": "failed",
    }
    counts = {"finished": 4, "running": 0, "stopped": 4, "failed": 1, "to come": 0}
    assert progress_data(view)["groups"][0]["counts"] == counts
    assert state_of([], [], view)["status"] == "9 of 9 trials done · 1 failed"
    more = [sweep_run("more", planned=2), *configuration("d", sweep="more", scores={"rte": [1.0, 2.0, 3.0, 4.0]})]
    assert state_of([], [], view_of(("ranks", runs), ("more", more)))["status"] == "13 of 13 trials done · 1 failed"


def test_the_page_says_what_trials_do_as_the_driver_last_said_it() -> None:
    told = {"left": 300.0, "more": 2, "time": time.time() * 1000 - 60_000}
    told["trials"] = [{"name": "LoRA r8 · rte · seed 0", "phase": "scoring 300/872 (reported)", "left": 250.0}]
    runs = [sweep_run("ranks", planned=9), *configuration("a", scores={"rte": [1.0]}, states={("rte", 0): "running"})]
    runs[0].tags["underway"] = json.dumps(told)
    (group,) = progress_data(view_of(("ranks", runs)))["groups"]
    assert group["left_s"] == pytest.approx(240.0, abs=30.0), "a minute has passed since"
    note = progress_draw({"groups": [group]})["note"]
    assert "LoRA r8 · rte · seed 0: scoring 300/872 (reported), about 3 min left. And 2 more." in note
    runs[0].tags["underway"] = json.dumps(told | {"time": time.time() * 1000 - 3_600_000})
    (group,) = progress_data(view_of(("ranks", runs)))["groups"]
    assert group["underway"] is None, "a driver that has been silent for an hour is gone"


def test_the_run_that_an_adapter_started_from_is_no_hyperparameter() -> None:
    runs = [run for name in "abcd" for run in configuration(name, params={"warm_start": f"run-{name}", "rank": ord(name)})]
    assert parameters_that_differ(view_of(("ranks", runs)).configurations) == ["rank"]


def test_published_rows_are_those_of_the_papers_tables() -> None:
    rows = published_rows()
    assert len(rows) == 38
    craft = rows[(rows["model"] == "LLaMA3-8B") & (rows["method"] == "CRAFT") & (rows["trainable_parameters"] == 67584)].iloc[0]
    assert (craft["average"], craft["score/arc_easy"], craft["suite"]) == (82.9, 90.3, "commonsense")
    assert rows["source"].notna().all()
    assert rows["protocol"].str.contains("customary").all()
    for name, known in {"roberta-large": "RoBERTa-large", "meta-llama/Llama-2-7b-hf": "LLaMA2-7B", "gpt2": None}.items():
        assert published_model(name) == known


def test_published_rows_of_the_sweeps_model_are_shown() -> None:
    runs = configuration("a", params={"model": "FacebookAI/roberta-base"}, scores={"mrpc": [80.0], "rte": [70.0]})
    plain = front_data(view_of(("ranks", runs)))
    assert plain["published"]["shown"] == "RoBERTa-base"
    vera = next(row for row in plain["published"]["rows"] if row["method"] == "VeRA" and row["model"] == "RoBERTa-base")
    assert (vera["values"]["score/mrpc"], vera["averaged"]) == (89.5, "6 tasks")


def test_the_front_of_the_published_comparison_is_the_known_one() -> None:
    """Read off the source's own files, apart from this project (points of accuracy by trainable parameters)."""
    known = {28672: 32.1, 121856: 35.6, 229376: 39.7, 280000: 40.3, 630784: 45.5, 2294656: 46.6, 5456808: 50.9, 9175040: 51.3}
    known |= {64: 0.5, 3584: 1.2, 6144: 24.6, 9485280: 52.6}
    rows = comparison_rows().sort_values(["trainable_parameters", "average"], ascending=[True, False])
    front = rows[rows["average"] > rows["average"].cummax().shift(fill_value=-1.0)]
    found = {int(row["trainable_parameters"]): round(row["average"], 1) for _, row in front.iterrows()}
    assert len(rows) == 63
    assert found == known


def test_rows_of_the_comparison_say_that_they_are_of_another_model_and_protocol() -> None:
    view = view_of(("ranks", configuration("a", params={"model": "meta-llama/Llama-3.2-3B"}, scores={"rte": [70.0]})))
    plain = front_data(replace(view, published=literature()))
    assert plain["published"]["shown"] == "none", "no sweep here trains what they were trained on"
    spec = front_draw(plain)
    said = spec["values"]["published/Llama-3.2-3B/says"]
    assert all(word in said for word in ("MetaMathQA to GSM8K", "one seed (0)", "untuned", "not of this sweep"))
    labels = spec["values"]["published/Llama-3.2-3B/name"]
    assert len(labels) == 63
    assert {one for one in labels if one} >= {"BEFT", "FRoD", "Lily", "WaveFT"}
    assert not {"LoRA", "HiRA"} & set(labels), "one is beaten, and the other's name would lie over Lily's"
    lora = next(row for row in plain["published"]["rows"] if row["method"] == "LoRA rank32")
    card = dict(spec["details"][lora["id"]]["lines"])
    assert (card["score"], card["forgetting"], card["GPU memory, most reserved (bytes)"]) == (47.84, 0.05, 22292725760)
    assert "Apache-2.0" in card["source"]
    assert "huggingface/peft" in card["source"]


def test_table_has_only_the_columns_that_differ() -> None:
    plain = table_data(full_view())
    keys = [column["key"] for column in plain["columns"]]
    assert {"p.r2", "p.learning_rate", "p.projections", "m.score/mrpc", "m.score"} <= set(keys)
    assert "p.model" not in keys
    assert ["model", "sentence-transformers/all-MiniLM-L6-v2"] in plain["shared"]
    scores = next(column for column in plain["columns"] if column["key"] == "m.score")["values"]
    present = [score for score in scores if score is not None]
    assert scores[: len(present)] == present == sorted(present, reverse=True)


def test_the_table_says_what_each_tuning_took() -> None:
    tuned = configuration("tuned00000", extra={"tuning_trials": 6.0, "tuning_seconds": 75.0})
    tuned += configuration("fixed00000", extra={"tuning_trials": 0.0, "tuning_seconds": 0.0}) + configuration("running000")
    plain = table_data(view_of(("ranks", tuned)))
    (column,) = (one for one in plain["columns"] if "uning" in one["label"])
    told = dict(zip(plain["id"], column["values"], strict=True))
    assert told == {"tuned00000": "6 trials, 1 min 15 s", "fixed00000": "not tuned", "running000": ""}
    assert "tuning" not in [one["key"] for one in table_data(full_view())["columns"]]
    assert "tuning_seconds" in [one["name"] for one in front_data(view_of(("ranks", tuned)))["metrics"]]


def test_lanes_never_overlap_and_are_as_few_as_possible() -> None:
    rng = np.random.default_rng(2)
    began = np.sort(rng.uniform(0, 100, 80))
    ended = began + rng.uniform(0, 20, 80)
    lanes = np.array(pack(began, ended))
    for lane in set(lanes):
        of_lane = lanes == lane
        assert (began[of_lane][1:] >= ended[of_lane][:-1]).all()
    concurrency = max(int(((began <= moment) & (ended > moment)).sum()) for moment in began)
    assert max(lanes) + 1 == concurrency


def test_progress_counts_what_is_to_come_and_failures_give_reasons() -> None:
    view = full_view()
    counts = progress_data(view)["groups"][0]["counts"]
    trials = 22 * 6 + 1 + 2
    assert counts == {"finished": 22 * 6 + 1, "running": 1, "stopped": 0, "failed": 1, "to come": max(0, 80 - trials)}
    assert failures_data(view)["rows"][0][:3] == [1, "trial", "NaN loss at step 3"]


def test_timeline_of_a_sweep_that_was_killed_does_not_grow() -> None:
    runs = configuration("a", scores={"toy": [1.0, 2.0]}, states={("toy", 1): "running"}, summarize=False)
    plain = timeline_data(view_of(("ranks", [sweep_run("ranks", status="interrupted"), *runs])))
    assert max(start + length for start, length in zip(plain["start"], plain["length"], strict=True)) <= 2


def test_hypervolume_grows_to_that_of_all_points() -> None:
    view = full_view()
    group = volume_data(view)["groups"][0]
    done = view.configurations[view.configurations["state"] == "done"]
    points = log_axes(done[["m.trainable_parameters", "m.score"]].to_numpy(dtype=float), [True, False])
    whole = hypervolume(points, ["minimize", "maximize"], reference_point(points, ["minimize", "maximize"]))
    assert group["volume"][-1] == pytest.approx(whole, rel=1e-4)
    assert group["volume"] == sorted(group["volume"])
    assert group["hours"][-1] == pytest.approx(22 * 6 * 50 / 3600, rel=0.03)


def test_heat_map_holds_the_best_of_each_pair_of_ranks() -> None:
    view = full_view()
    frame = view.configurations
    maps = heat_data(view)["maps"]
    assert set(maps) == {"q,v", "q,k,v,o"}
    chosen = frame[(frame["p.r2"] == 64) & (frame["p.projections"] == "q,v") & (frame["state"] == "done")]
    where = maps["q,v"]["r2"].index("64")
    assert maps["q,v"]["best"][where][where] == pytest.approx(chosen["m.score"].max(), rel=1e-5)
    assert maps["q,v"]["count"][where][where] == 2


def test_importance_finds_the_parameter_that_decides() -> None:
    rng = np.random.default_rng(0)
    runs: list[FakeRun] = []
    for index in range(40):
        rate, dropout = float(rng.choice([1e-4, 1e-3, 1e-2])), float(rng.uniform(0, 0.1))
        score = {1e-4: 60.0, 1e-3: 80.0, 1e-2: 70.0}[rate] + rng.normal(0, 0.5)
        runs += configuration(f"{index:04}", params={"learning_rate": rate, "dropout": dropout}, scores={"toy": [score]})
    shares = PANELS["importance"].data(view_of(("ranks", runs)))["shares"]["craft"]
    for evaluator in ("ped_anova", "fanova"):
        assert shares[evaluator]["learning_rate"] > 0.8, evaluator


def test_rank_correlation_is_spearmans() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(3)
    first, second = pd.Series(rng.integers(0, 5, 30).astype(float)), pd.Series(rng.normal(size=30))
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert np.isnan(rank_correlation(first, first * 0))


def test_curves_are_read_from_the_store_and_stopped_ones_end_where_they_stopped(store_at: Callable[..., Store]) -> None:
    runs = configuration("a", scores={"toy": [80.0, 75.0]}, states={("toy", 1): "stopped"}, summarize=False)
    broken = configuration("b", states={("toy", 0): "failed"}, summarize=False)
    broken[0].curve.clear()
    store = store_at("ranks", [sweep_run("ranks"), *runs, *broken])
    feed = store.feed("ranks")
    feed.refresh()
    plain = curves_data(make_view([feed.snapshot()[1]], published_rows(), curves=store.curves))
    assert (plain["left_out"], plain["bare"]) == (0, 1)
    lines = plain["lines"]["search_score"]
    found = {line["seed"]: (line["state"], line["steps"], line["values"]) for line in lines}
    assert found == {"0": ("finished", [0, 1, 2], [74, 78, 80]), "1": ("stopped", [0, 1], [69, 73])}


def test_two_sweeps_keep_their_configurations_apart() -> None:
    plain = front_data(view_of(("one", grid("one")), ("two", grid("two"))))
    assert len(set(plain["id"])) == len(plain["id"]) == 44
    first, second = plain["fronts"]["trainable_parameters"]["score"]
    assert {plain["sweep"][index] for index in first} == {0}
    assert {plain["sweep"][index] for index in second} == {1}


def test_names_cannot_become_markup() -> None:
    assert text("<b>x</b> & <a href='http://x'>") == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;a href='http://x'&gt;"
    assert len(text("x" * 1000)) == 80


def test_methods_keep_their_colours() -> None:
    assert colours(["lora", "craft"])["craft"] == colours(["craft", "vera", "mine"])["craft"]
    assert len(set(colours(["craft", "lora", "mine", "yours"]).values())) == 4


def test_nothing_heavy_is_imported() -> None:
    modules = "dashboards.app, dashboards.content, dashboards.store"
    heavy = {"torch", "ray", "transformers", "peft"}
    script = f"import sys, {modules}, mlflow; mlflow.MlflowClient; print({heavy} & {{*sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
