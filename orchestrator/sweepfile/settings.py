"""Checked classes of the file's sections `enough`, `search`, `scheduler`, `replication`, `budget`, `constraints`, `tracking`.

Each class checks its own section. `sections` checks that they fit together. SEARCHERS has the names that `search.algorithm` may
take, one row each. A row says what a sweep file must fulfil, and where the searcher's code is: a text, `module:name`, imported
on use, because a grid is planned without Ray and Optuna. `auto` is no row: `sections` replaces it with one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from craft.plugins import add_row
from craft.results import Counts
from craft.settings import Settings
from craft.words import format_duration
from orchestrator.sweepfile.mistakes import shown, unknown

AUTO = "auto"


@dataclass(frozen=True)
class SearcherRow:
    """One row of SEARCHERS.

    Attributes:
        make: where its strategy is made, as `module:name`, from a plan; `orchestrator.search.stages.make_strategy` calls it.
        samples: whether it draws configurations, so that `search.configurations` says how many and ranges (`min`, `max`) have a
            meaning; otherwise it runs every combination of the `values`.
        adaptive: whether it chooses while the sweep runs, so that the plan lists nothing beforehand.
    """

    make: str
    samples: bool
    adaptive: bool = False


LISTED = "orchestrator.search.strategy:Strategy"

SEARCHERS: dict[str, SearcherRow] = {
    "grid": SearcherRow(LISTED, samples=False),
    "random": SearcherRow(LISTED, samples=True),
    "gp": SearcherRow("orchestrator.search.learned:gp", samples=True, adaptive=True),
    "tpe": SearcherRow("orchestrator.search.learned:tpe", samples=True, adaptive=True),
}


def register_searcher(name: str, row: SearcherRow) -> None:
    """Adds a searcher that `search.algorithm` may name. Raises PluginError if there is one of that name."""
    add_row(SEARCHERS, "searcher", name, row)


Direction = Literal["maximize", "minimize"]

Objectives = Mapping[str, Direction]

DEFAULT_OBJECTIVES: dict[str, Direction] = {"score": "maximize", "trainable_parameters": "minimize"}

METRICS = ("score", *Counts.__dataclass_fields__, "seconds", "forgetting")
"""The metrics that can be objectives: the score, the costs of a finished run, and those that `measure` adds."""

PLANNED_METRICS = ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "estimated_memory_bytes")
"""The metrics that are known before a configuration trains; `constraints` may bound these."""


def _named(kind: str, names: Callable[[], Sequence[str]]) -> AfterValidator:
    """Returns a check of a name. `names` is called each time: plugins add some."""

    def check(name: str) -> str:
        if name not in names():
            raise ValueError(unknown(kind, name, names()))
        return name

    return AfterValidator(check)


Metric = Annotated[str, _named("metric", lambda: METRICS), WithJsonSchema({"type": "string", "enum": [*METRICS]})]
_PLANNED = {"type": "string", "enum": [*PLANNED_METRICS]}
PlannedMetric = Annotated[str, _named("metric", lambda: PLANNED_METRICS), WithJsonSchema(_PLANNED)]


def _check_seeds(seeds: Any) -> Any:
    """Raises ValueError for a list that has anything but whole numbers of 32 bits, each once."""
    for seed in seeds if isinstance(seeds, list) else ():
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise ValueError(f"got the seed {shown(seed)}; seeds are whole numbers from 0 to 4294967295")
    if isinstance(seeds, list) and len(set(seeds)) != len(seeds):
        raise ValueError(f"got {shown(seeds)}; each seed once")
    return seeds


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**32)], ...],
    BeforeValidator(_check_seeds),
    Field(min_length=1, max_length=1000, json_schema_extra={"uniqueItems": True}),
]


_VALUES = {"type": "object", "properties": {"values": {"type": "array"}}, "additionalProperties": False}
TUNED_FORMS: Any = [
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
    {"type": "object", "additionalProperties": _VALUES, "minProperties": 1},
    {"type": "null"},
]
"""How `tuned` may be written, for the JSON Schema."""


def tuned_settings(tuned: Any) -> dict[str, dict[str, Any]]:
    """Returns `tuned` of a sweep file as a mapping; a list of names is a mapping without values."""
    if isinstance(tuned, list | tuple) and tuned and all(isinstance(name, str) for name in tuned):
        return {name: {} for name in tuned}
    if not isinstance(tuned, dict) or not tuned or not all(isinstance(name, str) for name in tuned):
        example = "[learning_rate] or {learning_rate: {values: [1e-3, 1e-2]}}"
        raise ValueError(f"got {shown(tuned)}; the settings to tune, as in {example}")
    for name, form in tuned.items():
        values = form.get("values", []) if isinstance(form, dict) else None
        if not isinstance(values, list) or set(form) - {"values"} or form == {"values": []}:
            raise ValueError(f"got {shown(form)} for {name}; its values, as in {{values: [1e-3, 1e-2]}}")
    return tuned


class Enough(Settings):
    """When a configuration is enough."""

    within: float = Field(1.0, gt=0, le=100, description="Points below the best that are allowed.")
    sure: float = Field(0.9, ge=0.5, lt=1, description="Least probability of being within these points.")


class SearchSettings(Settings):
    """How the sweep chooses its configurations."""

    algorithm: Annotated[str, _named("algorithm", lambda: [AUTO, *SEARCHERS])] = Field(
        "grid",
        description="The searcher ([search.md](search.md)).",
        json_schema_extra={"enum": [AUTO, *SEARCHERS]},
    )
    configurations: int | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Configurations to draw; not with `grid`.",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the searcher.")
    until: Literal["answered"] | None = Field(
        None,
        description="`answered`: add trials until the answer is known ([search.md](search.md#until-the-answer-is-known)).",
    )

    @property
    def row(self) -> SearcherRow:
        return SEARCHERS[self.algorithm]


class SchedulerSettings(Settings):
    """Which trials wait, and by what rule."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"name": {"const": "promotion"}}, "required": ["name"]},
            "else": {"propertyNames": {"enum": ["name"]}},
        }
    )

    name: Literal["none", "promotion"] = Field("none", description="`none` or `promotion` ([search.md](search.md)).")
    grace: float = Field(1.0, gt=0, description="Epochs until the first rung.")
    factor: float = Field(3.0, ge=2, le=16, description="One of this many rivals continues.")

    @model_validator(mode="after")
    def _check_settings(self) -> SchedulerSettings:
        if self.name == "none" and (strange := sorted(self.model_fields_set - {"name"})):
            raise ValueError(f"none does not take {', '.join(strange)}; it has no settings")
        return self

    @model_serializer(mode="plain")
    def _write_settings(self) -> dict[str, Any]:
        return {"name": "none"} if self.name == "none" else {"name": self.name, "grace": self.grace, "factor": self.factor}


