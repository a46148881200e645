"""Facts of a model are read from its config.json: layers, width, the projections that it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.suggest.facts import ModelFacts, describe_model

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 99,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 99}
T5 = {"d_model": 64, "num_layers": 2, "num_heads": 2, "d_kv": 32, "d_ff": 128, "vocab_size": 99}


@pytest.mark.parametrize(
    ("config", "projections", "least"),
    [
        ({"model_type": "roberta", **SIZES}, "q k v o up down", 64),
        ({"model_type": "gpt2", **GPT2}, "q k v o up down", 64),  # q, k and v are parts of one module
        ({"model_type": "t5", **T5}, "q k v o up down", 64),  # the first T5 has no gate
        ({"model_type": "mistral", **SIZES, "num_key_value_heads": 1}, "q k v o gate up down", 32),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_facts_of_a_model(config: dict[str, Any], projections: str, least: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = describe_model(str(tmp_path), "classification", ("a", "b"))
    assert facts == ModelFacts(2, 64, facts.parameters, tuple(projections.split()), least)


def test_a_family_that_is_not_in_the_table_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", **SIZES}))
    with pytest.raises(ValueError, match="families known are"):
        describe_model(str(tmp_path), "classification", ("a", "b"))
