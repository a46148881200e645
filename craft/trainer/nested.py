"""Nested ranks in training: one J of the largest triple, trained so that each slice of it is an adapter.

    micro-batch ── expanded ──> its rows once for each rank of this step ──> groups of rows, each at its rank
                                                                             loss: the mean over the ranks of the step

    cut      the largest
    drawn    the largest, and one smaller rank that seed and step draw
    all      every rank
    shrink   the largest; when it has had its steps, it stays as it is, and J is cut to the next smaller rank and trained on;
             and so on, in half as many steps for all smaller ranks together (progressive shrinking: Cai et al.,
             Once-for-All, ICLR 2020)

The draw is one for a whole optimizer step. So a step does not depend on how it is cut, and a resumed run draws what the
undisturbed one draws. The head is one for all ranks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from craft.methods.nested import Triple, Way, stages
from craft.spec import RunSpec
from craft.tuners.craft.layer import RankGroup
from craft.tuners.craft.model import CraftModel


class Nest:
    """The ranks that a model trains together.

    Attributes:
        slices: the runs of the smaller ranks, ascending.
        stages: how many ranks are trained one after another.
    """

    def __init__(self, model: nn.Module, spec: RunSpec) -> None:
        """
        Args:
            model: the PEFT model of the largest ranks.
            spec: the run of the largest of its nested ranks.
        """
        tuner = model.base_model
        assert isinstance(tuner, CraftModel)
        self._tuner, self._seed = tuner, spec.seed
        self._way: Way = spec.parameters["nested_training"]
        *self.slices, _ = spec.slices
        self._ranks = [_triple(run) for run in spec.slices]
        self.stages = stages(spec.parameters)

    def ranks_at(self, step: int, stage_ends: Sequence[int]) -> list[Triple]:
        """The ranks at which the optimizer step after `step` others trains its batch."""
        if self.stages > 1:
            return [self._ranks[-1 - bisect_right(stage_ends, step)]]
        *smaller, largest = self._ranks
        if self._way == "all":
            return self._ranks
        if self._way == "cut" or not smaller:
            return [largest]
        return [smaller[drawn(self._seed, step, len(smaller))], largest]

    def done(self, step: int, stage_ends: Sequence[int]) -> int:
        """How many of the largest ranks are trained no more after `step` steps, and are evaluated no more."""
        return bisect_left(stage_ends, step) if self.stages > 1 else 0

    @contextmanager
    def expanded(self, inputs: dict[str, Any], ranks: list[Triple]) -> Iterator[tuple[dict[str, Any], int]]:
        """A micro-batch as the model trains on it, and how many times its rows are in it. Backward belongs into the block."""
        times, rows = len(ranks), len(next(iter(inputs.values())))
        if times > 1:
            inputs = {name: torch.cat([tensor] * times) for name, tensor in inputs.items()}
        groups = [RankGroup(at * rows, (at + 1) * rows, one) for at, one in enumerate(ranks)]
        with self._tuner.at_ranks(groups):
            yield inputs, times

    @contextmanager
    def at(self, run: RunSpec) -> Iterator[None]:
        """Inside the block the model computes the slice of `run`."""
        with self._tuner.at_ranks([RankGroup(0, 0, _triple(run))]):
            yield

    @contextmanager
    def cut_to(self, run: RunSpec) -> Iterator[None]:
        """Inside the block the model is that of `run` alone, in its weights and files too; J are copies."""
        with self._tuner.cut_to(_triple(run)):
            yield


def drawn(seed: int, step: int, among: int) -> int:
    """One of `among`, which seed and step alone decide."""
    return int(np.random.default_rng([seed, step]).integers(among))


def nest_of(model: nn.Module, spec: RunSpec) -> Nest | None:
    """What `spec` trains together, or None where its ranks do not nest.

    Raises:
        ValueError: another run trains this one.
    """
    if spec.parameters.get("nested") is None:
        return None
    largest = spec.slices[-1]
    if spec.key != largest.key:
        raise ValueError(
            f"ranks {spec.parameters['ranks']} are a slice of a training of nested ranks: train the largest, "
            f"{largest.parameters['ranks']} (run {largest.key})"
        )
    return Nest(model, spec)


def _triple(run: RunSpec) -> Triple:
    r1, r2, r3 = run.parameters["ranks"]
    return r1, r2, r3
