"""PiSSA, LoRA-XS and MiLoRA from stored singular vectors: the bits of their own SVDs, once for all runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from craft.factors.store import default_store
from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models.projections import target_modules
from craft.tuners.stored_svd import svd_from_store

PISSA = {"peft_type": "LORA", "r": 5, "lora_alpha": 10, "init_lora_weights": "pissa"}
PSOFT = {"peft_type": "PSOFT", "r": 5, "psoft_alpha": 5, "psoft_orth": False, "psoft_mag_a": False, "psoft_mag_b": False}


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))


def tensors(model: Any) -> dict[str, torch.Tensor]:
    caches = {
        f"{name}.{cache}": getattr(module, cache)["default"]
        for name, module in model.named_modules()
        for cache in ("_psoft_A_cache", "_psoft_B_cache")
        if hasattr(module, cache)
    }
    return dict(model.named_parameters()) | caches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "settings"), [("bert", PISSA), ("gpt2", PISSA), ("llama", PISSA), ("bert", PSOFT), ("llama", PSOFT)]
)
def test_peft_gives_the_same_model_from_the_store(
    tiny_model: Callable[..., Any], kind: str, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    def built() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        model = tiny_model(kind, dtype=dtype)
        torch.manual_seed(3)
        adapted: Any = peft.get_peft_model(
            model, peft.get_peft_config({**settings, "target_modules": target_modules(model, ["q", "v"])})
        )
        return tensors(adapted), torch.random.get_rng_state()

    expected, state = built()
    for is_first in (True, False):
        before = default_store().makes
        with svd_from_store():
            actual, after = built()
        assert (default_store().makes > before) == is_first
        assert torch.equal(after, state), "later random numbers are those that they were"
        assert actual.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(actual[name], tensor), name
            assert actual[name].dtype == tensor.dtype
    before = default_store().makes
    built()
    assert default_store().makes == before, "outside the block PEFT is as it is"


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_miloras_start_is_that_of_a_plain_svd(tiny_model: Callable[..., Any], kind: str) -> None:
    base, row = tiny_model(kind), METHODS["milora"]
    built: Any = row.build(
        tiny_model(kind), row.parameters.model_validate({"rank": 4, "alpha": 8}), BuildContext("FEATURE_EXTRACTION")
    )
    layers = {name: layer for name, layer in built.base_model.model.named_modules() if hasattr(layer, "lora_A")}
    assert layers
    for name, layer in layers.items():
        stored = base.get_submodule(name).weight.detach()
        weight = stored.T if layer.fan_in_fan_out else stored
        u, s, vt = torch.linalg.svd(weight, full_matrices=False)
        root = (s[-4:] / 2.0).sqrt()
        a, b = root[:, None] * vt[-4:], u[:, -4:] * root
        rest = weight - 2.0 * b @ a
        assert torch.equal(layer.lora_A["default"].weight, a)
        assert torch.equal(layer.lora_B["default"].weight, b)
        assert torch.equal(layer.base_layer.weight, rest.T if layer.fan_in_fan_out else rest)


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.singular_vectors])
def test_rows_that_say_so_share_one_svd_of_each_weight(tiny_model: Callable[..., Any], method: str) -> None:
    weights = 2 * 3
    for rank in (2, 3):
        row = METHODS[method]
        row.build(tiny_model("bert"), row.parameters.model_validate({"rank": rank}), BuildContext("FEATURE_EXTRACTION"))
        assert default_store().makes == weights
    other = METHODS["pissa"]
    other.build(tiny_model("bert"), other.parameters.model_validate({"rank": 4}), BuildContext("FEATURE_EXTRACTION"))
    assert default_store().makes == weights


def test_the_rows_that_say_so_are_all_that_ask(tiny_model: Callable[..., Any]) -> None:
    assert {name for name, row in METHODS.items() if row.singular_vectors} == {"pissa", "milora", "lora_xs"}
