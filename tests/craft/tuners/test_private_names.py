"""The private names of PEFT that our tuners call or replace: with another PEFT this is the first test to fail."""

from __future__ import annotations

import inspect
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import peft
import pytest
from packaging.requirements import Requirement
from peft.tuners import tuners_utils
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.peft_types import PeftType

import craft
from craft.models.adapters import _VECTORS

HOOKS = {
    "_pre_injection_hook": ["self", "model", "config", "adapter_name"],
    "_prepare_adapter_config": ["self", "peft_config", "model_config"],
    "_create_and_replace": [
        "self",
        "peft_config",
        "adapter_name",
        "target",
        "target_name",
        "parent",
        "current_key",
        "parameter_name",
    ],
    "_check_target_module_exists": ["peft_config", "key"],
    "_cast_adapter_dtype": ["self", "adapter_name", "autocast_adapter_dtype"],
    "_unload_and_optionally_merge": ["self", "merge", "progressbar", "safe_merge", "adapter_names"],
    "_get_adapter_state_dict": ["model", "config", "adapter_name", "state_dict", "unwanted_adapter_names"],
    "_remove_adapter_name_from_key": ["key", "adapter_name"],
    "_remap_adapter_state_dict_for_load": ["model", "config", "adapter_name", "state_dict"],
    "_replace_module": ["self", "parent", "child_name", "new_module", "child"],
}
"""Methods of `BaseTuner` with their parameters."""

OTHERS = ("_get_base_layer_device_and_dtype", "_maybe_include_all_linear_layers", "_enable_peft_forward_hooks")
ENUM = ("_member_names_", "_member_map_", "_value2member_map_")


@pytest.mark.parametrize("name", HOOKS)
def test_a_tuner_has_the_private_methods_that_ours_call_or_replace(name: str) -> None:
    assert list(inspect.signature(getattr(BaseTuner, name)).parameters) == HOOKS[name]


def test_the_other_private_names_are_there() -> None:
    assert callable(BaseTunerLayer._get_base_layer_device_and_dtype)
    assert callable(tuners_utils._maybe_include_all_linear_layers)
    assert "_enable_peft_forward_hooks" in inspect.getsource(peft.PeftModel), "a tuner's own, if it has one"
    for name in ENUM:
        assert "LORA" in getattr(PeftType, name)


@pytest.mark.parametrize("name", _VECTORS)
def test_peft_keeps_its_decompositions_in_the_buffers_that_are_compared(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(import_module(f"peft.tuners.{name.strip('_').split('_')[0]}.layer"))


def test_one_module_has_them_all() -> None:
    files = [*Path(inspect.getfile(craft)).parent.rglob("*.py")]
    for name in (*HOOKS, *OTHERS, *ENUM):
        assert [file.name for file in files if name in file.read_text()] == ["joint.py"], name


@pytest.mark.parametrize("name", ["peft", "ray", "mlflow"])
def test_the_requirement_allows_no_version_that_may_have_renamed_them(name: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in map(Requirement, project["dependencies"]) if each.name == name)
    assert requirement.specifier.contains(version(name))
    assert any(each.operator == "<" for each in requirement.specifier)
