"""What a sweep's training step asks of its device, through `RunTrainer`: launches, operators, readings.

    python -m tests.benchmarks.sweep_step [--models minilm llama] [--steps 5] [--device cuda]

CRAFT, LoRA (PEFT's float32 adapters) and DoRA on q and v, at the sizes of `tests.benchmarks.shapes`, in bfloat16 on a GPU and
in float32 on a CPU. torch.profiler counts over whole optimizer steps, AdamW and clipping included:

launches     kernels and copies that the host puts into the GPU's queue (GPU alone)
waits        calls that wait until the GPU is done: synchronizations of stream, device or event (GPU alone)
operators    aten operators that are called from Python or autograd, those inside others left out
readings     numbers of tensors that become Python's (`aten::_local_scalar_dense`); on a GPU each of them waits

AdamW on a CPU reads its step counters, which lie on the host on a GPU as well.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import DeviceType, ProfilerActivity, profile
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, TrainerCallback

from craft.scoring.encoding import Collator, EncodedSplit
from craft.scoring.texts import EncodedTexts
from craft.settings import TrainingSettings
from craft.trainer.hf_trainer import RunTrainer
from craft.trainer.meter import Meter
from craft.trainer.process import own_process_state
from tests.benchmarks.shapes import SHAPES, Shape
from tests.benchmarks.step_time import QV, craft, lora
from tests.benchmarks.timing import add_device, check_device, machine

WARM = 2
MODELS = ("minilm", "llama")
CONTENDERS: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "LoRA qv r=8": lambda base: lora(base, 8, QV, same_dtype=False),
    "DoRA qv r=8": lambda base: lora(base, 8, QV, same_dtype=False, dora=True),
    "CRAFT qv r=128": lambda base: craft(base, 128, QV),
}
COLUMNS = ("launches", "waits", "operators", "readings")


class Watch(TrainerCallback):
    """Profiles all steps but the first ones."""

    def __init__(self, device: str) -> None:
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
        self.profile = profile(activities=kinds)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        if state.global_step == WARM:
            self.profile.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self.profile.stop()


def model(shape: Shape, device: str) -> nn.Module:
    """A model with the head that its task needs, random weights."""
    kind = AutoModelForCausalLM if shape.config.model_type == "llama" else AutoModelForSequenceClassification
    torch.manual_seed(0)
    made = kind.from_config(shape.config).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    return made.requires_grad_(False)


def split(shape: Shape, examples: int) -> Any:
    """Examples of different lengths, so that batches are padded as a sweep's are; ten tokens of a text are in the loss."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(shape.length // 2, shape.length + 1, examples)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    words = draw.integers(5, shape.config.vocab_size, offsets[-1]).astype(np.int32)
    if shape.config.model_type == "llama":
        return EncodedTexts(words, offsets, lengths - 10)
    return EncodedSplit({"input_ids": words}, offsets, draw.integers(0, 2, examples))


def counted(make: Callable[[nn.Module], nn.Module], shape: Shape, device: str, steps: int) -> dict[str, float]:
    """Per optimizer step of one micro-batch: the columns of the table."""
    total = WARM + steps
    settings = TrainingSettings(max_steps=total, batch_size=shape.batch, max_length=shape.length)
    watch = Watch(device)
    with tempfile.TemporaryDirectory() as folder, own_process_state():
        trainer = RunTrainer(
            make(model(shape, device)),
            split(shape, total * shape.batch),
            Collator(0),
            kind="generation" if shape.config.model_type == "llama" else "classification",
            training=settings,
            seed=0,
            directory=Path(folder),
            meter=Meter(),
            evaluation=lambda _trainer: None,
            leave=lambda: None,
            on_step=lambda _step, _total: None,
        )
        # Trainer logs every step of so short a run; a long run logs a hundred times.
        trainer.args.logging_steps = trainer.state.logging_steps = total + 1
        trainer.add_callback(watch)
        trainer.train()
    return {name: number / steps for name, number in tally(watch.profile).items()}


def tally(done: profile) -> dict[str, float]:
    """Counts of all that was profiled."""
    events = list(done.events() or ())
    host = [event for event in events if event.device_type == DeviceType.CPU]
    return {
        "launches": sum(event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync")) for event in host),
        "waits": sum(event.name.endswith("Synchronize") for event in host),
        "operators": sum(event.name.startswith("aten::") and not _inside(event) for event in host),
        "readings": sum(event.name == "aten::_local_scalar_dense" for event in host),
    }


def _inside(event: Any) -> bool:
    """Whether an operator was called by another one."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps that are counted")
    add_device(parser)
    given = parser.parse_args()
    check_device(parser, given.device)
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Trainer would take a GPU
    print(f"a training step of a sweep, {machine(given.device)}")
    for name in given.models:
        shape = SHAPES[name]
        columns = COLUMNS if given.device == "cuda" else COLUMNS[2:]
        print(f"\n{name}, {shape.batch} x up to {shape.length} tokens, counts per step")
        print(f"{'':16}" + "".join(f"{column:>12}" for column in columns))
        for label, make in CONTENDERS.items():
            found = counted(make, shape, given.device, given.steps)
            print(f"{label:16}" + "".join(f"{found[column]:12.1f}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
