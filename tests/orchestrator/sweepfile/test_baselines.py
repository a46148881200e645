"""`sweeps/baselines.yaml` has every method; `tests/craft/methods/test_contract.py` holds their counts."""

from __future__ import annotations

from pathlib import Path

from craft.methods import METHODS
from orchestrator.sweepfile.load import load_sweep

FILE = Path(__file__).parents[3] / "sweeps" / "baselines.yaml"


def test_every_method_that_runs_on_a_cpu_is_in_it_once() -> None:
    methods = [block.method for block in load_sweep(FILE).blocks]
    assert sorted(methods) == sorted(name for name, row in METHODS.items() if row.requires is None and name != "peft")
