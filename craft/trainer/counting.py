"""What a run costs, counted from the model that trains; and what it will cost, counted on the meta device before it runs.

trainable        the adapter's parameters that receive gradients, without the task head
total            every distinct parameter, without the frozen copies that PEFT keeps of modules it retrains
adapter bytes    the tensors that saving writes, the head's too, without CRAFT's record of its factors
optimizer bytes  planned: AdamW's two float32 moments of every trained parameter; measured: what the optimizer holds
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers.pytorch_utils import Conv1D

from craft.methods import find_cutting, find_method
from craft.methods.method import BuildContext
from craft.models import Base, quiet_libraries
from craft.models.compute import PRODUCTS, WEIGHTS, base_dtype
from craft.models.loading import TASK_TYPES, head_names, is_head, load_config, load_tokenizer, meta_model, trained_weights
from craft.results import Counts, ModelUnsuited
from craft.scoring.encoding import refuse_no_room
from craft.scoring.forgetting import refuse_under_task_head
from craft.settings import Way
from craft.spec import RunSpec
from craft.tasks.task import Kind, Task
from craft.tuners.craft.fingerprint import FINGERPRINT

_SHORT = 8
"""A `max_length` that no tokenizer's special tokens reach."""


def count(model: nn.Module) -> Counts:
    """Counts parameters and bytes of the model that trains, on any device, the meta device included."""
    weights = (weight for name, weight in model.named_parameters() if ".original_module." not in name)
    packed = ((weight, getattr(weight, "quant_state", None)) for weight in weights)  # bitsandbytes packs two numbers in a byte
    total = sum(weight.numel() if state is None else math.prod(state.shape) for weight, state in packed)
    trained = trained_weights(model)
    head = sum(weight.numel() for _, weight, of_head in trained if of_head)
    adapter = sum(weight.numel() for _, weight, _ in trained) - head
    saved = sum(
        tensor.numel() * tensor.element_size() for name, tensor in saved_state(model).items() if FINGERPRINT not in name
    )
    return Counts(adapter, head, total, saved, optimizer_bytes=2 * 4 * (adapter + head))


