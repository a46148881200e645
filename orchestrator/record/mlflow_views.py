"""Saved views of MLflow's own page: the columns, runs and charts of a sweep.

The page reads a saved view from the experiment's tag `mlflow.sharedViewState.KEY` and opens it at `?viewStateShareKey=KEY`. The
names in a view are the page's own (MLflow 3.17, `ExperimentPageUIState`). Its scatter has no logarithmic axis.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.results.chances import P_FRONT, P_WITHIN

SCORE, SIZE = "score", "trainable_parameters"
AXES = (("ranks", "projections", "learning_rate", "dropout"), ("rank", "projections", "learning_rate", "dropout"), ("method",))
"""A parallel plot shows the configurations that have all of its axes, and methods differ in the name of their rank."""


def front_key(sweep_id: str) -> str:
    return f"front-{sweep_id[:8]}"


def place(experiment: str, key: str, charts: bool = False) -> str:
    """The place of a view below the address of MLflow's server."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={key}{'&compareRunsMode=CHART' if charts else ''}"


def links(sweep: str, experiment: str, views: Iterable[str]) -> str:
    """A line of the experiment's description: the views of a sweep, each as a table and as charts."""
    front, trials = views
    named = {"the front": (front, False), "its charts": (front, True), "all trials": (trials, False)}
    return f"**{sweep}**: " + ", ".join(f"[{name}]({place(experiment, *view)})" for name, view in named.items())


def saved_views(sweep: str, sweep_id: str, tasks: Sequence[str], objectives: Mapping[str, str], began: int) -> dict[str, str]:
    """The views of a sweep by their keys: its configurations by score, and its trials.

    Args:
        began: when the sweep was opened, in milliseconds since 1970.
    """
    numbers = dict.fromkeys((SCORE, "score_low", "score_high", SIZE, P_FRONT, P_WITHIN, *objectives))
    parallels = [{"type": "PARALLEL", "selectedParams": [*axes], "selectedMetrics": [SIZE, SCORE]} for axes in AXES]
    curves = [{"type": "LINE", "metricKey": name, "selectedMetricKeys": [name]} for name in ("search_score", "train_loss")]
    front = [*(f"metrics.`{name}`" for name in numbers), *(f"tags.`craft.{name}`" for name in ("on_front", "enough", "status"))]
    trials = ["tags.`craft.task`", "tags.`craft.seed`", *(f"metrics.`{name}`" for name in (SCORE, "best_search_score", SIZE))]
    trials += ["params.`learning_rate`", "tags.`craft.status`"]
    folded = [f"score/{task}".rpartition("/")[0] for task in tasks]
    first, direction = next(iter(objectives.items()), (SCORE, "maximize"))
    order = {"orderByKey": f"metrics.`{first}`", "orderByAsc": direction == "minimize"}
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(began / 1000))

    def view(name: str, kind: str, columns: list[str], charts: list[dict[str, Any]]) -> str:
        query = f"tags.`craft.sweep_id` = '{sweep_id}' and tags.`craft.kind` = '{kind}'"
        state = {"searchFilter": query, **order, **_table(columns), **_charts(charts, folded)}
        return json.dumps({"name": f"{sweep}: {name} ({when})", "createdAt": began, "state": json.dumps(state)})

    return {
        front_key(sweep_id): view("the front", "configuration", front, [_scatter(), *parallels]),
        f"trials-{sweep_id[:8]}": view("all trials", "trial", trials, [_scatter(), *curves]),
    }


def _table(columns: Sequence[str]) -> dict[str, Any]:
    widths = {name: max(90, 45 + 7 * len(name.partition(".")[2])) for name in columns}
    fixed = {"attributes.`Run Name`": 290, "runDateAndNestInfo": 130}
    return {
        "selectedColumns": list(columns),
        "columnOrder": [*fixed, *columns],
        "columnWidths": fixed | widths,
        "runsHiddenMode": "SHOW_ALL",
    }


def _scatter() -> dict[str, Any]:
    axes = {name: {"key": key, "type": "METRIC"} for name, key in (("xaxis", SIZE), ("yaxis", SCORE))}
    return {"type": "SCATTER", **axes, "runsCountToCompare": 1000}


def _charts(charts: Sequence[Mapping[str, Any]], folded: Sequence[str]) -> dict[str, Any]:
    """`charts` in a first section, one under the other; the sections that MLflow's page fills with all metrics are folded."""
    own, *others = dict.fromkeys(["Score and parameters", *folded, "Model metrics", "System metrics"])
    shape = {"isReordered": False, "deleted": False, "isGenerated": False}
    return {
        "compareRunCharts": [
            {"uuid": f"{own} {number}", "metricSectionId": own, "isGenerated": False, "deleted": False, **chart}
            for number, chart in enumerate(charts)
        ],
        "compareRunSections": [
            {"uuid": own, "name": own, "display": True, "columns": 1, **shape},
            *({"uuid": name, "name": name, "display": False, **shape} for name in others),
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
    }
