"""Bytes an adapter adds to what autograd keeps for the backward pass, CRAFT beside PEFT's LoRA.

    python -m tests.benchmarks.activations [--models minilm llama] [--quick] [--device cuda]

Counted with saved-tensor hooks: distinct storages kept by the adapted model, frozen weights and adapter parameters left out,
less those that the base model keeps with the same gradient flowing through it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from craft.tuners.craft.adapter import CraftAdapter
from tests.benchmarks.shapes import SHAPES, Shape, Task, backbone, shared_copy, tokens
from tests.benchmarks.step_time import DTYPES, QV, RANKS, craft, lora
from tests.benchmarks.timing import arguments, machine

GOAL = 0.1


def saved_bytes(model: nn.Module, shape: Shape, device: str) -> int:
    """Bytes of distinct storages that one forward pass keeps, parameters and buffers left out."""
    task = Task(model, shape.config.hidden_size).to(device).train()
    for parameter in task.head.parameters():
        parameter.requires_grad_(False)
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    embeddings = model.get_input_embeddings()
    # The same gradient must flow through all models, down to the embeddings, or the base would keep nothing at all.
    handle = embeddings.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = task(tokens(shape, device))
    handle.remove()
    lasting = {tensor.untyped_storage().data_ptr() for tensor in (*task.parameters(), *task.buffers(), *_factors(task))}
    total = sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in lasting)
    del loss
    return total


def _factors(task: nn.Module) -> list[Tensor]:
    """CRAFT's frozen constants, which outlive the step as weights do."""
    stacks = [stack for module in task.modules() if isinstance(module, CraftAdapter) for stack in module.stacks.values()]
    constants = [tensor for stack in stacks for pair in stack._cast.values() for tensor in pair]
    constants += [tensor for stack in stacks for tensor in stack._turned.values()]
    return constants + [tensor for stack in stacks for tensor in (stack.factors.core, stack.factors.u1)]


def main() -> None:
    # Under gradient checkpointing the hooks would count the blocks' inputs and no adapter.
    given = arguments(__doc__, [name for name, shape in SHAPES.items() if not shape.checkpointing])
    print(f"bytes kept for the backward pass by the adapter, {machine(given.device)}")
    for name in given.models:
        shape = SHAPES[name]
        for kind in ["bfloat16"] if name.startswith("llama3") else list(DTYPES):
            dtype = DTYPES[kind]
            base = backbone(shape, dtype, given.device).requires_grad_(False)
            plain = saved_bytes(shared_copy(base), shape, given.device)
            makers: dict[str, Callable[[], nn.Module]] = {
                "LoRA r=8 qv (PEFT's default, float32 adapters)": lambda base=base: lora(
                    shared_copy(base), 8, QV, same_dtype=False
                ),
                "LoRA r=8 qv (adapters of the model's dtype)": lambda base=base: lora(shared_copy(base), 8, QV),
            }
            for rank in RANKS[:1] if given.quick else RANKS:
                makers[f"CRAFT qv r={rank}"] = lambda base=base, rank=rank: craft(shared_copy(base), rank, QV)
            print(f"\n{name}, {kind}, {shape.batch} x {shape.length} tokens; the base model keeps {plain / 2**20:.1f} MiB")
            reference = None
            for label, make in makers.items():
                added = saved_bytes(make(), shape, given.device) - plain
                reference = reference or added
                verdict = ""
                if label.startswith("CRAFT") and kind == "bfloat16":
                    verdict = f"  goal {GOAL} {'met' if added <= GOAL * reference else 'MISSED'}"
                print(f"{label:48} {added / 2**20:8.2f} MiB  {added / reference:6.3f} of default LoRA{verdict}", flush=True)


if __name__ == "__main__":
    main()
