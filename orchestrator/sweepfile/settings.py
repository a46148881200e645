"""The sections `search`, `scheduler`, `replication`, `budget`, `tracking` and the bounds of a sweep file, as checked
classes."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import AliasChoices, Field, field_validator, model_serializer, model_validator

from craft.settings import Settings
from orchestrator.sweepfile.algorithms import SCHEDULERS, SEARCHERS, SchedulerRow, SearcherRow
from orchestrator.sweepfile.mistakes import unknown


class SearchSettings(Settings):
    """How configurations are chosen. `trials` counts configurations, each of which runs on every task with every seed."""

    algorithm: str = "grid"
    trials: int | None = Field(None, gt=0, le=100_000)
    seed: int = Field(0, ge=0, lt=2**32)
    learn_from: tuple[str, ...] = Field(
        (),
        # Files and stored sweeps from before the rename say `warm_start`.
        validation_alias=AliasChoices("learn_from", "warm_start"),
        description="earlier sweeps (folders or names) whose results the searcher starts with",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_name_only(cls, given: Any) -> Any:
        if isinstance(given, dict) and "learn_from" in given and "warm_start" in given:
            raise ValueError("has learn_from and warm_start; warm_start is the old name of learn_from, so keep learn_from")
        return given

    @property
    def row(self) -> SearcherRow:
        """The facts of its algorithm."""
        return SEARCHERS[self.algorithm]

    @field_validator("algorithm")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SEARCHERS:
            raise ValueError(unknown("algorithm", name, list(SEARCHERS)))
        return name


class SchedulerSettings(Settings):
    """Which trials are stopped early or wait, and by what rule (`orchestrator.search.stopping`).

    `grace` is in epochs: none is judged before. Of `factor` rivals one goes on. `rivals` are how many the median needs.
    `interval` is a generation in epochs, `share` how much of a population is replaced after each.
    """

    name: str = "none"
    grace: float = Field(1.0, gt=0)
    factor: float = Field(3.0, ge=2, le=16)
    brackets: int = Field(3, ge=1, le=8)
    rivals: int = Field(3, ge=1)
    interval: float = Field(1.0, gt=0)
    share: float = Field(0.25, gt=0, le=0.5)

    @property
    def row(self) -> SchedulerRow:
        """The facts of the scheduler of this name."""
        return SCHEDULERS[self.name]

    @model_validator(mode="after")
    def _has_them(self) -> SchedulerSettings:
        settings = self.row.settings
        strange = sorted(self.model_fields_set - {"name", *settings})
        if strange:
            allowed = f"its settings: {', '.join(settings)}" if settings else "it has no settings"
            raise ValueError(f"{self.name} does not take {', '.join(strange)}; {allowed}")
        return self

    @model_serializer(mode="plain")
    def _only_its_own(self) -> dict[str, Any]:
        return {"name": self.name} | {key: getattr(self, key) for key in self.row.settings}

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SCHEDULERS:
            raise ValueError(unknown("scheduler", name, list(SCHEDULERS)))
        return name


class ReplicationSettings(Settings):
    """Which configurations get more seeds than the sweep's, and which seeds (`orchestrator.search.replication`)."""

    seeds: tuple[int, ...] = Field(min_length=1, max_length=1000)
    choose: Literal["front", "best"] = "front"
    margin: float = Field(1.0, gt=0, description="points that the score of one seed may be off, with front")
    tuned: tuple[str, ...] = Field((), description="dimensions that were tried out to choose the best value, with best")

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds) or not all(0 <= seed < 2**32 for seed in seeds):
            raise ValueError(f"got {list(seeds)}; whole numbers from 0 to 4294967295, each once")
        return seeds

    @model_validator(mode="after")
    def _fit_together(self) -> ReplicationSettings:
        if self.tuned and self.choose == "front":
            raise ValueError("tuned goes with choose: best; the front needs no groups")
        return self

    @property
    def deciding(self) -> tuple[int, ...]:
        """The seeds without which a configuration is not on the front, where others have them."""
        return self.seeds if self.choose == "best" else ()


UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d)\s*")


class Budget(Settings):
    """When the sweep ends before its plan does."""

    trials: int | None = Field(None, gt=0)
    gpu_hours: float | None = Field(None, gt=0)
    wall_clock: str | None = Field(None, description="as in 90min, 8h, 2d")
    target: dict[str, float] = Field(default_factory=dict, description="objectives with the values that are enough")

    @field_validator("wall_clock", mode="before")
    @classmethod
    def _is_a_duration(cls, given: Any) -> Any:
        if given is not None and (not isinstance(given, str) or not _DURATION.fullmatch(given) or not parse_duration(given)):
            raise ValueError(f"got {given!r}; a number with its unit (s, min, h, d), as in 90min or 8h")
        return given

    @property
    def wall_clock_seconds(self) -> float | None:
        return None if self.wall_clock is None else parse_duration(self.wall_clock)


def parse_duration(text: str) -> float:
    """Seconds that `90min`, `8h` or `2d` stand for. Raises ValueError where it is none."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"got {text!r}; a number with its unit (s, min, h, d)")
    return float(found[1]) * UNITS[found[2]]


class Bounds(Settings):
    """What a metric known before training must keep to."""

    max: float | None = None
    min: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if self.max is None and self.min is None:
            raise ValueError("a constraint has max, min, or both")
        if self.max is not None and self.min is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is larger than max {self.max:g}")
        return self


class TrackingSettings(Settings):
    """Where runs are recorded: an MLflow tracking URI. SQLite in the current folder unless given."""

    uri: str = "sqlite:///mlflow.db"

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str) -> str:
        if re.search(r"://[^/@]*:[^/@]+@", uri):
            raise ValueError("holds a password; give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead")
        if not uri.strip() or any(ord(letter) < 32 for letter in uri):
            raise ValueError("is empty or holds control characters; an MLflow URI such as sqlite:///mlflow.db")
        return uri
