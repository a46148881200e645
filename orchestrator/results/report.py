"""`Report`, and the values that all reports are made of."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator.results.intervals import Interval
from orchestrator.tools.secrets import redacted


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _count(value: Any) -> Any:
    value = _finite(value)
    return int(value) if isinstance(value, float) else value


Number = Annotated[float | None, BeforeValidator(_finite)]
"""A number; null where there is none, or it is not finite."""
Count = Annotated[int | None, BeforeValidator(_count)]
"""A whole number; null where it is not known."""


class Part(BaseModel):
    """A part of a report."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @classmethod
    def fill(cls, source: object, **fields: Any) -> Self:
        """Returns the part with `fields`, and the other fields from attributes of `source` with their names."""
        names = cls.model_fields.keys() - fields.keys()
        return cls(**{name: getattr(source, name) for name in names if hasattr(source, name)}, **fields)


class Report(Part):
    """A report. Its subclasses have the field `report`, which names them."""

    format: Literal[1] = Field(1, description="The version of the fields. New fields may come without a new version.")

    def to_json(self) -> str:
        """Returns the report as JSON in ASCII, whatever the terminal can show; passwords in addresses are masked."""
        return json.dumps(redacted(self.model_dump(mode="json")), indent=2, allow_nan=False)


class Estimate(Part):
    """A mean with its 95 % interval."""

    value: Number = Field(description="The mean over tasks of the mean over seeds. Null without a finished trial.")
    low: Number = Field(description="The lower end of its 95 % interval. Null where there is no interval.")
    high: Number = Field(description="The upper end of its 95 % interval. Null where there is no interval.")
    seeds: int = Field(description="The number of seeds. The interval of one seed is over the scored examples alone.")

    @classmethod
    def of(cls, interval: Interval) -> Estimate:
        return cls(value=interval.mean, low=interval.low, high=interval.high, seeds=interval.n)


class Command(Part):
    """A command that can be run next."""

    purpose: str = Field(description="What it is for.")
    command: str = Field(description="The command, for a shell.")
