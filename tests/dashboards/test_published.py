"""Published results on the page: their rows, and which are shown."""

from __future__ import annotations

from dashboards.panels.front import data as front_data
from dashboards.panels.literature import published_model, published_rows
from tests.dashboards.synthetic import configuration
from tests.dashboards.views import view_of


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
    plain = front_data(view_of(("ranks", runs)))
    assert plain["published"]["shown"] == "RoBERTa-base"
    vera = next(row for row in plain["published"]["rows"] if row["method"] == "VeRA" and row["model"] == "RoBERTa-base")
    assert (vera["values"]["score/mrpc"], vera["averaged"]) == (89.5, "6 tasks")
