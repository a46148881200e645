"""Number formats: every method under bf16-mixed and bfloat16."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from craft.methods import METHODS
from craft.models import Base
from craft.models.compute import compute_as_stored, computes_in_bfloat16
from craft.models.loading import load_model
from craft.results import RunFailed
from craft.spec import RunSpec
from craft.trainer import training
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.process import isolate_process
from craft.trainer.training import train_run
from tests.craft.conftest import make_spec
from tests.craft.methods.cases import CASES, marked
from tests.craft.trainer.same import losses_of, same_weights, train_watched

HERE = [name for name, row in METHODS.items() if row.requires is None]
MASTERS = [name for name in HERE if METHODS[name].master_weights]


def spec_of(model: str, method: str, precision: str, **changes: Any) -> RunSpec:
    """Eight steps, all on the same 16 examples, so that the loss falls; evaluations after 4 and 8."""
    sizes = {"epochs": 8, "batch_size": 16, "train_examples": 16, "eval_examples": 8, "max_length": 16, "evaluate_every": 4}
    sizes |= {"head_start": "random"}  # a fitted one leaves little to learn
    sizes |= {"learning_rate": CASES[method].learning_rate, "warmup_ratio": 0, "select": "last", "precision": precision}
    return make_spec(model=model, method=method, parameters=CASES[method].parameters, training=sizes | changes)


def trained(spec: RunSpec, folder: Path) -> tuple[Any, list[float]]:
    result, points = train_watched(spec, folder / "run")
    return result, losses_of(points)


QUICK = [("craft", "bf16-mixed"), ("full", "bf16-mixed"), ("houlsby", "bfloat16")]


@pytest.mark.parametrize(("method", "precision"), marked([*QUICK, *((name, "bf16-mixed") for name in HERE)], QUICK))
def test_every_method_learns_and_what_trains_is_float32(method: str, precision: str, tiny_bert: str, tmp_path: Path) -> None:
    """Houlsby's norms too."""
    spec = spec_of(tiny_bert, method, precision)
    result, losses = trained(spec, tmp_path)
    assert all(map(torch.isfinite, map(torch.tensor, losses)))
    assert losses[-1] < losses[0]
    weights = load_file(next(result.adapter.glob("*.safetensors")))
    numbers = {name: weight for name, weight in weights.items() if weight.is_floating_point()}
    assert {weight.dtype for weight in numbers.values()} == {torch.float32}


@pytest.mark.parametrize("method", marked((name for name in MASTERS if name != "houlsby"), ("full",)))
def test_trained_base_weights_are_float32_over_bfloat16(method: str, tiny_bert: str, tmp_path: Path) -> None:
    """At this learning rate a step is less than a 256th of most weights, which bfloat16 weights would not take."""
    spec = spec_of(tiny_bert, method, "bfloat16", learning_rate=1e-5, head_learning_rate=1e-5)
    result, _ = trained(spec, tmp_path)
    weights = load_file(result.adapter / "trainable.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    before = dict(load_model(Base(tiny_bert, "classification", ("negative", "positive"))).named_parameters())
    moved = [(weights[name] != before[name]).float().mean().item() for name in weights if "layer.0" in name]
    assert min(moved) > 0.9
    model, _ = load_adapter(result.adapter)
    frozen = {weight.dtype for weight in model.parameters() if not weight.requires_grad and weight.dim() > 1}
    assert frozen == ({torch.bfloat16} if method == "bitfit" else set())


def test_products_are_bfloat16_and_the_head_is_float32(tiny_bert: str) -> None:
    model: Any = load_model(Base(tiny_bert, "classification", ("a", "b"), precision="bf16-mixed")).eval()
    seen: dict[str, torch.dtype] = {}
    for name in ("bert.encoder.layer.1.attention.self.query", "classifier"):
        model.get_submodule(name).register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out.dtype}))
    ids = torch.arange(100, 112)[None]
    mixed = model(input_ids=ids).logits
    assert list(seen.values()) == [torch.bfloat16, torch.float32]
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert computes_in_bfloat16(model)
    with pytest.raises(IndexError):
        model(input_ids=torch.full((1, 2), 10**6))
    assert not torch.is_autocast_enabled("cpu"), "an error in the model leaves no autocast behind"
    compute_as_stored(model)
    plain: Any = load_model(Base(tiny_bert, "classification", ("a", "b"))).eval()
    assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)
    assert not torch.equal(mixed, plain(input_ids=ids).logits)


