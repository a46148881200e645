"""Step time (forward, backward, AdamW) of CRAFT over PEFT's LoRA, with DoRA, VeRA, full fine-tuning and the weight form; and
of CRAFT and LoRA in the upper half of the layers.

    python -m tests.benchmarks.step_time [--models minilm roberta-base llama llama3-8b-2layers] [--quick] [--threads 1]
    python -m tests.benchmarks.step_time --device cuda [--models llama3-8b]

Ratios are medians over alternated rounds (`tests.benchmarks.timing`). The baseline's adapters have the same dtype as CRAFT's
products: the model's. "LoRA, float32 adapters" is PEFT's default on a bfloat16 model. On the first three shapes LoRA has rank 8
on the modules CRAFT adapts; on LLaMA3-8B's shape the baseline is the paper's, rank 32 on q, k, v and o. All 32 layers of it,
with gradient checkpointing as the sweep has, are for a GPU; their weights are random and made there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from peft import LoraConfig, VeraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F

from craft import CraftConfig
from craft.models.projections import target_modules
from craft.tuners.craft.layer import CraftLinear
from tests.benchmarks.shapes import ON_GPU, SHAPES, Shape, Task, backbone, shared_copy, tokens
from tests.benchmarks.timing import alternate, arguments, machine, table

QV, QKVO = ("q", "v"), ("q", "k", "v", "o")
RANKS = (32, 64, 128, 250)
LARGE_RANKS = (64, 128, 250, 360)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def craft(model: nn.Module, rank: int, projections: Sequence[str]) -> nn.Module:
    return get_peft_model(model, CraftConfig(ranks=("all", rank, rank), projections=tuple(projections), init_seed=0))


def lora(model: nn.Module, rank: int, projections: Sequence[str], *, same_dtype: bool = True, dora: bool = False) -> nn.Module:
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=target_modules(model, projections), use_dora=dora)
    return get_peft_model(model, config, autocast_adapter_dtype=not same_dtype)


def vera(model: nn.Module, projections: Sequence[str]) -> nn.Module:
    return get_peft_model(model, VeraConfig(r=256, target_modules=target_modules(model, projections)))


def in_upper_half(model: nn.Module, shape: Shape) -> tuple[nn.Module, nn.Module]:
    """CRAFT r=128 and LoRA r=8 on q and v of the upper half of the layers."""
    half = shape.config.num_hidden_layers // 2
    lower = target_modules(model, QV, layers=range(half))
    ours = CraftConfig(ranks=("all", 128, 128), projections=QV, exclude_modules=lower, init_seed=0)
    theirs = LoraConfig(r=8, lora_alpha=8, target_modules=target_modules(model, QV, layers=half))
    return get_peft_model(shared_copy(model), ours), get_peft_model(shared_copy(model), theirs, autocast_adapter_dtype=False)


def weight_form(model: nn.Module, rank: int, projections: Sequence[str]) -> nn.Module:
    """CRAFT as the paper implements it: every adapted weight rebuilt in each forward pass."""
    adapted = craft(model, rank, projections)
    for layer in adapted.modules():
        if isinstance(layer, CraftLinear):
            layer.forward = partial(_rebuilt, layer)  # type: ignore[method-assign]
    return adapted


def _rebuilt(layer: CraftLinear, x: Tensor) -> Tensor:
    (piece,) = layer.craft_slices["default"]
    factors = piece.stack.ready()
    core = piece.matrices(x.float(), layer.training)[1]
    delta = piece.stack.scaling * factors.u2 @ core @ factors.u3.T
    base = layer.base_layer
    return F.linear(x, (base.weight + delta).to(x.dtype), base.bias)


def step(model: nn.Module, shape: Shape, device: str, *, full: bool = False) -> Callable[[], None]:
    """One optimizer step of `model` under a task head, ready to be timed."""
    if full:
        model.requires_grad_(True)
    task = Task(model, shape.config.hidden_size).to(device)
    task.train()
    trained = [parameter for parameter in task.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    batch = tokens(shape, device)

    def run() -> None:
        task(batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def contenders(shape: Shape, dtype: torch.dtype, device: str) -> tuple[dict[str, Callable[[], None]], str, dict[str, float]]:
    """Name -> step, the baseline's name, and the goals."""
    base = backbone(shape, dtype, device)
    base.requires_grad_(False)
    large = shape.name.startswith("llama3")
    ranks = [rank for rank in (LARGE_RANKS if shape.checkpointing else RANKS) if rank <= _smallest(shape)]
    # The largest first: the others are slices of its decomposition.
    ours = {rank: craft(shared_copy(base), rank, QV) for rank in reversed(ranks)}
    if large:
        baseline = "LoRA r=32 qkvo"
        models = {baseline: lora(shared_copy(base), 32, QKVO)}
        models["LoRA r=32 qkvo, float32 adapters"] = lora(shared_copy(base), 32, QKVO, same_dtype=False)
        low, high = (1.0, 1.01) if shape.checkpointing else (0.95, 0.98)
        goals = {"CRAFT qv r=128": low, "CRAFT qv r=250": high}
        models |= {f"CRAFT qv r={rank}": ours[rank] for rank in ranks}
        models["weight form qv r=128"] = weight_form(shared_copy(base), 128, QV)
        models["DoRA r=32 qkvo"] = lora(shared_copy(base), 32, QKVO, dora=True)
    else:
        baseline = "LoRA r=8 qv"
        goals = {f"CRAFT qv r={rank}": 1.05 if rank > 128 else 1.0 for rank in (128, 250)}
        models = {baseline: lora(shared_copy(base), 8, QV)}
        models["LoRA r=8 qv, float32 adapters"] = lora(shared_copy(base), 8, QV, same_dtype=False)
        models |= {f"CRAFT qv r={rank}": ours[rank] for rank in ranks}
        models["weight form qv r=128"] = weight_form(shared_copy(base), 128, QV)
        models["DoRA r=8 qv"] = lora(shared_copy(base), 8, QV, dora=True)
        if shape.name != "llama":  # VeRA shares A and B among layers; grouped-query shapes differ
            models["VeRA r=256 qv"] = vera(shared_copy(base), QV)
        models["LoRA r=8 qkvo"] = lora(shared_copy(base), 8, QKVO)
        models["CRAFT qkvo r=128"] = craft(shared_copy(base), 128, QKVO)
        models["CRAFT qv r=128, upper half"], models["LoRA r=8 qv, upper half"] = in_upper_half(base, shape)
    if dtype == torch.float32:
        models = {name: model for name, model in models.items() if "float32 adapters" not in name}
    steps = {name: step(model, shape, device) for name, model in models.items()}
    if not large:
        steps["full fine-tuning"] = step(backbone(shape, dtype, device), shape, device, full=True)
    return steps, baseline, goals


def _smallest(shape: Shape) -> int:
    config = shape.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    return config.hidden_size // config.num_attention_heads * heads


def main() -> None:
    options = arguments(__doc__, list(SHAPES), on_gpu=ON_GPU, dtypes="float32, bfloat16", only="parts of contenders' names")
    print(f"step time, {machine(options.device)}")
    for name in options.models:
        shape = SHAPES[name]
        default = ["bfloat16"] if name.startswith("llama3") else list(DTYPES)
        for dtype in options.dtypes or default:
            steps, baseline, goals = contenders(shape, DTYPES[dtype], options.device)
            if options.only:
                steps = {key: run for key, run in steps.items() if key == baseline or any(part in key for part in options.only)}
            rounds = options.rounds or (3 if options.quick else 15 if name.startswith("llama3") else 40)
            timings = alternate(steps, baseline, rounds=rounds, warmup=1 if options.quick else 3, device=options.device)
            title = f"\n{name}, {dtype}, {shape.batch} x {shape.length} tokens, ratio to {baseline}"
            print(table(title, timings, goals), flush=True)


if __name__ == "__main__":
    main()
