"""Counts: the paper's own numbers from config.json alone, and agreement of plan, trained model and file on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from craft.models import Base
from craft.models.loading import load_model, meta_model
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.checkpoint import verify
from craft.trainer.counting import count, estimated_memory, planned_counts
from craft.trainer.meter import Meter
from craft.trainer.training import train_run

MakeSpec = Callable[..., RunSpec]

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


@pytest.fixture(scope="module")
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    root = tmp_path_factory.mktemp("configs")

    def folder(name: str) -> str:
        place = root / name
        if not place.exists():
            place.mkdir()
            (place / "config.json").write_text(json.dumps(CONFIGS[name]))
        return str(place)

    return folder


@pytest.mark.parametrize(
    ("model", "ranks", "projections", "published"),
    [
        ("roberta-base", (12, 100, 100), "qv", 40_288),
        ("roberta-large", (24, 100, 100), "qv", 41_152),
        ("llama2-7b", (32, 64, 64), "qv", 18_432),
        ("llama3-8b", (32, 64, 64), "qv", 18_432),
        ("llama2-7b", (32, 128, 128), "qv", 67_584),
        ("llama3-8b", (32, 128, 128), "qv", 67_584),
        ("llama2-7b", (32, 250, 250), "qv", 252_048),
        ("llama3-8b", (32, 250, 250), "qv", 252_048),
        ("llama2-7b", (32, 360, 360), "qkvo", 1_040_896),
        ("llama3-8b", ("all", 360, 360), "qkvo", 1_040_896),
    ],
)
def test_the_papers_counts_from_a_config_without_weights(
    config_folder: Callable[[str], str], model: str, ranks: tuple[int, int, int], projections: str, published: int
) -> None:
    parameters = {"ranks": ranks, "projections": list(projections)}
    spec = RunSpec(model=config_folder(model), task="glue/rte", method="craft", parameters=parameters)
    counts = planned_counts(spec)
    assert counts.trainable_parameters == published
    hidden, labels = CONFIGS[model]["hidden_size"], 2
    # RoBERTa's head is dense + output, LLaMA's one matrix without bias (transformers' own heads).
    dense = hidden * hidden + hidden + hidden * labels + labels
    assert counts.head_parameters == (dense if model.startswith("roberta") else hidden * labels)


@pytest.mark.parametrize(("name", "billions"), [("llama2-7b", 6.738415616), ("llama3-8b", 8.030261248)])
def test_total_parameters_are_the_published_sizes(config_folder: Callable[[str], str], name: str, billions: float) -> None:
    model = meta_model(Base(config_folder(name), "generation", ()))
    assert count(model).total_parameters == round(billions * 1e9)
    assert all(weight.is_meta for weight in model.parameters())


@pytest.mark.parametrize("method", ["craft", "lora"])
def test_plan_run_and_files_agree(tiny_spec: MakeSpec, tmp_path: Path, method: str) -> None:
    spec = tiny_spec(method=method, training={"max_steps": 2})
    planned = planned_counts(spec)
    result = train_run(spec, tmp_path)
    for name in ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "optimizer_bytes"):
        assert getattr(planned, name) == getattr(result.counts, name), name
    tensors = load_file(result.adapter / "adapter_model.safetensors")
    learnt = sum(tensor.numel() for name, tensor in tensors.items() if "classifier" not in name)
    head = sum(tensor.numel() for name, tensor in tensors.items() if "classifier" in name)
    assert head == planned.head_parameters == 2 * 32 + 2
    if method == "lora":
        assert learnt == planned.trainable_parameters == 3 * 2 * 2 * (2 * 32)
        assert planned.adapter_bytes == 4 * (learnt + head)
    else:
        assert planned.trainable_parameters == 2 * (3**2 + 8**2 + 8**2)
    base = sum(weight.numel() for weight in load_model(Base(spec.model, "classification", ("a", "b"))).parameters())
    assert planned.total_parameters == base + planned.trainable_parameters
    counts = result.counts
    assert counts.step_seconds is not None
    assert 0 < counts.step_seconds < 60
    assert counts.tokens_per_second is not None
    assert counts.tokens_per_second > 1
    assert counts.peak_memory_bytes is not None
    assert counts.peak_memory_bytes > 2**20
    verify(result.adapter)
    record = json.loads((result.adapter / "run.json").read_text())
    assert record["counts"]["trainable_parameters"] == counts.trainable_parameters
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


def test_full_fine_tuning_needs_as_much_memory_under_both_bfloat16_precisions(tiny_bert: str) -> None:
    """Its weights are float32 under both: 16 bytes each with gradient and moments, and a bfloat16 copy of the linear ones."""
    sizes = [
        estimated_memory(RunSpec(model=tiny_bert, task="toy/sentiment", method="full", training={"precision": precision}))
        for precision in ("bf16-mixed", "bfloat16")
    ]
    assert sizes[0] == sizes[1]
