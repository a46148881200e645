"""Step time (forward, backward, AdamW) of CRAFT over PEFT's LoRA, with DoRA, VeRA and full fine-tuning; and of CRAFT and LoRA
in the upper half of the layers.

    python -m tests.benchmarks.step_time [--models minilm roberta-base llama llama3-8b-2layers] [--quick] [--threads 1]
    python -m tests.benchmarks.step_time --device cuda [--models llama3-8b]

Models have true shapes and random weights: time does not depend on values. A machine's speed drifts; a ratio of two times taken
one after the other drifts far less. So every round runs each contender once, in an order that turns with the rounds, and a
contender's ratio is the median over rounds of its time over the baseline's time in the same round. A GPU is timed by two events
in its own queue. The baseline's adapters have the same dtype as CRAFT's products: the model's. "LoRA, float32 adapters" is
PEFT's default on a bfloat16 model. On the first three shapes LoRA has rank 8 on the modules CRAFT adapts; on LLaMA3-8B's shape
the baseline is the paper's, rank 32 on q, k, v and o. All 32 layers of it, with gradient checkpointing as the sweep has, are
for a GPU.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, VeraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, LlamaConfig, PretrainedConfig, RobertaConfig

from craft import CraftConfig
from craft.models.projections import target_modules
from orchestrator.record.manifest import hardware

QV, QKVO = ("q", "v"), ("q", "k", "v", "o")
RANKS = (32, 64, 128, 250)
LARGE_RANKS = (64, 128, 250, 360)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Shape:
    """One benchmark model: its config and the batch it is fed (sequences x tokens)."""

    name: str
    config: PretrainedConfig
    batch: int
    length: int
    checkpointing: bool = False


LLAMA3: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "rope_theta": 500000.0,
}
SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "minilm", BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536), 16, 64
        ),
        Shape("roberta-base", RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1), 8, 64),
        Shape(
            "llama",
            LlamaConfig(
                vocab_size=4096,
                hidden_size=768,
                num_hidden_layers=8,
                num_attention_heads=12,
                num_key_value_heads=4,
                intermediate_size=2048,
            ),
            4,
            128,
        ),
        Shape("llama3-8b-2layers", LlamaConfig(**LLAMA3 | {"vocab_size": 2048, "num_hidden_layers": 2}), 4, 256),
        # As sweeps/commonsense/llama.yaml trains it.
        Shape("llama3-8b", LlamaConfig(**LLAMA3), 4, 256, checkpointing=True),
        Shape("llama3-8b-long", LlamaConfig(**LLAMA3), 16, 512, checkpointing=True),  # enough tokens to keep a large GPU busy
    )
}

ON_GPU = ("llama3-8b", "llama3-8b-long")
"""16 GB of weights: a CPU would take minutes a step."""


class Task(nn.Module):
    """A backbone with a small regression head, as fine-tuning has one: the gradient starts at the last hidden states."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.backbone(input_ids=input_ids).last_hidden_state
        return self.head(hidden[:, 0].float()).square().mean()