def saved_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of a saved adapter: PEFT's choice for a PEFT model, every trained parameter for any other."""
    from peft import PeftModel, get_peft_model_state_dict

    if isinstance(model, PeftModel):
        return get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Counts the bytes of the tensors in `optimizer`, without scalars such as step counters."""
    tensors = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.ndim > 0)


def planned_counts(spec: RunSpec) -> Counts:
    """Counts what the model of `spec` will hold, from its `config.json` alone."""
    task = spec.task_row
    refuse_under_task_head(spec, task.kind)
    counts, *_, checkpoints = _planned_of(spec, task)
    if spec.training.gradient_checkpointing and not checkpoints:
        raise ModelUnsuited(
            f"model {spec.model}: transformers cannot checkpoint the activations of this kind of model. Take "
            "gradient_checkpointing: false"
        )
    return counts


def check_room(run: RunSpec) -> None:
    """Raises ValueError if `max_length` leaves no room for a text. Only a small one needs the tokenizer to know."""
    if run.training.max_length < _SHORT:
        tokenizer = load_tokenizer(run.model, revision=run.revision)
        refuse_no_room(run.training.max_length, tokenizer, len(run.task_row.text) > 1)


def check_sizes(spec: RunSpec, sizes: Iterable[int]) -> None:
    """Raises ValueError if the adapter of `spec` cannot be cut to so many parameters."""
    if not (sizes := list(sizes)):
        return
    find_cutting(spec.method)
    counts, dearest, *_ = _planned_of(spec, spec.task_row)
    for size in sizes:
        if size >= counts.trainable_parameters:
            raise ValueError(f"size {size:,}: the whole adapter has {counts.trainable_parameters:,} parameters; give fewer")
        if size < dearest:
            raise ValueError(f"size {size:,}: one direction takes up to {dearest:,} parameters; give so many, or more")


def _planned_of(spec: RunSpec, task: Task) -> tuple[Counts, int, Adapted, bool]:
    labels = tuple(map(str, range(len(task.labels))))
    return _planned(spec.base(task.kind, labels), spec.method, json.dumps(spec.parameters, sort_keys=True))


@lru_cache(maxsize=4096)
def _planned(base: Base, method: str, parameters: str) -> tuple[Counts, int, Adapted, bool]:
    """Returns the counts, the most parameters of one direction that a cut may keep (0 without cuts), what is adapted, and
    whether the model can checkpoint its activations."""
    row, model = find_method(method), meta_model(base)
    with quiet_libraries(), torch.device("meta"):
        built = row.build(model, row.parameters.model_validate_json(parameters), BuildContext(TASK_TYPES[base.kind]))
    directions = row.cutting.costs(saved_state(built)).values() if row.cutting else ()
    return count(built), max(directions, default=0), _adapted(built), model.supports_gradient_checkpointing


class Adapted(NamedTuple):
    """Numbers of a token in and out of all modules that are adapted, or train. `shared` counts equal inputs once."""

    inputs: int
    shared: int
    outputs: int


def _adapted(model: nn.Module) -> Adapted:
    heads, adapted = head_names(model), "."
    shapes: dict[str, tuple[int, int]] = {}
    for name, module in model.named_modules():
        base = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
        if not isinstance(base, nn.Linear | Conv1D) or is_head(name, heads) or name.startswith(adapted):
            continue
        if isinstance(module, BaseTunerLayer) or base.weight.requires_grad:
            d_out, d_in = base.weight.shape if isinstance(base, nn.Linear) else reversed(base.weight.shape)
            shapes[name], adapted = (d_in, d_out), f"{name}."
    # Modules of one parent with inputs of one width (q, k and v; up and gate) have the same input.
    inputs = {(name.rpartition(".")[0], d_in): d_in for name, (d_in, _) in shapes.items()}
    return Adapted(sum(d_in for d_in, _ in shapes.values()), sum(inputs.values()), sum(d_out for _, d_out in shapes.values()))


def estimated_memory(spec: RunSpec, *, way: Way = "replicate", count: int = 1) -> int:
    """Estimates the bytes that a training step of `spec` needs on its device, from `config.json` alone.

    frozen              frozen parameters x bytes of their format; of a quantized base, the method's bytes for the linear ones
    trained             16 bytes a trained parameter: float32 value, gradient and AdamW's two moments
    copies              where autocast rounds float32 weights: 2 bytes a weight of a linear layer, kept for the backward pass
    activations         layers x micro-batch x length x (8 hidden + 3 intermediate) x bytes of a product; with gradient
                        checkpointing one hidden state a layer and one layer whole. Under autocast, norms and the residual
                        stream stay float32: 3 bytes on average. While the backward pass of a layer runs, three gradients
                        of the intermediate size are there in addition to what was kept.
    of the method       micro-batch x length x the inputs of adapted modules: bfloat16 copies under autocast, each input once
                        otherwise; and the outputs by `Method.copies`
    logits              micro-batch x length x vocabulary x 8 for a language-model head
                        (the positions in the loss alone are computed; how many those are, no configuration tells)

    Every micro-batch is taken to be as long as `max_length`; the libraries' own memory is not included.

    Of `count` devices (`craft.processes`) each computes its share of a step's examples. Under `shard` each holds its part of
    the base, with the embeddings and two layers that are gathered; of what trains too, if that is all. Under `layers` each
    holds its layers.
    """
    counts, row, task, training = planned_counts(spec), spec.row, spec.task_row, spec.training
    config: Any = text_config(spec.model, spec.revision)
    stored = base_dtype(training.precision, row.master_weights)
    product = PRODUCTS[training.precision]
    autocast = product != stored
    hidden, layers = int(config.hidden_size), int(config.num_hidden_layers)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    share = math.ceil(training.batch_size * training.gradient_accumulation / (1 if way == "layers" else count))
    length = min(training.max_length, int(getattr(config, "max_position_embeddings", 10**9)))
    tokens = min(training.batch_size, share) * length
    layer = (8 * hidden + 3 * inner) * tokens
    numbers = layers * hidden * tokens + layer if training.gradient_checkpointing else layers * layer
    numbers += 3 * inner * tokens
    activations = numbers * (3 if autocast else product.itemsize)
    adapted, (copies_in, copies_out) = _planned_of(spec, task)[2], row.copies
    inputs = 2 * adapted.inputs if autocast else product.itemsize * adapted.shared
    copied = tokens * (copies_in * inputs + copies_out * product.itemsize * adapted.outputs)
    activations += copied // (layers if training.gradient_checkpointing else 1)
    logits = tokens * int(config.vocab_size) * 8 if task.kind == "generation" else 0
    trained = counts.trainable_parameters + counts.head_parameters
    linear = linear_parameters(spec.model, spec.revision, task.kind)
    copies = 2 * linear // (layers if training.gradient_checkpointing else 1) if autocast else 0
    frozen, size = counts.total_parameters - trained, WEIGHTS[training.precision].itemsize
    base = frozen * size
    if row.base_bytes is not None:
        base, copies = int(linear * row.base_bytes) + (frozen - linear) * size, 0
    values = 16 * trained
    if way == "layers":
        return (base + values + copies + activations) // count + logits
    if way == "shard":
        held = 4 if frozen == 0 else size
        base, values = base // count, values // (1 if frozen else count)
        base += held * (2 * linear // layers + (2 if task.kind == "generation" else 1) * int(config.vocab_size) * hidden)
    return base + values + copies + activations + logits


@lru_cache(maxsize=64)
def linear_parameters(model: str, revision: str | None, kind: Kind) -> int:
    """Counts the weights of the base's linear layers, its output layer excepted: what quantization packs."""
    base = meta_model(Base(model, kind, ("a", "b"), revision))
    heads, output = head_names(base), base.get_output_embeddings()
    return sum(
        module.weight.numel()
        for name, module in base.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not output and not is_head(name, heads)
    )


@lru_cache(maxsize=64)
def text_config(model: str, revision: str | None) -> Any:
    """Returns the config of a model's language part, from `config.json`."""
    return load_config(Base(model, "generation", revision=revision)).get_text_config()
