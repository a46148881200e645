"""What PEFT and programs around it ask of a tuner beyond its outputs, with PEFT's LoRA on the same model as the reference."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import (
    LoraConfig,
    NoMatchingPeftModuleError,
    PeftModel,
    convert_to_lora,
    get_peft_model,
    get_peft_model_state_dict,
    save_as_lora,
    set_peft_model_state_dict,
)
from peft.helpers import disable_input_dtype_casting
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.distributed.fsdp import FullyShardedDataParallel

from craft.models.projections import target_modules
from craft.tuners.craft.config import FoundModules
from craft.tuners.low_rank import LotrConfig
from tests.craft.tuners.craft.test_peft_contract import TinyModel, adapted, close, config, gradients, hidden, loss


def lora_on(model: Any, **settings: Any) -> Any:
    """LoRA on q and v, with B away from 0."""
    chosen = {"target_modules": target_modules(model, ["q", "v"]), "init_lora_weights": False, **settings}
    return get_peft_model(model, LoraConfig(r=4, **chosen)).eval()


def layers_of(model: Any) -> dict[str, BaseTunerLayer]:
    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


def test_layers_show_their_sizes_as_lora_does(family: str, tiny_model: TinyModel) -> None:
    sizes = [
        {name: (layer.in_features, layer.out_features) for name, layer in layers_of(model).items()}
        for model in (adapted(tiny_model(family)), lora_on(tiny_model(family)))
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("settings", [config(), LotrConfig(r=2, target_modules=["query"])], ids=["craft", "lotr"])
def test_a_deleted_adapter_is_gone_from_everything_that_held_it(settings: Any, tiny_model: TinyModel) -> None:
    model = get_peft_model(tiny_model("bert"), settings, "gone")
    model.add_adapter("stays", settings)
    held = [(owner, name, mapping) for owner, name, mapping in dictionaries(model) if "gone" in mapping]
    assert any(isinstance(owner, BaseTunerLayer) for owner, _, _ in held)
    model.delete_adapter("gone")
    assert [name for _, name, mapping in held if "gone" in mapping] == []
    assert all("stays" in mapping for owner, _, mapping in held if isinstance(owner, BaseTunerLayer))
    assert {tuple(layer.active_adapters) for layer in layers_of(model).values()} == {("stays",)}


@pytest.mark.parametrize("kind", ["craft", "lotr"])
def test_a_refused_merge_leaves_the_trained_head(kind: str, tiny_model: TinyModel) -> None:
    settings: Any = config() if kind == "craft" else LotrConfig(r=2, target_modules=["query"])
    settings.task_type = "SEQ_CLS"
    model = get_peft_model(tiny_model("bert", head="classifier"), settings)
    for layer in layers_of(model).values() if kind == "craft" else ():
        layer.quantization_backend = SimpleNamespace(backend_name="pretended")
    before = get_peft_model_state_dict(model)
    with pytest.raises(ValueError, match=r"(cannot be|are not) merged into"):
        model.merge_and_unload()
    assert get_peft_model_state_dict(model).keys() == before.keys()
    assert any("classifier" in name for name in before)


def dictionaries(model: Any) -> Iterator[tuple[Any, str, Any]]:
    for owner in (model, model.base_model, *layers_of(model).values()):
        for name in dir(owner):
            if not name.startswith("_"):
                value = getattr(owner, name, None)
                if callable(getattr(value, "keys", None)) and hasattr(value, "__contains__"):
                    yield owner, name, value


def test_after_the_last_adapter_another_one_works_as_the_first_did(tiny_model: TinyModel) -> None:
    base = hidden(tiny_model("bert").eval())
    model = adapted(tiny_model("bert"))
    model.delete_adapter("default")
    assert torch.equal(model.base_model(input_ids=torch.arange(24).view(2, 12) % 60 + 1).last_hidden_state, base)
    with pytest.raises(ValueError, match="r2"):
        model.add_adapter("wrong", config(ranks=("all", 33, 7)))
    model.add_adapter("new", config())
    model.set_adapter("new")
    assert torch.equal(hidden(model.eval()), hidden(get_peft_model(tiny_model("bert"), config()).eval()))
    assert len(model.base_model.model._forward_pre_hooks) == 1


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_state_dict_from_under_fsdp_is_the_plain_one(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert"), save_factors=True)
    expected, plain = hidden(model), get_peft_model_state_dict(model)
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    state = get_peft_model_state_dict(wrapped)
    torch.testing.assert_close(state, plain, rtol=0, atol=0)
    target = get_peft_model(tiny_model("bert"), config(init_seed=9))
    set_peft_model_state_dict(target, state)
    assert torch.equal(hidden(target.eval()), expected)


@pytest.mark.usefixtures("one_process")
def test_distributed_training_averages_gradients(tiny_model: TinyModel) -> None:
    """DDP on one process: gradients arrive through its reducer."""
    model = adapted(tiny_model("bert")).train()
    loss(hidden(model)).backward()
    expected = gradients(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        loss(hidden(wrapped)).backward()
        for mine, theirs in zip(gradients(model), expected, strict=True):
            close(mine, theirs, 1e-6)


@pytest.mark.parametrize("rank", [12, 0.9999999])
def test_pefts_own_conversion_to_lora(rank: float, family: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    """A module of GPT-2 holds both q and v, so its change has rank 12; elsewhere it has 6."""
    model = adapted(tiny_model(family))
    expected = hidden(model)
    converted = get_peft_model(tiny_model(family), convert_to_lora(model, rank)[0])
    assert layers_of(converted).keys() == layers_of(model).keys()
    save_as_lora(tmp_path / "theirs", model, rank)
    theirs = PeftModel.from_pretrained(tiny_model(family), tmp_path / "theirs").eval()
    close(hidden(theirs), expected, 1e-4 if isinstance(rank, int) else 1e-2)


@pytest.mark.parametrize("projections", [None, ("q", "v")])
def test_target_modules_are_where_the_projections_were_found(
    projections: tuple[str, ...] | None, tiny_model: TinyModel, tmp_path: Path
) -> None:
    settings = config(projections=projections)
    for family in ("bert", "llama"):  # one configuration serves models of several families
        model = get_peft_model(tiny_model(family), settings)
        reference = lora_on(tiny_model(family))
        assert settings.target_modules == set(reference.base_model.targeted_module_names)
        model.add_adapter("other", settings)
    assert isinstance(settings.target_modules, FoundModules)
    smaller = dataclasses.replace(settings, ranks=("all", 2, 2))
    assert smaller.words == ("q", "v")
    assert smaller.target_modules is None
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] is None
    chosen = config(target_modules=["query"])
    get_peft_model(tiny_model("bert"), chosen)
    assert chosen.target_modules == ["query"]


def test_modules_left_out_raise_no_warning(tiny_model: TinyModel) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no modules were excluded")
        model = adapted(tiny_model("bert"), exclude_modules=r".*layer\.2\..*")
    assert not any("layer.2" in name for name in layers_of(model))
    with pytest.warns(UserWarning, match="no modules were excluded"):
        adapted(tiny_model("bert"), exclude_modules=["nothing"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target_modules": ["nothing"]}, "fit no linear module"),
        ({"target_modules": ["query"], "exclude_modules": ["query"]}, "leave out all"),
        ({"target_modules": ["query"], "modules_to_save": ["encoder"]}, "leave out all"),
        ({"projections": ("q",), "exclude_modules": ["query"]}, "leave out every module"),
    ],
)
def test_no_module_to_adapt_is_pefts_own_error(settings: dict[str, Any], said: str, tiny_model: TinyModel) -> None:
    with pytest.raises(NoMatchingPeftModuleError, match=said):
        adapted(tiny_model("bert"), **settings)


@pytest.mark.parametrize("make", [config, partial(LotrConfig, r=2)], ids=["craft", "lotr"])
def test_a_chosen_module_that_cannot_be_adapted_is_no_silent_loss(make: Any, tiny_model: TinyModel) -> None:
    chosen = ["query", "LayerNorm"]
    with pytest.raises(ValueError, match=r"(?s)LayerNorm.*exclude_modules"):
        get_peft_model(tiny_model("bert"), make(target_modules=chosen))
    left = get_peft_model(tiny_model("bert"), make(target_modules=chosen, exclude_modules=["LayerNorm"]))
    assert all(name.endswith("query") for name in layers_of(left))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_j_in_half_precision_is_refused_in_words(dtype: torch.dtype, tiny_model: TinyModel) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = get_peft_model(tiny_model("llama", dtype), config(), autocast_adapter_dtype=False)
    said = [str(warning.message) for warning in caught if "autocast_adapter_dtype" in str(warning.message)]
    assert len(said) == (dtype == torch.bfloat16)
    assert {parameter.dtype for parameter in model.base_model.craft_J.parameters()} == {torch.float32}


def test_status_tells_of_adapters_what_it_tells_of_loras(tiny_model: TinyModel) -> None:
    models = adapted(tiny_model("bert")), lora_on(tiny_model("bert"))
    for model, settings in zip(models, (config(), LoraConfig(r=2, target_modules=["query", "value"])), strict=True):
        model.add_adapter("other", settings)
    for step in ("as added", "other active", "merged", "disabled"):
        told = []
        for model in models:
            if step == "other active":
                model.set_adapter("other")
            elif step == "merged":
                model.merge_adapter()
            elif step == "disabled":
                model.unmerge_adapter()
                model.base_model.disable_adapter_layers()
            status = {**dataclasses.asdict(model.get_model_status()), "adapter_model_type": "", "peft_types": {}}
            layers = [{**dataclasses.asdict(layer), "module_type": ""} for layer in model.get_layer_status()]
            counts = {name for name in status if "param" in name}
            told.append(({name: value for name, value in status.items() if name not in counts}, layers))
        assert told[0] == told[1], step


def test_input_casting_may_be_switched_off(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert"))
    expected = hidden(model)
    with disable_input_dtype_casting(model):
        assert torch.equal(hidden(model), expected)


MODULES = ("models.projections", "tuners.joint", "tuners.craft.config", "tuners.craft.model")
FIRST = ["import peft, craft", "from craft import CraftConfig, CraftModel", *(f"import craft.{name}" for name in MODULES)]


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRST)
def test_craft_is_registered_whatever_is_imported_first(first: str) -> None:
    check = f"{first}; from peft import PeftConfig; from craft.tuners.joint import register; register(); register(); "
    check += "print(PeftConfig.from_peft_type(peft_type='CRAFT').peft_type.value)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "CRAFT", done.stderr