class ReplicationSettings(Settings):
    """The sweep's own seeds tune and are not reported; the best of each group runs with further seeds, which are."""

    seeds: Seeds = Field(description="Further seeds, which are reported.")
    tuned: tuple[str, ...] = Field(min_length=1, description="Tuned settings, as in `[learning_rate]`.")

    @model_validator(mode="before")
    @classmethod
    def _check_tuned(cls, written: Any) -> Any:
        if isinstance(written, dict) and "tuned" not in written:
            raise ValueError(
                "`tuned` is missing: the settings to tune, as in tuned: [learning_rate]. For further seeds of those alone "
                "whose scores decide the answer, write search: {until: answered} in its place"
            )
        return written


UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d)\s*")


class Budget(Settings):
    """Limits that end the sweep before its plan does."""

    trials: int | None = Field(None, gt=0, description="Most trainings; cuts do not count.")
    wall_clock: str | None = Field(
        None,
        description="Longest time of a session: `90min`, `8h`, `2d`.",
        json_schema_extra={"anyOf": [{"type": "string", "pattern": f"^{_DURATION.pattern}$"}, {"type": "null"}]},
    )

    @field_validator("wall_clock", mode="before")
    @classmethod
    def _check_duration(cls, text: Any) -> Any:
        match = _DURATION.fullmatch(text) if isinstance(text, str) else None
        if text is not None and (match is None or float(match[1]) == 0):
            raise ValueError(f"got {text!r}; a number with its unit (s, min, h, d), as in 90min or 8h")
        return text

    @property
    def wall_clock_text(self) -> str:
        """The limit for people: `15 min` for 0.25h."""
        return format_duration(self.wall_clock_seconds or 0).removesuffix(" 00 s").removesuffix(" 00 min")

    @property
    def wall_clock_seconds(self) -> float | None:
        match = _DURATION.fullmatch(self.wall_clock or "")
        return float(match[1]) * UNITS[match[2]] if match else None


class Bounds(Settings):
    """Bounds of a metric that is known before training. A configuration outside them is not trained."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    max: float | None = Field(None, description="Largest value.")
    min: float | None = Field(None, description="Smallest value.")

    @model_validator(mode="after")
    def _check_bounds(self) -> Bounds:
        if self.max is None and self.min is None:
            raise ValueError("a constraint has max, min, or both")
        if self.max is not None and self.min is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is larger than max {self.max:g}")
        return self


DEFAULT_URI = "sqlite:///mlflow.db"


def default_uri() -> str:
    """Returns the tracking URI where nothing names one: MLFLOW_TRACKING_URI, else a SQLite file in the current folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


class TrackingSettings(Settings):
    """Where and how runs are recorded. `tags` are on every run."""

    uri: str = Field(
        default_factory=default_uri,
        description="MLflow tracking URI, without a password. The default is the environment's `MLFLOW_TRACKING_URI`, else "
        "`sqlite:///mlflow.db`, a file in the current folder.",
    )
    experiment: str | None = Field(
        default_factory=lambda: os.environ.get("MLFLOW_EXPERIMENT_NAME") or None,
        min_length=1,
        max_length=250,
        description="MLflow experiment. Sweeps may share it. The default is the "
        "environment's `MLFLOW_EXPERIMENT_NAME`, or the experiment of `MLFLOW_EXPERIMENT_ID`, else the name of the sweep.",
    )
    adapters: Literal["all", "front", "none"] = Field(
        "all",
        description="Adapters that the store gets. `front` sends those on the front or enough, and the best so far. The "
        "sweep's folder has all.",
    )
    predictions: bool = Field(True, description="Whether the store gets the trials' answers.")
    tags: dict[str, str] = Field({}, max_length=50, description="Tags of every run, as in `{team: search}`.")

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        if re.search(r"://[^/@]*:[^/@]+@", uri):
            raise ValueError("holds a password; give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead")
        if not uri.strip() or any(ord(letter) < 32 for letter in uri):
            raise ValueError("is empty or holds control characters; an MLflow URI such as sqlite:///mlflow.db")
        return uri

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for name in tags:
            if not re.fullmatch(r"[\w.\- :/]{1,250}", name) or name.startswith(("craft.", "mlflow.")):
                rule = "letters, digits and _ . - : / and blanks, at most 250; `craft.` and `mlflow.` begin tags of their own"
                raise ValueError(f"got the tag {shown(name)}; {rule}")
        return tags
