"""The objectives of a sweep: names of metrics with the direction in which each is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Direction = Literal["maximize", "minimize"]
Objectives = Mapping[str, Direction]

DEFAULT_OBJECTIVES: dict[str, Direction] = {"score": "maximize", "trainable_parameters": "minimize"}