def test_the_method_is_put_on_a_model_that_lies_where_the_run_computes(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device stands for a GPU."""
    build = Mock(side_effect=ValueError("seen"))
    monkeypatch.setitem(METHODS, "lora", replace(METHODS["lora"], build=build))
    monkeypatch.setattr(training, "compute_device", lambda: torch.device("meta"))
    with pytest.raises(RunFailed, match="seen"):
        train_run(spec_of(tiny_bert, "lora", "float32"), tmp_path)
    assert next(build.call_args.args[0].parameters()).is_meta


def test_tf32_lasts_as_long_as_the_run() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with isolate_process(tf32=True):
        assert matmul.fp32_precision == "tf32"
        with isolate_process():
            assert matmul.fp32_precision == "ieee"
    assert matmul.fp32_precision == before


LAUNCHERS = (
    "ACCELERATE_MIXED_PRECISION=bf16 ACCELERATE_DYNAMO_BACKEND=inductor ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4",
    "ACCELERATE_USE_DEEPSPEED=true ACCELERATE_TORCH_DEVICE=meta KUBEFLOW_TRAINER_SERVER_URL=http://127.0.0.1:1",
    "WORLD_SIZE=2 RANK=1 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 ACCELERATE_USE_FSDP=true",
    "WORLD_SIZE=two LOCAL_RANK=one TORCHELASTIC_RUN_ID=none OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2 PMI_RANK=1",
)


def test_a_launchers_variables_change_nothing(tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(tiny_bert, "lora", "float32", epochs=3)
    plain = train_run(spec, tmp_path / "plain").adapter / "adapter_model.safetensors"
    for number, variables in enumerate(LAUNCHERS):
        pairs = dict(pair.split("=", 1) for pair in variables.split())
        with monkeypatch.context() as patch:
            for name, value in pairs.items():
                patch.setenv(name, value)
            trained = train_run(spec, tmp_path / str(number)).adapter
            assert {name: os.environ[name] for name in pairs} == pairs, "they are the caller's again"
        assert same_weights(plain, trained / plain.name), variables


@pytest.mark.parametrize("method", marked(("dora", "craft", "lora", "vera", "pfeiffer", "lotr"), ("dora", "craft")))
def test_every_adapter_multiplies_in_bfloat16_over_a_bfloat16_base(method: str, tiny_bert: str, tmp_path: Path) -> None:
    result, _ = trained(spec_of(tiny_bert, method, "bfloat16"), tmp_path)
    model, _ = load_adapter(result.adapter)
    products = list[tuple[str, torch.dtype]]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            result = function(*arguments, **(named or {}))
            if function._schema.name in ("aten::mm", "aten::addmm") and tokens in result.shape:
                products.append((function._schema.name, result.dtype))
            return result

    layer = next(part for part in model.modules() if isinstance(part, BaseTunerLayer))
    layer.register_forward_pre_hook(lambda *_: watch.__enter__() and None)
    layer.register_forward_hook(lambda *_: watch.__exit__(None, None, None), prepend=True)
    watch = Watch()
    tokens = 13  # no other size here is 13
    with torch.no_grad():
        model(input_ids=torch.arange(100, 100 + tokens)[None])
    assert len(products) > 1
    assert {dtype for _, dtype in products} == {torch.bfloat16}, products
    weights = load_file(next(result.adapter.glob("*.safetensors")))
    assert {weight.dtype for weight in weights.values() if weight.is_floating_point()} == {torch.float32}
