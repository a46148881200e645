"""What a method says of its trained model beside its scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from craft.methods import find_method
from craft.methods.method import BuildContext


def test_the_energy_kept_is_what_the_reconstruction_has_of_the_weights() -> None:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, vocab_size=50)
    base = BertForSequenceClassification(config)
    layers = base.bert.encoder.layer
    stacks = [
        np.stack([getattr(layer.attention.self, name).weight.detach().double().numpy() for layer in layers])
        for name in ("query", "value")
    ]
    row = find_method("craft")
    model = row.build(base, row.parameters.model_validate({"ranks": [2, 8, 5]}), BuildContext("SEQ_CLS"))
    kept = 0.0
    for stack in stacks:
        core = stack
        for mode, rank in enumerate((2, 8, 5)):
            unfolded = np.moveaxis(stack, mode, 0).reshape(stack.shape[mode], -1)
            left = np.linalg.svd(unfolded, full_matrices=False)[0][:, :rank]
            core = np.moveaxis(np.tensordot(left.T, core, (1, mode)), 0, mode)
        kept += float((core**2).sum())
    assert row.describe is not None
    assert row.describe(model)["energy_kept"] == pytest.approx(kept / sum(float((s**2).sum()) for s in stacks), rel=1e-5)
