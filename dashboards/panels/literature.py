"""The literature's rows beside a sweep's points: stars on the front panel, with where each number was published."""

from __future__ import annotations

from dashboards.frames import Frames
from dashboards.panels.base import Metric, Plain, View, choice, number, text
from dashboards.published import published_model

NO_ROWS = "none"


def published(view: View, metrics: list[Metric]) -> Plain:
    """Every published row with its values, and the model whose rows are shown first: the sweep's, where the paper has it."""
    rows = view.published
    models: list[str] = [str(model) for frame in view.sweeps for model in _models(frame)]
    shown = next((found for model in models if (found := published_model(model))), NO_ROWS)
    records = []
    for index, row in rows.iterrows():
        scores = {"score": row["average"], "trainable_parameters": row["trainable_parameters"]}
        scores |= {name: row[name] for name in rows.columns if name.startswith("score/")}
        averaged = f"{int(row['averaged_tasks'])} tasks"
        record = {"id": f"published/{index}", "model": row["model"], "method": row["method"], "source": row["source"]}
        record |= {"protocol": row["protocol"], "averaged": averaged, "suite": row["suite"]}
        records.append(record | {"values": {metric.name: number(scores.get(metric.name)) for metric in metrics}})
    return {"rows": records, "shown": shown, "of": models}


def _models(frame: Frames) -> list[str]:
    params = frame.sweep.params if frame.sweep else {}
    found = [params["model"]] if "model" in params else []
    if "p.model" in frame.configurations:
        found += [str(one) for one in frame.configurations["p.model"].dropna().unique()]
    if "p.model" in frame.trials:
        found += [str(one) for one in frame.trials["p.model"].dropna().unique()]
    return list(dict.fromkeys(found))


def published_trace(rows: list[Plain], values: Plain) -> Plain:
    """The stars; what each model's rows need goes into `values`."""
    for model in sorted({row["model"] for row in rows}):
        chosen = [row for row in rows if row["model"] == model]
        values[f"published/{model}"] = [row["id"] for row in chosen]
        values[f"published/{model}/name"] = [text(row["method"]) for row in chosen]
        for metric in chosen[0]["values"]:
            values[f"published/{model}/{metric}"] = [row["values"][metric] for row in chosen]
    key = "published/{published}"
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "published",
        "x": {"$": key + "/{x}"},
        "y": {"$": key + "/{y}"},
        "customdata": {"$": key},
        "text": {"$": key + "/name"},
        "textposition": "top center",
        "textfont": {"size": 10},
        "marker": {"symbol": "star-open", "size": 11, "color": "ink", "line": {"width": 1.2}},
        "cliponaxis": False,
    }


def published_choice(published: Plain) -> Plain:
    suites = {row["model"]: row["suite"] for row in published["rows"]}
    words = {NO_ROWS: "hidden"} | {model: f"{model} ({suite})" for model, suite in suites.items()}
    return choice("published", "Published rows", words, published["shown"])


def published_details(row: Plain) -> Plain:
    """What the card says of a published row."""
    lines = [["model", row["model"]], ["trainable parameters", row["values"].get("trainable_parameters")]]
    lines += [["score", row["values"].get("score")], ["averaged over", row["averaged"]]]
    lines += [["protocol", row["protocol"]], ["source", row["source"]]]
    return {"title": f"{row['method']} (published)", "lines": [line for line in lines if line[1] is not None]}
