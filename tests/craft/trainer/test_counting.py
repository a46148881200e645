"""Counts: the paper's own numbers from config.json alone, and agreement of plan, trained model and file.

The plan's bytes against those that autograd keeps, for two layers of LLaMA3-8B: tensors without numbers, on no device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from craft.factors.hosvd import TuckerFactors
from craft.methods import METHODS
from craft.models import Base, quiet_libraries
from craft.models.compute import PRODUCTS, multiply_as_base
from craft.models.loading import meta_model
from craft.results import ModelUnsuited
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.checkpoint import verify
from craft.trainer.counting import count, estimated_memory, planned_counts
from craft.trainer.meter import Meter
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.craft.methods.cases import marked, put

ROBERTA = {"model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
CONFIGS = {
    "roberta-base": ROBERTA
    | {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "roberta-large": ROBERTA
    | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "llama2-7b": LLAMA | {"num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000},
    "llama3-8b": LLAMA | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256},
}


def config_of(name: str, folder: Path, **changes: int) -> str:
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("model", "ranks", "projections", "published"),
    [
        ("roberta-base", (12, 100, 100), "qv", 40_288),
        ("roberta-large", (24, 100, 100), "qv", 41_152),
        ("llama3-8b", (32, 64, 64), "qv", 18_432),
        ("llama2-7b", (32, 128, 128), "qv", 67_584),
        ("llama3-8b", (32, 250, 250), "qv", 252_048),
        ("llama2-7b", (32, 360, 360), "qkvo", 1_040_896),
        ("llama3-8b", ("all", 360, 360), "qkvo", 1_040_896),
    ],
)
def test_the_papers_counts_from_a_config_without_weights(
    tmp_path: Path, model: str, ranks: tuple[int, int, int], projections: str, published: int
) -> None:
    parameters = {"ranks": ranks, "projections": list(projections)}
    spec = RunSpec(model=config_of(model, tmp_path), task="glue/rte", method="craft", parameters=parameters)
    assert planned_counts(spec).trainable_parameters == published


@pytest.mark.parametrize(("name", "billions"), [("llama2-7b", 6.738415616), ("llama3-8b", 8.030261248)])
def test_total_parameters_are_the_published_sizes(tmp_path: Path, name: str, billions: float) -> None:
    model = meta_model(Base(config_of(name, tmp_path), "generation", ()))
    assert count(model).total_parameters == round(billions * 1e9)
    assert all(weight.is_meta for weight in model.parameters())


@pytest.mark.parametrize("method", ["craft", "lora"])
def test_plan_run_and_file_agree(tiny_spec: MakeSpec, tmp_path: Path, method: str) -> None:
    spec = tiny_spec(method=method, training={"max_steps": 2})
    planned = planned_counts(spec)
    result = train_run(spec, tmp_path)
    for name in ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "optimizer_bytes"):
        assert getattr(planned, name) == getattr(result.counts, name), name
    assert 0 < (result.counts.step_seconds or 0) < 60
    assert (result.counts.tokens_per_second or 0) > 1
    assert (result.counts.peak_memory_bytes or 0) > 2**20
    verify(result.adapter)
    stored = load_file(result.adapter / "adapter_model.safetensors").values()
    assert method == "craft" or planned.adapter_bytes == sum(tensor.nbytes for tensor in stored)
    record = json.loads((result.adapter / "run.json").read_text())
    assert record["counts"]["trainable_parameters"] == planned.trainable_parameters
    assert record["metrics"] == result.metrics
    with pytest.raises(ValueError, match=r"run\.json"):
        load_adapter(tmp_path)


def test_a_meters_times_survive_a_checkpoint() -> None:
    meter, second = Meter(), Meter()
    for tokens in (10, 20, 30):
        with meter.step(tokens):
            pass
    state = json.loads(json.dumps(meter.state()))
    second.restore(state)
    assert second.costs()["step_seconds"] == meter.costs()["step_seconds"]
    assert second.costs()["tokens_per_second"] == pytest.approx(60 / meter.seconds)
    second.restore(state | {"peak_memory_bytes": 2**60})
    assert second.costs()["peak_memory_bytes"] == 2**60, "the higher of both parts"


@pytest.mark.skipif(torch.cuda.is_available(), reason="reads the host's memory")
def test_peak_memory_on_a_cpu_sees_a_large_tensor_and_forgets_the_run_before() -> None:
    meter = Meter()
    before = meter.costs()["peak_memory_bytes"]
    block = torch.ones(64 * 2**20)
    del block
    during = meter.costs()["peak_memory_bytes"]
    assert during - before > 200 * 2**20
    if meter._resettable:
        assert Meter().costs()["peak_memory_bytes"] < during - 200 * 2**20


def test_the_memory_estimate_is_its_formula(tiny_spec: MakeSpec) -> None:
    spec = tiny_spec(method="lora")
    counts = planned_counts(spec)
    tokens = 8 * 32
    layers = tokens * (3 * (8 * 32 + 3 * 64) + 3 * 64) * 4  # the backward pass of one has three gradients more
    trained = counts.trainable_parameters + counts.head_parameters
    frozen = counts.total_parameters - trained
    inputs = 3 * tokens * 32 * 4  # the input of q and v
    assert estimated_memory(spec) == 4 * frozen + 16 * trained + layers + inputs
    half = tiny_spec(method="lora", training={"precision": "bfloat16", "gradient_checkpointing": True})
    assert estimated_memory(half) < estimated_memory(spec) / 1.9
    mixed = tiny_spec(method="lora", training={"precision": "bf16-mixed"})
    linear = 3 * (4 * 32 * 32 + 2 * 32 * 64) + 32 * 32
    copies = 2 * linear + inputs  # in bfloat16
    assert estimated_memory(mixed) == 4 * frozen + 16 * trained + layers * 3 // 4 + copies
    # Full fine-tuning has float32 weights under both: 16 bytes each with gradient and moments, and bfloat16 copies.
    whole = [tiny_spec(method="full", training={"precision": precision}) for precision in ("bf16-mixed", "bfloat16")]
    assert estimated_memory(whole[0]) == estimated_memory(whole[1])


def test_a_model_that_cannot_checkpoint_activations_is_refused_in_the_plan(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mpnet", **sizes}))
    spec = tiny_spec(model=str(tmp_path), method="lora", training={"gradient_checkpointing": True})
    with pytest.raises(ModelUnsuited, match="Take gradient_checkpointing: false"):
        planned_counts(spec)


TEXTS, TOKENS = 16, 512
SWEEPS = {"rank": 32, "projections": ["q", "k", "v", "up", "down"]}
PARAMETERS: dict[str, Any] = {
    "craft": {"ranks": ["all", 128, 128], "projections": ["q", "v"]},
    "lora": SWEEPS,
    "dora": SWEEPS,
}
QUICK = (*PARAMETERS, "full", "houlsby")
WITHOUT = {
    "bitfit": "LLaMA has no biases",
    "superlora": "its groups need numbers",
    "peft": "the type decides",
    "qlora": "it needs a GPU",
    # Their first layers need no backward pass, which the plan does not know.
    "head": "",
    "adapterdrop": "",
}


def kept_bytes(model: Any) -> int:
    """What autograd keeps of a forward pass up to the output layer, the model's own weights left out; each storage once."""
    own = {weight.untyped_storage()._cdata for weight in [*model.parameters(), *model.buffers()]}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        base.model(input_ids=torch.zeros(TEXTS, TOKENS, dtype=torch.long))
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", marked((name for name in METHODS if name not in WITHOUT), QUICK))
def test_the_plan_covers_what_the_backward_pass_keeps(method: str, precision: str, tmp_path: Path) -> None:
    llama = config_of("llama3-8b", tmp_path, num_hidden_layers=2)
    row, parameters = METHODS[method], PARAMETERS.get(method, {})
    if row.master_weights and precision == "bfloat16":
        pytest.skip("its products are bfloat16 by autocast, which keeps copies of weights, too")
    settings = {"precision": precision, "batch_size": TEXTS, "max_length": TOKENS}
    spec = RunSpec(model=llama, task="toy/sentiment", method=method, parameters=parameters, training=settings)
    half = spec.model_copy(update={"training": spec.training.model_copy(update={"max_length": TOKENS // 2})})
    planned = 2 * (estimated_memory(spec) - estimated_memory(half))  # what grows with the tokens
    planned -= 3 * 14336 * TEXTS * TOKENS * PRODUCTS[precision].itemsize  # the backward pass's own
    base = meta_model(Base(llama, "generation", (), precision=precision, master_weights=row.master_weights))
    with quiet_libraries(), torch.device("meta"):
        model = put(base, method, parameters, "CAUSAL_LM")
    if precision == "bfloat16":
        multiply_as_base(model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu").train()
        if method.startswith("craft"):  # its stacks need factors of their shapes
            for stack in model.base_model.craft_adapter("default").stacks.values():
                (r1, r2, r3), (layers, d_out, d_in) = stack.ranks, stack.shape
                shapes = (r1, r2, r3), (layers, r1), (d_out, r2), (d_in, r3)
                stack.set_factors(TuckerFactors(*map(torch.empty, shapes)))
        counted = kept_bytes(model)
    assert planned >= 0.98 * counted, f"{planned / 2**30:.2f} GiB planned, {counted / 2**30:.2f} kept"
    if method in (*PARAMETERS, "full"):
        assert planned <= 1.25 * counted, f"{planned / 2**30:.2f} GiB planned, {counted / 2**30:.2f} kept"