def backbone(shape: Shape, dtype: torch.dtype, device: str = "cpu") -> nn.Module:
    """The model without a head, weights normal with deviation 0.02; dropout off so that all contenders do the same work."""
    config = copy.deepcopy(shape.config)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    with torch.device("meta"):
        model = AutoModel.from_config(config).to(dtype)
    model = model.to_empty(device=device)
    model.init_weights()
    if shape.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def shared_copy(model: nn.Module) -> nn.Module:
    """A copy with modules of its own and the same weights in memory: what is frozen need not be there ten times."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


@dataclass(frozen=True)
class Timing:
    """One contender: seconds (median), and its ratio to the baseline (median, quartiles)."""

    name: str
    seconds: float
    ratio: float
    low: float
    high: float


def alternate(
    contenders: Mapping[str, Callable[[], object]], baseline: str, *, rounds: int, warmup: int = 2, device: str = "cpu"
) -> list[Timing]:
    """Runs each contender `warmup` + `rounds` times, alternately, on `cpu` or `cuda`."""
    names = list(contenders)
    for _ in range(warmup):
        for name in names:
            contenders[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                seconds[name].append(timed(contenders[name], device))
    finally:
        if collecting:
            gc.enable()
    return [_timing(name, seconds[name], seconds[baseline]) for name in names]


def _timing(name: str, own: list[float], base: list[float]) -> Timing:
    ratios = sorted(a / b for a, b in zip(own, base, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Timing(name, statistics.median(own), statistics.median(ratios), low, high)


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds that `run` takes; on a GPU between two events, with nothing else in its queue."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def table(title: str, timings: list[Timing], goals: Mapping[str, float]) -> str:
    """Rows of a text table: contender, milliseconds, ratio, its quartiles, and whether a goal is met."""
    width = max(len(timing.name) for timing in timings)
    lines = [title, f"{'':{width}}  {'ms':>9}  {'ratio':>6}  quartiles"]
    for timing in timings:
        goal = goals.get(timing.name)
        verdict = "" if goal is None else f"  goal {goal:.2f} {'met' if round(timing.ratio, 2) <= goal else 'MISSED'}"
        figures = f"{timing.seconds * 1e3:9.2f}  {timing.ratio:6.3f}  {timing.low:.3f} - {timing.high:.3f}"
        lines.append(f"{timing.name:{width}}  {figures}{verdict}")
    return "\n".join(lines)


def lora(model: nn.Module, rank: int, projections: Sequence[str], *, same_dtype: bool = True, dora: bool = False) -> nn.Module:
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=target_modules(model, projections), use_dora=dora)
    return get_peft_model(model, config, autocast_adapter_dtype=not same_dtype)


def in_upper_half(model: nn.Module, shape: Shape) -> tuple[nn.Module, nn.Module]:
    """CRAFT r=128 and LoRA r=8 on q and v of the upper half of the layers."""
    half = shape.config.num_hidden_layers // 2
    lower = target_modules(model, QV, layers=range(half))
    ours = CraftConfig(ranks=("all", 128, 128), projections=QV, exclude_modules=lower, init_seed=0)
    theirs = LoraConfig(r=8, lora_alpha=8, target_modules=target_modules(model, QV, layers=half))
    return get_peft_model(shared_copy(model), ours), get_peft_model(shared_copy(model), theirs, autocast_adapter_dtype=False)


def step(model: nn.Module, shape: Shape, device: str, *, full: bool = False) -> Callable[[], None]:
    """One optimizer step of `model` under a task head, ready to be timed."""
    if full:
        model.requires_grad_(True)
    task = Task(model, shape.config.hidden_size).to(device)
    task.train()
    trained = [parameter for parameter in task.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    generator = torch.Generator().manual_seed(1)
    batch = torch.randint(5, shape.config.vocab_size, (shape.batch, shape.length), generator=generator).to(device)

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
    heads = shape.config.num_attention_heads
    smallest = shape.config.hidden_size // heads * getattr(shape.config, "num_key_value_heads", heads)
    ranks = [rank for rank in (LARGE_RANKS if shape.checkpointing else RANKS) if rank <= smallest]
    # The largest first: the others are slices of its decomposition.
    configs = {rank: CraftConfig(ranks=("all", rank, rank), projections=QV, init_seed=0) for rank in reversed(ranks)}
    ours = {rank: get_peft_model(shared_copy(base), config) for rank, config in configs.items()}
    if large:
        baseline = "LoRA r=32 qkvo"
        models = {baseline: lora(shared_copy(base), 32, QKVO)}
        models["LoRA r=32 qkvo, float32 adapters"] = lora(shared_copy(base), 32, QKVO, same_dtype=False)
        low, high = (1.0, 1.01) if shape.checkpointing else (0.95, 0.98)
        goals = {"CRAFT qv r=128": low, "CRAFT qv r=250": high}
        models |= {f"CRAFT qv r={rank}": ours[rank] for rank in ranks}
        models["DoRA r=32 qkvo"] = lora(shared_copy(base), 32, QKVO, dora=True)
    else:
        baseline = "LoRA r=8 qv"
        goals = {f"CRAFT qv r={rank}": 1.05 if rank > 128 else 1.0 for rank in (128, 250)}
        models = {baseline: lora(shared_copy(base), 8, QV)}
        models["LoRA r=8 qv, float32 adapters"] = lora(shared_copy(base), 8, QV, same_dtype=False)
        models |= {f"CRAFT qv r={rank}": ours[rank] for rank in ranks}
        models["DoRA r=8 qv"] = lora(shared_copy(base), 8, QV, dora=True)
        if shape.name != "llama":  # VeRA shares A and B among layers; grouped-query shapes differ
            shared = VeraConfig(r=256, target_modules=target_modules(base, QV))
            models["VeRA r=256 qv"] = get_peft_model(shared_copy(base), shared)
        models["CRAFT qv r=128, upper half"], models["LoRA r=8 qv, upper half"] = in_upper_half(base, shape)
    if dtype == torch.float32:
        models = {name: model for name, model in models.items() if "float32 adapters" not in name}
    steps = {name: step(model, shape, device) for name, model in models.items()}
    if not large:
        steps["full fine-tuning"] = step(backbone(shape, dtype, device), shape, device, full=True)
    return steps, baseline, goals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the contenders compute; cpu if absent")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, says little")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=None)
    parser.add_argument("--only", nargs="+", default=None, help="parts of contenders' names")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error(f"--device cuda: torch {torch.__version__} finds no CUDA GPU here. Leave --device out to measure the CPU")
    if options.threads:
        torch.set_num_threads(options.threads)
    cores = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    where = torch.cuda.get_device_name() if on_gpu else f"{hardware()['processor']}, {cores}"
    print(f"step time, {where}, torch {torch.__version__}")
    for name in options.models or [name for name in SHAPES if on_gpu or name not in ON_GPU]:
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
