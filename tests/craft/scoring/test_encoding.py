"""Where an input is cut: at `max_length`, the tokenizer's limit, or what the model's table of positions holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from craft.scoring.encoding import longest_input, positions

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PAD = 3
ROWS = 40
NEVER = SimpleNamespace(model_max_length=10**30)


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        *[
            (kind, ROWS - PAD - 1)
            for kind in ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "data2vec-text", "xmod", "ibert")
        ],
        ("mpnet", ROWS - 2),  # it counts from 2, whatever the padding token is
        ("bert", ROWS),
        ("electra", ROWS),
        ("gpt2", ROWS),
        ("opt", ROWS),
        ("bart", ROWS),
        ("modernbert", ROWS),
    ],
)
def test_the_model_reads_as_many_tokens_as_its_table_holds(kind: str, held: int) -> None:
    sizes = {"vocab_size": 60, "max_position_embeddings": ROWS, "pad_token_id": PAD, "d_model": 32, "n_embd": 32, "n_head": 2}
    more = {"languages": ["en_XX"], "default_language": "en_XX", "cls_token_id": 1, "eos_token_id": 2} | SMALL
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **more)).eval()
    assert positions(NEVER, model) == held
    assert [longest_input(most, NEVER, model) for most in (8, 64)] == [8, held]
    assert longest_input(64, SimpleNamespace(model_max_length=16), model) == 16
    with torch.no_grad():
        model(input_ids=torch.full((1, held), 7), attention_mask=torch.ones(1, held, dtype=torch.long))


def test_a_model_without_a_table_has_no_limit() -> None:
    config = AutoConfig.for_model("t5", d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=60)
    assert positions(NEVER, AutoModelForSequenceClassification.from_config(config)) == 10**9
