"""Published rows next to a sweep's points, never mixed with them: stars on the front panel.

They are the CRAFT paper's two tables, which follow the customary protocol of their suite, not this project's default one. The
card of a row says its model, protocol and source.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

from dashboards.panels.base import Plain, View, choice, number, text
from orchestrator.results.metrics import Column

NO_ROWS = "none"
FOLDER = Path(__file__).parents[1] / "published"
PROTOCOLS = {
    "glue": "customary GLUE: the dev set both selects the epoch and is reported, best of a run's epochs",
    "commonsense": "customary commonsense (LLM-Adapters): tests both select the epoch and are reported",
}


@cache
def published_rows() -> tuple[Plain, ...]:
    """Returns all rows of the paper's two tables: model, method, source, suite, protocol, the number of averaged tasks, and
    `values` by metric: the average as `score`, `trainable_parameters` and `score/TASK`."""
    rows: list[Plain] = []
    for suite, protocol in PROTOCOLS.items():
        with (FOLDER / f"published_{suite}.csv").open(encoding="utf-8", newline="") as file:
            for cells in csv.DictReader(file):
                row: Plain = {name: cells.pop(name) for name in ("model", "method", "source")}
                row |= {"suite": suite, "protocol": protocol, "tasks": int(cells.pop("averaged_tasks", 8))}
                known = {"average": "score", "trainable_parameters": "trainable_parameters"}
                row["values"] = {known.get(name, f"score/{name}"): float(cell) for name, cell in cells.items() if cell}
                rows.append(row)
    return tuple(rows)


def published_model(name: str) -> str | None:
    """Returns the paper's name of a model, or None: a hub id or a folder's name is matched by its parts.

    >>> published_model("FacebookAI/roberta-base"), published_model("meta-llama/Meta-Llama-3-8B"), published_model("bert-base")
    ('RoBERTa-base', 'LLaMA3-8B', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.rstrip("/").rsplit("/", 1)[-1].lower()).removeprefix("meta").removesuffix("hf")
    models = (str(row["model"]) for row in published_rows())
    return next((model for model in models if re.sub(r"[^a-z0-9]", "", model.lower()) == plain), None)


def published(view: View, metrics: list[Column]) -> Plain:
    """Returns every published row with its values, and the model whose rows are shown first: if possible, the sweep's."""
    models = [frame.state.sweep.model for frame in view.sweeps if frame.state.started is not None]
    records = [
        row
        | {
            "id": f"published/{index}",
            "averaged": f"{row['tasks']} tasks" if row["tasks"] > 1 else "one task",
            "values": {metric.name: number(row["values"].get(metric.name)) for metric in metrics},
        }
        for index, row in enumerate(published_rows())
    ]
    return {"rows": records, "shown": next(filter(None, map(published_model, models)), NO_ROWS), "of": models}


def published_trace(rows: list[Plain], values: Plain) -> Plain:
    """Returns the trace of the stars, and adds the values of each model's rows to `values`."""
    values[f"published/{NO_ROWS}"] = []
    for model in sorted({row["model"] for row in rows}):
        chosen = [row for row in rows if row["model"] == model]
        values[f"published/{model}"] = [row["id"] for row in chosen]
        values[f"published/{model}/name"] = [text(row["method"]) for row in chosen]
        values[f"published/{model}/legend"] = f"published: {text(model)}, {text(chosen[0]['suite'])}"
        for metric in chosen[0]["values"]:
            values[f"published/{model}/{metric}"] = [row["values"][metric] for row in chosen]
    key = "published/{published}"
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": {"$": key + "/legend"},
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
    labels = {NO_ROWS: "hidden"} | {model: f"{model} ({suite})" for model, suite in suites.items()}
    return choice("published", "Published rows", labels, published["shown"])


def published_details(row: Plain) -> Plain:
    """Returns the card's lines on a published row."""
    lines = [["model", row["model"]], ["trainable parameters", row["values"].get("trainable_parameters")]]
    lines += [["score", row["values"].get("score")], ["averaged over", row["averaged"]]]
    lines += [["task", row["suite"]], ["protocol", row["protocol"]], ["source", row["source"]]]
    return {"title": f"{row['method']} (published)", "lines": [line for line in lines if line[1] is not None]}
