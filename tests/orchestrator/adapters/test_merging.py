"""Every method that merges does so beside every kind of head; a model that cannot be written merged is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaModel

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models.files import MINILM
from craft.models.loading import load_tokenizer
from craft.spec import RunSpec
from craft.trainer.training import train_run
from orchestrator.adapters.merging import merged_model, write_as_lora, write_merged
from tests.craft.conftest import make_tiny
from tests.craft.methods import one_more
from tests.craft.methods.cases import QUICK, SUBJECTS

UNMERGED = dict.fromkeys(("lotr", "superlora", "loretta"), "not merged into the base weights")
UNMERGED |= dict.fromkeys(("houlsby", "pfeiffer", "adapterdrop"), "not merged into the base weights")
UNMERGED["peft LILY"] = "not supported for Lily"
MERGES = [name for name, case in SUBJECTS.items() if not case.words and name != one_more.METHOD.name]
TOKENS = torch.arange(1, 13).view(2, 6)
HEADS = ("roberta", "distilbert")
"""A head of two layers in one module, and of two modules."""
PAIRS = [
    pytest.param(name, head, marks=() if name in QUICK else pytest.mark.slow)
    for name in MERGES
    for head in HEADS
    if head == HEADS[0] or " " not in name
]


@pytest.mark.parametrize(("name", "family"), [*PAIRS, ("craft", "mpnet"), ("craft", "deberta-v2")])
def test_a_method_merges_beside_every_head(name: str, family: str) -> None:
    row = METHODS[name.partition(" ")[0]]
    model = row.build(
        make_tiny(family, head="classifier"), row.parameters.model_validate(SUBJECTS[name].parameters), BuildContext("SEQ_CLS")
    ).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.02 * torch.randn(weight.shape, generator=draw))
        expected = model(TOKENS).logits
    if name in UNMERGED:
        with pytest.raises(ValueError, match=UNMERGED[name]):
            merged_model(model, name)
        return
    merged = merged_model(model, name)
    assert type(merged) is type(make_tiny(family, head="classifier"))
    assert not any("modules_to_save" in part for part in merged.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(merged.eval()(TOKENS).logits, expected, atol=1e-5, rtol=1e-4)


def test_layers_that_share_weights_are_not_merged(tmp_path: Path) -> None:
    base = str(tmp_path / "base")
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaModel(LlamaConfig(**sizes, vocab_size=30_522, pad_token_id=0)).save_pretrained(base)
    load_tokenizer(MINILM).save_pretrained(base)
    training = {"train_examples": 16, "eval_examples": 8, "max_steps": 1, "batch_size": 8, "max_length": 16}
    config = {"r": 2, "target_modules": ["q_proj"], "layer_replication": [[0, 2], [1, 3]]}
    parameters = {"peft_type": "LORA", "config": config}
    spec = RunSpec(model=base, task="toy/sentiment", method="peft", parameters=parameters, training=training)
    adapter = train_run(spec, tmp_path / "run").adapter
    with pytest.raises(ValueError, match=r"method peft LORA cannot be merged here: .*take the adapter without --as merged"):
        write_merged(adapter, tmp_path / "merged")


def test_craft_is_written_as_a_lora_by_its_own_factors(tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module has the rank r2, and all layers of a projection the same B = s U2: no SVD finds these again."""
    training = {
        "train_examples": 16,
        "eval_examples": 8,
        "max_steps": 2,
        "batch_size": 8,
        "max_length": 16,
        "learning_rate": 0.1,
    }
    parameters = {"ranks": ["all", 8, 4], "projections": ["q", "up"]}
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method="craft", parameters=parameters, training=training)
    adapter = train_run(spec, tmp_path / "run").adapter
    monkeypatch.setattr(torch.linalg, "svd", lambda *_, **__: pytest.fail("an SVD of a change that is a product already"))
    write_as_lora(adapter, tmp_path / "lora")
    ups = {
        name: weight for name, weight in load_file(tmp_path / "lora" / "adapter_model.safetensors").items() if "lora_B" in name
    }
    for word in ("query", "intermediate"):
        (first, *others) = [weight for name, weight in ups.items() if word in name]
        assert first.shape[1] == 8
        assert all(torch.equal(first, other) for other in others)
    assert {path.name for path in adapter.iterdir()} - {"manifest.json"} <= {
        path.name for path in (tmp_path / "lora").iterdir()
    }
