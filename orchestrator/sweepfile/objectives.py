"""The objectives of a sweep: names of metrics with the direction in which each is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from craft.results import Counts

Direction = Literal["maximize", "minimize"]
Objectives = Mapping[str, Direction]

DEFAULT_OBJECTIVES: dict[str, Direction] = {"score": "maximize", "trainable_parameters": "minimize"}
METRICS = ("score", *Counts.__dataclass_fields__, "seconds", "forgetting")
"""The metrics that can be objectives: the score, the costs of a finished run, and those that `measure` adds."""
PLANNED_METRICS = ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "estimated_memory_bytes")
"""The metrics that are known before a configuration trains; `constraints` may bound these."""
