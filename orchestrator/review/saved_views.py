"""The saved views of a sweep on MLflow's own page: its configurations by the first objective, and its trials.

The page reads a saved view from the experiment's tag `mlflow.sharedViewState.KEY` and opens it at `?viewStateShareKey=KEY`. The
names in a view are the page's own (MLflow 3.17, `ExperimentPageUIState`). Its scatter has no logarithmic axis. Cut sizes are
runs, not LoggedModels of their training's run: the page of models has no search and no saved views, so no front.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from craft.methods import METHODS
from craft.settings import TrainingSettings
from orchestrator.record.state import State
from orchestrator.results.metrics import P_ENOUGH, P_FRONT, SIZE
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.space.blocks import OWN_KEYS
from orchestrator.tracking import desired as names

SCORE = "score"
SCATTER = {"type": "SCATTER", "xaxis": {"key": SIZE, "type": "METRIC"}, "yaxis": {"key": SCORE, "type": "METRIC"}}
CURVES = [{"type": "LINE", "metricKey": name, "selectedMetricKeys": [name]} for name in ("search_score", "train_loss")]

FIXED = {"attributes.`Run Name`": 225, "runDateAndNestInfo": 100}
"""The first columns, which the page always shows, and their widths: score and size are in sight next to the page's own panel on
a screen of 1,440 pixels."""


def address(experiment: str, sweep_id: str, kind: str = "front", mode: str = "") -> str:
    """Returns the place of a saved view below the address of MLflow's server."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={kind}-{sweep_id[:8]}{mode}"


def links(*ids: str) -> str:
    """Returns links to the views of a sweep; `ids` are those of experiment and sweep."""
    places = {"the front": ("front",), "its charts": ("front", "&compareRunsMode=CHART"), "all trials": ("trials",)}
    return ", ".join(f"[{name}]({address(*ids, *place)})" for name, place in places.items())


def shared_parameters(space: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the method and the other parameters in a sweep file's space that all configurations have, in the file's order.

    MLflow's parallel coordinates show the runs that have all axes, and methods differ in the name of their rank.
    """
    rows = [METHODS.get(str(block.get("method"))) for block in space]
    absent = {*OWN_KEYS, *([RATE] if any(row and not row.adapts for row in rows) else [])}
    names = dict.fromkeys(name for block in space for name in block if name not in absent)
    return [name for name in names if name in TrainingSettings.model_fields or all(name in block for block in space)]


def saved_views(of: State) -> dict[str, str]:
    """Returns the views of a sweep by their keys: its configurations by the first objective, and its trials."""
    sweep, sweep_id, began = of.sweep, of.sweep_id, int(1000 * of.opened)
    objectives, tasks = sweep.objectives, sweep.tasks
    numbers = dict.fromkeys((SCORE, SIZE, "score_low", "score_high", P_FRONT, P_ENOUGH, *objectives))
    marks = (names.ON_FRONT, names.ENOUGH, names.STATUS)
    front = [*(f"metrics.`{name}`" for name in numbers), *(f"tags.`{name}`" for name in marks)]
    trials = [f"tags.`{name}`" for name in (names.TASK, names.SEED)]
    trials += [f"metrics.`{name}`" for name in (SCORE, "best_search_score", SIZE)]
    trials += ["params.`learning_rate`", f"tags.`{names.STATUS}`"]
    first, direction = next(iter(objectives.items()), (SCORE, "maximize"))
    parallel = {"type": "PARALLEL", "selectedParams": shared_parameters(sweep.space), "selectedMetrics": [SIZE, SCORE]}
    # The page makes a chart of every metric: in the sections after the first, which are folded.
    section, *folded = dict.fromkeys(["Score and parameters", *(f"score/{task}".rpartition("/")[0] for task in tasks)])
    sections = [{"uuid": section, "name": section, "display": True, "columns": 1}]
    sections += [{"uuid": name, "name": name, "display": False} for name in (*folded, "Model metrics")]

    def view(name: str, query: str, columns: list[str], charts: list[dict[str, Any]]) -> str:
        state = {
            "searchFilter": f"tags.`{names.SWEEP_ID}` = '{sweep_id}' and tags.`{names.KIND}` = {query}",
            "orderByKey": f"metrics.`{first}`",
            "orderByAsc": direction == "minimize",
            "selectedColumns": columns,
            "columnOrder": [*FIXED, *columns],
            "columnWidths": FIXED | {column: max(85, 10 + 7 * len(column.partition(".")[2])) for column in columns},
            "runsHiddenMode": "SHOW_ALL",
            "compareRunCharts": [{"uuid": f"{n}", "metricSectionId": section, **chart} for n, chart in enumerate(charts)],
            "compareRunSections": sections,
            "isAccordionReordered": True,
        }
        named = f"{sweep.name}: {name} ({time.strftime('%Y-%m-%d %H:%M', time.gmtime(began / 1000))})"
        return json.dumps({"name": named, "createdAt": began, "state": json.dumps(state)})

    return {
        f"front-{sweep_id[:8]}": view(
            "the front", f"'configuration' and tags.`{names.TUNES}` IS NULL", front, [SCATTER, parallel]
        ),
        f"trials-{sweep_id[:8]}": view("all trials", "'trial'", trials, [SCATTER, *CURVES]),
    }
