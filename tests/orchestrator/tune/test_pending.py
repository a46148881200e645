"""How many trials Ray is asked to place at once, for an autoscaler to see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.tune.attempts import Attempts


@pytest.mark.parametrize(
    ("given", "pending"),
    [
        pytest.param({}, 33, id="a cluster that may grow from nothing is shown all that remains"),
        pytest.param({"remaining": 5000}, 200, id="up to a number that Ray's driver bears"),
        pytest.param({"remaining": 5000, "slots": 640}, 640, id="never fewer than a large cluster runs at once"),
        pytest.param({"address": None, "slots": 2}, 2, id="this machine will not grow"),
        pytest.param({"adaptive": True, "slots": 3}, 3, id="a searcher's later proposals are better ones"),
        pytest.param({"scheduler": object(), "slots": 3}, 3, id="a scheduler may spare a trial, or prefer a paused one"),
    ],
)
def test_trials_that_wait(given: dict[str, Any], pending: int) -> None:
    told = {"address": "head:6379", "adaptive": False, "scheduler": None, "remaining": 33, "slots": 1} | given
    parts = SimpleNamespace(
        options=SimpleNamespace(address=told["address"]),
        plan=SimpleNamespace(adaptive=told["adaptive"]),
        scheduler=told["scheduler"],
        recorder=SimpleNamespace(standing=SimpleNamespace(remaining=["key"] * told["remaining"])),
    )
    attempts: Any = Attempts(parts, None, None)  # type: ignore[arg-type]
    assert attempts._pending(told["slots"]) == pending
