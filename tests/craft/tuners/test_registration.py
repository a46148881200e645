"""CRAFT is one of PEFT's methods however the two packages are imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = (
    *("craft.tuners.craft." + name for name in ("config", "equation", "stack", "fingerprint", "layer", "lora", "model")),
    *("craft.tuners." + name for name in ("low_rank", "bottleneck", "joint", "optimizers")),
    *("craft.models." + name for name in ("projections", "loading")),
)


OTHER_ORDERS = ("import craft, peft", "from craft import CraftConfig, CraftModel")


@pytest.mark.patient  # a process imports PEFT and this package
@pytest.mark.parametrize(
    "first", ["import peft, craft", *(pytest.param(order, marks=pytest.mark.slow) for order in OTHER_ORDERS)]
)
def test_registered_in_either_order(first: str) -> None:
    _run(first)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_registered_whatever_module_comes_first(module: str) -> None:
    _run(f"import {module}")


def _run(first: str) -> None:
    check = f"{first}; from peft import PeftConfig; from craft.tuners.joint import register; register(); register(); "
    check += "print(PeftConfig.from_peft_type(peft_type='CRAFT').peft_type.value)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "CRAFT", done.stderr
