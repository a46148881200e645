"""Published rows as data: what others report, drawn beside measured points and never mixed with them.

They are the CRAFT paper's two tables, which follow the customary protocol of their suite, not this project's default one. Every
row says its model, protocol and source wherever it is shown.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent / "published"
PROTOCOLS = {
    "glue": "customary GLUE: the dev set both selects the epoch and is reported, best of a run's epochs",
    "commonsense": "customary commonsense (LLM-Adapters): tests both select the epoch and are reported",
}


@cache
def published_rows() -> pd.DataFrame:
    """All rows of the paper's two tables.

    Columns: model, method, trainable_parameters, average, its tasks, source, suite, protocol, `score/*`.
    """
    frames = []
    for suite, protocol in PROTOCOLS.items():
        frame = pd.read_csv(FOLDER / f"published_{suite}.csv")
        given = {"model", "method", "trainable_parameters", "average", "averaged_tasks", "source"}
        frame = frame.rename(columns={task: f"score/{task}" for task in frame.columns if task not in given})
        frame["suite"], frame["protocol"] = suite, protocol
        if "averaged_tasks" not in frame:
            frame["averaged_tasks"] = 8
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def published_model(name: str) -> str | None:
    """The name under which the paper's rows know a model, or None: a hub id or a folder's name is matched by its parts.

    >>> published_model("FacebookAI/roberta-base"), published_model("meta-llama/Meta-Llama-3-8B"), published_model("bert-base")
    ('RoBERTa-base', 'LLaMA3-8B', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.rstrip("/").rsplit("/", 1)[-1].lower()).removeprefix("meta").removesuffix("hf")
    for model in published_rows()["model"].unique():
        if re.sub(r"[^a-z0-9]", "", model.lower()) == plain:
            return str(model)
    return None
