"""What the tests of one training run share: a model so small that a run takes a second, and where real data may lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from craft.spec import RunSpec
from tests.craft.methods.cases import marked

MakeSpec = Callable[..., RunSpec]
ENCODER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DECODER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random LLaMA of 2 layers whose tokens are bytes, as a local folder: 384 positions, a token that begins texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({token: at for at, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=384
    ).save_pretrained(folder)
    torch.manual_seed(0)
    words_and_ends = {"vocab_size": 259, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    config = LlamaConfig(
        **DECODER | words_and_ends | {"num_hidden_layers": 2, "max_position_embeddings": 384, "initializer_range": 0.3}
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def make_spec(**changes: Any) -> RunSpec:
    """Makes a run on a toy task; keywords override, `training=` field by field."""
    training = {
        "epochs": 2,
        "batch_size": 8,
        "max_length": 32,
        "learning_rate": 1e-2,
        "train_examples": 48,
        "eval_examples": 40,
    } | changes.pop("training", {})
    method = changes.get("method", "craft")
    parameters = {"craft": {"ranks": ["all", 8, 8]}, "lora": {"rank": 2}}.get(method, {}) | changes.pop("parameters", {})
    return RunSpec(**({"task": "toy/sentiment", "method": method} | changes), parameters=parameters, training=training)


class Evil:
    """Makes the folder `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def tiny_spec(tiny_bert: str) -> MakeSpec:
    """Makes a run on the tiny model as `make_spec` does."""
    return partial(make_spec, model=tiny_bert)


FAMILIES = ("bert", "roberta", "distilbert", "electra", "llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "opt")


LAYOUTS = ("bert", "distilbert", "llama", "gpt2", "opt")
"""A family of each layout of modules; where adapters are trained or saved, the others are slow."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `family` runs over every model family."""
    if "family" in metafunc.fixturenames:
        quick = FAMILIES if "models" in metafunc.module.__name__.split(".") else LAYOUTS
        metafunc.parametrize("family", marked(FAMILIES, quick))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache of the test's own."""
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session", autouse=True)
def own_factor_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decompositions of the tests' models stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRAFT_CACHE_DIR", str(tmp_path_factory.mktemp("factors")))
        yield


@pytest.fixture
def helpful(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit's adapters of random weights pass as helpful, so that one of their sizes is enough."""
    monkeypatch.setattr("craft.audit.audit._helps", lambda *_: True)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Any]:
    """Makes a random model of a family: 3 layers, hidden 32, 4 heads, 2 key-value heads where the family groups queries."""
    return make_tiny


def make_tiny(family: str, dtype: Any = None, seed: int = 0, head: str = "base") -> Any:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

    sizes: dict[str, dict[str, Any]] = {
        "bert": ENCODER,
        "roberta": ENCODER,
        "electra": ENCODER | {"embedding_size": 32},
        "mpnet": ENCODER,
        "deberta-v2": ENCODER,
        "lfm2": DECODER | {"layer_types": ["conv", "full_attention", "full_attention"], "block_auto_adjust_ff_dim": False},
        "qwen3_5_text": DECODER | {"layer_types": ["linear_attention", "full_attention", "full_attention"]},
        "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "dropout": 0.0, "attention_dropout": 0.0},
        "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        "opt": ENCODER | {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    }
    common = {"vocab_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2, "init_std": 0.2}
    config = AutoConfig.for_model(family, **common, **sizes.get(family, DECODER))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, 0)
    torch.manual_seed(seed)
    classes = {"base": AutoModel, "causal": AutoModelForCausalLM, "classifier": AutoModelForSequenceClassification}
    model = classes[head].from_config(config)
    return model.to(dtype or torch.float32)
