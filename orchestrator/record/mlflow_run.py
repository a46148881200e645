"""`StoredRun`: one run of the tracking store, with what the store has of it and what waits to be sent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestrator.plan.parameters import text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


METRICS_A_BATCH, OTHERS_A_BATCH = 800, 100
"""Together at most 1000, MLflow's limit for one request; 100 is its limit for parameters, and for tags."""


@dataclass
class StoredRun:
    """`add_*` collect; `flush` sends.

    Attributes:
        params, tags: those that the store has.
    """

    id: str
    status: str = "RUNNING"
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    _metrics: list[Metric] = field(default_factory=list)
    _params: dict[str, str] = field(default_factory=dict)
    _tags: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(run: Run) -> StoredRun:
        """A run as the store returns it."""
        return StoredRun(run.info.run_id, run.info.status, dict(run.data.params), dict(run.data.tags))

    def add_params(self, params: Mapping[str, Any]) -> None:
        for name, value in params.items():
            if value is None:
                continue
            name, content = stored_name(name), cut(text(value), PARAM_LIMIT)
            known = self.params.get(name, self._params.get(name))
            if known is None:
                self._params[name] = content
            elif known != content or f"craft.now.{name}" in self.tags:
                # A run's parameter cannot change in MLflow: the newest value of an extended sweep becomes a tag.
                self.add_tags({f"craft.now.{name}": content})

    def add_metrics(self, row: Mapping[str, Any], time: int) -> None:
        """Numbers of one step.

        Args:
            row: values by metric; `step`, and `time` (seconds since 1970) if the row has a time of its own.
            time: milliseconds since 1970, for a row without a time.
        """
        from mlflow.entities import Metric

        time = int(1000 * row["time"]) if "time" in row else time
        for name, value in row.items():
            if name in ("step", "time"):
                continue
            name = stored_name(name)
            number = float(value)
            if math.isfinite(number):
                self._metrics.append(Metric(name, number, time, int(row["step"])))
            elif f"craft.nonfinite.{name}" not in self.tags | self._tags:
                self.add_tags({f"craft.nonfinite.{name}": f"{number} at step {row['step']}"})

    def add_tags(self, tags: Mapping[str, str]) -> None:
        for name, value in tags.items():
            name, value = stored_name(name), cut(value, TAG_LIMIT)
            if self.tags.get(name) != value:
                self._tags[name] = value
            else:
                self._tags.pop(name, None)

    def send_inputs(self, client: MlflowClient, facts: Mapping[str, Any]) -> None:
        """Sends the task's data as an MLflow dataset, named after the task and distinguished by its fingerprint."""
        digest = facts.get("data_fingerprint") or facts.get("fingerprint")
        if not digest:
            return
        from mlflow.entities import Dataset, DatasetInput, InputTag

        name = cut(self.tags.get("craft.task", "data"), NAME_LIMIT)
        dataset = Dataset(name, str(digest)[:36], source_type="code", source=f'{{"task": "{stored_name(name)}"}}')
        client.log_inputs(self.id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def flush(self, client: MlflowClient) -> None:
        """Sends what waits. After an error a part of it may be in the store."""
        from mlflow.entities import Param, RunTag

        while self._metrics or self._params or self._tags:
            params = dict(islice(self._params.items(), OTHERS_A_BATCH))
            tags = dict(islice(self._tags.items(), OTHERS_A_BATCH))
            client.log_batch(
                self.id,
                metrics=self._metrics[:METRICS_A_BATCH],
                params=[Param(name, value) for name, value in params.items()],
                tags=[RunTag(name, value) for name, value in tags.items()],
            )
            del self._metrics[:METRICS_A_BATCH]
            self._params = {name: value for name, value in self._params.items() if name not in params}
            self._tags = {name: value for name, value in self._tags.items() if name not in tags}
            self.params |= params
            self.tags |= tags

    def forget(self) -> None:
        """Drops what waits."""
        self._metrics, self._params, self._tags = [], {}, {}


PARAM_LIMIT, TAG_LIMIT, NAME_LIMIT = 6000, 8000, 250


def with_pictures(text: str, run_id: str, pictures: Iterable[str]) -> str:
    """A description with pictures under it, by the addresses under which MLflow serves artifacts.

    MLflow's page shows no picture whose data stand in its address.
    """
    shown = [f"![{name}](get-artifact?path={quote(name)}&run_uuid={run_id})" for name in pictures]
    return "\n\n".join([cut(text, TAG_LIMIT - sum(len(one) + 2 for one in shown)), *shown])


def short_name(method: str, label: str, size: float | None = None) -> str:
    """`4,108 · CRAFT 64 qkvo`: short, and the trainable parameters first, because MLflow's page cuts names at their end."""
    name = label if not method or label.lower().startswith(method.lower()) else f"{method} {label}"
    name = re.sub(r"(?<=\b[a-z]) (?=[a-z]\b)", "", name).replace(", ", " ")
    return name if size is None else f"{size:,.0f} · {name}"


def trial_name(tags: Mapping[str, str], size: float | None) -> str:
    """`s0 · 4,108 · CRAFT 64 qkvo · toy/sentiment`."""
    return f"s{tags['craft.seed']} · {short_name(tags['craft.method'], tags['craft.label'], size)} · {tags['craft.task']}"


def stored_name(name: str) -> str:
    """`name` as MLflow takes it: other characters become `_`, and no part of the path is empty, `.` or `..`."""
    parts = [part for part in re.sub(r"[^\w.\- :/]", "_", name).split("/") if part.strip(". ")]
    return "/".join(parts)[:NAME_LIMIT] or "_"


def cut(value: str, limit: int) -> str:
    value = value.replace("\x00", "�")
    if len(value) <= limit:
        return value
    note = f" … (cut, {len(value)} characters)"
    return value[: limit - len(note)] + note
