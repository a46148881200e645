"""Calls of `craft-sweeps train`, and the runs that they describe."""

from __future__ import annotations

import pytest

from craft.spec import RunSpec
from craft.train import Flags, run_spec
from orchestrator.commands.app import main


def train(*arguments: str) -> int:
    return main(["train", *arguments])


def run_of(*arguments: str) -> RunSpec:
    """The run that a call describes; it is not trained."""
    calls: list[Flags] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("craft.train.train", lambda flags, *_: calls.append(flags))
        assert train(*arguments) == 0
    return run_spec(calls[0])
