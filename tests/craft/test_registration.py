"""CRAFT is one of PEFT's methods however the two packages are imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ("config", "projections", "stack", "placing", "fingerprint", "layer", "export", "model", "registration")


@pytest.mark.parametrize("first", ["import craft, peft", "import peft, craft", "from craft import CraftConfig, CraftModel"])
def test_registered_in_either_order(first: str) -> None:
    _run(first)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_registered_whatever_module_comes_first(module: str) -> None:
    _run(f"import craft.{module}")


def _run(first: str) -> None:
    check = f"{first}; from peft import PeftConfig; from craft.registration import register; register(); register(); "
    check += "print(PeftConfig.from_peft_type(peft_type='CRAFT').peft_type.value)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "CRAFT", done.stderr
