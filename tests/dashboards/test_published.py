"""Published results on the page: their rows, their own front, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

from dashboards.panels.front import data as front_data
from dashboards.panels.front_figure import draw as front_draw
from dashboards.published import comparison_rows, literature, published_model, published_rows
from tests.dashboards.synthetic import configuration
from tests.dashboards.views import view_of


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
