"""The front panel: its points, fronts and knees, each against an independent computation."""

from __future__ import annotations

import itertools

import numpy as np

from dashboards.panels.front import published_model, published_rows
from tests.dashboards.synthetic import configuration, grid
from tests.dashboards.views import draw, full_view, view_of


def test_the_head_alone_stands_at_the_edge_of_a_logarithmic_axis() -> None:
    sizes = (("head", "head", 0, 60.0), ("a", "craft", 1024, 70.0), ("b", "craft", 4096, 72.0))
    runs = [run for name, method, size, score in sizes for run in configuration(name, method=method, scores={"toy": [score]},
            parameters=size)]  # fmt: skip
    for run in runs:
        run.facts["metric"] = "accuracy"
    spec = draw("front", view_of(("ranks", runs)))
    assert sorted(spec["values"]["v/trainable_parameters"]) == [512, 1024, 4096]
    assert spec["values"]["axis/score"]["title"]["text"] == "accuracy, %"
    axis = spec["values"]["axis/trainable_parameters"]
    assert axis["type"] == "log"
    assert list(zip(axis["tickvals"], axis["ticktext"], strict=True))[:4] == [
        (512, "0"),
        (2000, "2k"),
        (5000, "5k"),
        (1e4, "10k"),
    ]
    assert "The control, without an adapter, has 0 parameters and is at the left edge." in spec["help"]


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
        costs = np.array(
            [
                [value if better[name] == "minimize" else -value for name, value in ((x, a), (y, b))]
                if None not in (a, b)
                else [np.nan] * 2
                for a, b in zip(values[f"v/{x}"], values[f"v/{y}"], strict=True)
            ]
        )
        expected = {
            index
            for index, point in enumerate(costs)
            if np.isfinite(point).all() and not any((other <= point).all() and (other < point).any() for other in costs)
        }
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


def test_published_rows_of_the_sweeps_model_are_shown() -> None:
    runs = configuration("a", params={"model": "FacebookAI/roberta-base"}, scores={"mrpc": [80.0], "rte": [70.0]})
    spec = draw("front", view_of(("ranks", runs)))
    assert spec["choices"][2]["value"] == "RoBERTa-base"
    place = spec["values"]["published/RoBERTa-base/name"].index("VeRA")
    assert spec["values"]["published/RoBERTa-base/score/mrpc"][place] == 89.5
    about = spec["details"][spec["values"]["published/RoBERTa-base"][place]]
    assert dict(about["lines"])["averaged over"] == "6 tasks"
