"""A base model in a GGUF file: its weights and tokens against what was written, bad files in words, and a run on one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Format
from tokenizers import Tokenizer, models, pre_tokenizers

from craft.models import Base
from craft.models.files import gguf_folder, gguf_notes, model_digest
from craft.models.loading import load_config, load_model, load_tokenizer, meta_model
from craft.results import MODEL_DIGEST, ModelUnavailable, ModelUnsuited
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.counting import planned_counts
from craft.trainer.training import train_run
from tests.craft import gguf_writing as written
from tests.craft.conftest import MakeSpec

TEXTS = ("the  2024 man, then 12%", "and\n\n  the", "Ünï", "  7")
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def source() -> Any:
    return written.random_llama()


@pytest.fixture(scope="module")
def path(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", source)


def test_float32_weights_are_those_that_were_written(path: Path, source: Any) -> None:
    model = load_model(Base(str(path), "generation", ()))
    torch.testing.assert_close(model.state_dict(), source.state_dict(), rtol=0, atol=0)
    tokens = torch.tensor([[1, 9, 70, 200, 33]])
    assert torch.equal(model(tokens).logits, source(tokens).logits)
    assert model.name_or_path == str(path)
    assert not getattr(model, "is_quantized", False)


@pytest.mark.parametrize("form", [Format.F16, Format.Q8_0, Format.Q4_1], ids=lambda form: form.name)
def test_other_formats_are_dequantized_as_gguf_does(form: Format, source: Any, tmp_path: Path) -> None:
    path = written.write(tmp_path / "tiny.gguf", source, form)
    model = load_model(Base(str(path), "classification", ("a", "b", "c"), precision="float32"))
    stored = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    expected = stored["blk.1.ffn_up.weight"].astype(np.float32)
    assert np.array_equal(model.model.layers[1].mlp.up_proj.weight.detach().numpy(), expected)
    # The order of the rows of q, undone.
    rows = stored["blk.0.attn_q.weight"].reshape(written.HEADS, -1, 2, written.WIDTH).swapaxes(1, 2)
    assert np.array_equal(model.model.layers[0].self_attn.q_proj.weight.detach().numpy(), rows.reshape(-1, written.WIDTH))
    assert model.score.weight.shape == (3, written.WIDTH)
    (note,) = gguf_notes(str(path))
    assert form.name in note
    assert ("dequantized" in note) == (form != Format.F16)


def test_the_file_is_read_once_and_its_configuration_is_the_written_one(
    path: Path, source: Any, tmp_path: Path, own_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = Path(shutil.copy(path, tmp_path / "tiny.gguf"))
    config, expected = load_config(Base(str(first), "generation", ())), source.config
    assert f"reading {first} into {own_cache / 'gguf'}" in capfd.readouterr().err
    for name in ("rope_parameters", "num_key_value_heads", "head_dim", "tie_word_embeddings", "vocab_size", "pad_token_id"):
        assert getattr(config, name) == getattr(expected, name), name
    assert config.rms_norm_eps == pytest.approx(expected.rms_norm_eps)
    assert load_config(Base(str(path), "classification", ("no", "yes"))).id2label == {0: "no", 1: "yes"}
    model = meta_model(Base(str(path), "generation", ()))
    assert {name: weight.shape for name, weight in model.named_parameters()} == {
        name: weight.shape for name, weight in source.named_parameters()
    }
    assert gguf_folder(str(path)) == gguf_folder(str(first)) == own_cache / "gguf" / str(model_digest(str(path)))
    assert "reading" not in capfd.readouterr().err


def reference(digits: bool) -> Tokenizer:
    """What SmolLM2's `tokenizer.json` says, over the small vocabulary: each digit apart, then GPT-2's pieces, then merges."""
    merges = [tuple(merge.split(" ")) for merge in written.MERGES]
    made = Tokenizer(models.BPE({token: at for at, token in enumerate(written.vocabulary())}, merges))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), by_bytes]) if digits else by_bytes
    return made


@pytest.mark.parametrize(("pre", "digits"), [("smollm", True), ("gpt-2", False)])
def test_texts_are_split_as_the_name_in_the_file_says(pre: str, digits: bool, source: Any, tmp_path: Path) -> None:
    path = written.write(tmp_path / "tiny.gguf", source, pre=pre)
    tokenizer = load_tokenizer(str(path))
    assert [tokenizer(text).input_ids for text in TEXTS] == [reference(digits).encode(text).ids for text in TEXTS]
    assert tokenizer("<|im_start|>the").input_ids == [1, len(written.SPECIAL) + 256 + 1]
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.decode(tokenizer(TEXTS[0]).input_ids) == TEXTS[0]


def test_an_unknown_way_to_split_is_refused(source: Any, tmp_path: Path) -> None:
    path = written.write(tmp_path / "tiny.gguf", source, pre="poro-chat")
    with pytest.raises(ModelUnsuited, match=r"\(poro-chat\).*Give a folder"):
        load_tokenizer(str(path))


def test_bad_files_are_told_apart(path: Path, source: Any, tmp_path: Path, own_cache: Path) -> None:
    whole = path.read_bytes()

    def refused(content: bytes, words: str, kind: type[Exception] = ModelUnavailable) -> None:
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(content)
        with pytest.raises(kind, match=words):
            load_config(Base(str(bad), "generation", ()))

    for content in (b"", b"PK\3\4" + whole[4:], whole[:10], whole[:500], whole[:-1], whole[:24] + b"\xff" * 200 + whole[224:]):
        refused(content, rf"bad.gguf cannot be read: .*cut off or damaged \({len(content):,} bytes are there\)")
    refused(whole[:4] + b"\1\0\0\0" + whole[8:], "version 1")
    odd = written.write(tmp_path / "odd.gguf", source, architecture="rwkv7").read_bytes()
    refused(odd, "rwkv7.*give a folder with the model's safetensors")
    part = written.write(tmp_path / "part.gguf", source, parts=3).read_bytes()
    refused(part, "one of 3 parts.*llama-gguf-split --merge", ModelUnsuited)
    assert not [one for one in (own_cache / "gguf").iterdir() if one.suffix != ".lock"], "nothing half done is kept"


def test_a_missing_file_is_told_with_those_that_are_there(path: Path, tmp_path: Path) -> None:
    for name in ("tiny-Q4_0.gguf", "other.gguf"):
        shutil.copy(path, tmp_path / name)
    with pytest.raises(ModelUnavailable, match=r"Did you mean 'tiny-Q4_0.gguf'\? GGUF files in .*: other.gguf, tiny-Q4_0.gguf"):
        load_config(Base(str(tmp_path / "tiny-Q4_1.gguf"), "generation", ()))
    with pytest.raises(ModelUnavailable, match=r"has no config.json; name one of its GGUF files: other.gguf, tiny-Q4_0.gguf"):
        load_config(Base(str(tmp_path), "generation", ()))
    with pytest.raises(ModelUnavailable, match=r"GGUF files in .*: none"):
        load_config(Base(str(tmp_path / "no" / "tiny.gguf"), "generation", ()))


def test_without_the_package_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr("craft.models.files.find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match=r"pip install 'craft-sweeps\[gguf\]'"):
        meta_model(Base(str(path), "generation", ()))


def test_a_file_without_all_weights_is_refused(source: Any, tmp_path: Path) -> None:
    path = written.write(tmp_path / "tiny.gguf", source, leave_out="blk.1.ffn_up")
    with pytest.raises(ModelUnavailable, match=r"no weights for 1 parameters of the model, such as model.layers.1.mlp.up_proj"):
        load_model(Base(str(path), "generation", ()))


def test_weights_that_transformers_leaves_out_are_noted(source: Any, tmp_path: Path) -> None:
    more = {"blk.0.attn_q.bias": np.ones(written.WIDTH, np.float32), "rope_freqs.weight": np.ones(8, np.float32)}
    notes = gguf_notes(str(written.write(tmp_path / "tiny.gguf", source, extra=more)))
    assert notes[1] == f"transformers leaves out {written.WIDTH + 8} numbers of the GGUF file"


def test_files_of_one_folder_are_never_mixed_up(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any
) -> None:
    """Not even where the current folder holds another file of the same name."""
    first, second = tmp_path / "a" / "tiny.gguf", tmp_path / "a" / "two.gguf"
    first.parent.mkdir()
    shutil.copy(path, first)
    other = written.random_llama(seed=1)
    written.write(second, other)
    written.write(tmp_path / "tiny.gguf", other)
    monkeypatch.chdir(tmp_path)
    place = "model.layers.0.mlp.up_proj.weight"

    def weight(name: str) -> torch.Tensor:
        return load_model(Base(name, "generation", ())).get_parameter(place)

    assert torch.equal(weight(str(first)), source.get_parameter(place))
    assert torch.equal(weight(str(second)), other.get_parameter(place))
    assert torch.equal(weight("tiny.gguf"), other.get_parameter(place))
    assert model_digest(str(first)) == model_digest(str(path)) != model_digest(str(second))
    written.write(tmp_path / "tiny.gguf", source)
    assert model_digest("tiny.gguf") == model_digest(str(path))
    assert torch.equal(weight("tiny.gguf"), source.get_parameter(place))


@pytest.mark.slow
def test_an_adapter_of_a_run_comes_back_to_the_file_alone(source: Any, tiny_spec: MakeSpec, tmp_path: Path) -> None:
    path = written.write(tmp_path / "tiny.gguf", source, Format.Q8_0)
    spec = tiny_spec(model=str(path), training={"epochs": 1, "max_length": 48})
    result = train_run(spec, tmp_path / "run")
    assert planned_counts(spec).trainable_parameters == result.counts.trainable_parameters
    assert result.facts[MODEL_DIGEST] == model_digest(str(path))
    formats = f"Q8_0 {1 + 7 * written.LAYERS}, F32 {1 + 2 * written.LAYERS}"
    assert f"weights dequantized from GGUF (tensors: {formats})" in result.notes

    folder = tmp_path / "run" / "adapter"
    model, tokenizer = load_adapter(folder)
    batch = tokenizer(["the 12 men", "and"], padding=True, return_tensors="pt")
    moved = Path(shutil.copy(path, tmp_path / "elsewhere.gguf"))
    again, _ = load_adapter(folder, base=str(moved))
    with torch.no_grad():
        outputs = model(**batch).logits
        assert torch.equal(again(**batch).logits, outputs)
    other = written.write(tmp_path / "other.gguf", written.random_llama(seed=1), Format.Q8_0)
    with pytest.raises(ValueError, match=r"tiny.gguf with SHA-256 .*, and .*other.gguf has"):
        load_adapter(folder, base=str(other))
