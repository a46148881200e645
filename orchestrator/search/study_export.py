"""The draws of a searcher as an Optuna study, for `optuna-dashboard`. Nothing here reads that file: the sweep's log holds all.

There a choice whose values have an order (numbers, or ranks that grow together) is a whole number: the place of the value in
the order. Its name ends in `.place`. Every other choice is a category, and a choice of one value is no parameter. Each method
block has parameters of its own.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from craft.disk import replacing
from orchestrator.search.dimensions import texts_of, title_of
from orchestrator.sweepfile.objectives import Objectives
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Point
from orchestrator.sweepfile.space.ordering import has_order, is_fixed, ordered

BLOCK = "block"


@dataclass(frozen=True)
class Draw:
    """A draw as a sampler sees it.

    Attributes:
        values: on the objectives, in their order; None before they are known, and if the configuration failed.
        ended: whether its configuration has ended, or is never trained.
        excess: by how much it exceeds each bound of the constraints, as a share of the bound; negative if it keeps to it.
        attributes: further facts for people.
    """

    point: Point
    values: tuple[float, ...] | None
    ended: bool
    excess: Mapping[str, float]
    attributes: Mapping[str, str]


class _Lines(BaseJournalBackend):
    """Optuna's journal in memory: Optuna's own file waits for the disk after each line."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self.lines[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        # Optuna changes what it reads.
        self.lines += json.loads(json.dumps(logs))


def write_study(path: Path, name: str, objectives: Objectives, blocks: Sequence[Block], draws: Iterable[Draw]) -> None:
    """Writes the file at `path` new.

    Raises:
        OSError: the disk refuses it.
    """
    journal = _Lines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(storage=JournalStorage(journal), study_name=name, directions=list(objectives.values()))
        study.set_metric_names(list(objectives))
        study.add_trials([_trial(draw, blocks) for draw in draws])
    with replacing(path) as aside:
        aside.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in journal.lines), encoding="utf-8")


def _trial(draw: Draw, blocks: Sequence[Block]) -> FrozenTrial:
    parameters, distributions = encode(draw.point, blocks)
    end = TrialState.FAIL if draw.values is None else TrialState.COMPLETE
    so_far = {"so far": list(draw.values)} if draw.values is not None and not draw.ended else {}
    return create_trial(
        state=end if draw.ended else TrialState.RUNNING,
        values=draw.values if draw.ended else None,
        params=parameters,
        distributions=distributions,
        user_attrs={**draw.attributes, **so_far},
        constraints=dict(draw.excess),
    )


def encode(point: Point, blocks: Sequence[Block]) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """Returns the parameters of a point and their distributions in a study."""
    block = next(block for block in blocks if block.index == point.block)
    values, parameters, distributions = point.values, dict[str, Any](), dict[str, BaseDistribution]()
    if len(blocks) > 1:
        parameters[BLOCK], distributions[BLOCK] = title_of(block), CategoricalDistribution([*map(title_of, blocks)])
    for name, dimension in block.dimensions.items():
        if is_fixed(dimension):
            continue
        full = f"{title_of(block)}.{name}" if len(blocks) > 1 else name
        ending, distribution, value = _encoded(dimension, values[name])
        parameters[full + ending], distributions[full + ending] = value, distribution
    return parameters, distributions


def _encoded(dimension: Dimension, value: Any) -> tuple[str, BaseDistribution, Any]:
    """Returns the ending of a parameter's name, its distribution, and its value."""
    if isinstance(dimension, Choice):
        place = dimension.values.index(value)
        if has_order(dimension.values):
            return ".place", IntDistribution(0, len(dimension.values) - 1), ordered(dimension.values).index(place)
        return "", CategoricalDistribution(texts := texts_of(dimension)), texts[place]
    low, high = dimension.ends
    log = "log" in dimension.distribution
    if dimension.distribution.startswith("int_"):
        return "", IntDistribution(int(low), int(high), log=log), value
    return "", FloatDistribution(low, high, log=log), value
