"""Models of the benchmarks: true shapes with random weights, so that nothing is downloaded. Time does not depend on values."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, LlamaConfig, PretrainedConfig, RobertaConfig


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


def tokens(shape: Shape, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, shape.config.vocab_size, (shape.batch, shape.length), generator=generator).to(device)
