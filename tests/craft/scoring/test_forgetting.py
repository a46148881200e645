"""Forgetting: the loss is that of transformers' own loop over the windows, before and after, for every kind of method."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from craft.models import Base
from craft.models.loading import load_model, load_tokenizer
from craft.results import RunFailed, RunPrevented
from craft.scoring.encoding import Collator, Encoded
from craft.scoring.forgetting import SHIPPED, read_text, windows
from craft.scoring.passes import mean_token_loss
from craft.settings import ForgettingSettings
from craft.spec import RECOVERY
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.counting import planned_counts
from craft.trainer.cuts import cut_and_score
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec, make_spec
from tests.craft.methods.cases import CASES, marked
from tests.word_pairs import colours

TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. " * 9
)


@pytest.fixture
def make(tiny_llama: str, tmp_path: Path) -> MakeSpec:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    training = {"max_steps": 4, "batch_size": 4, "max_length": 256, "learning_rate": 1e-2, "train_examples": 16}

    measure = {"forgetting": {"text": str(tmp_path / "text.txt")}}
    return partial(make_spec, model=tiny_llama, **colours(tmp_path), method="lora", training=training, measure=measure)


def by_hand(model: Any, tokenizer: Any, text: str, length: int) -> float:
    """transformers' own loss, window by window, each weighted by the tokens that it predicts."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    first = [tokenizer.bos_token_id] if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id else []
    total, predicted = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(tokens), length - len(first)):
            window = torch.tensor([first + tokens[at : at + length - len(first)]])
            if window.shape[1] > 1:
                total += float(model.eval()(input_ids=window, labels=window).loss) * (window.shape[1] - 1)
                predicted += window.shape[1] - 1
    assert not first or predicted == len(tokens), "every token of the text is predicted once"
    return total / predicted


@pytest.mark.parametrize("begins", [True, False])
def test_the_loss_is_that_of_a_plain_loop_whatever_the_batches_and_their_order(tiny_llama: str, begins: bool) -> None:
    model, tokenizer = load_model(Base(tiny_llama, "generation", ())), load_tokenizer(tiny_llama)
    if not begins:
        tokenizer.backend_tokenizer.post_processor = None
    text = read_text(ForgettingSettings())[:1500]
    # 1500 bytes leave one token alone in the last of windows of 51: nothing predicts it where no token begins the window.
    encoded = windows(tokenizer, text, 51 if not begins else 100)
    expected = by_hand(model, tokenizer, text, 51 if not begins else 100)
    losses = [mean_token_loss(model, encoded, Collator(0), size) for size in (1, 3, 64)]
    assert losses == pytest.approx([expected] * 3, rel=1e-6)
    order = np.random.default_rng(0).permutation(len(encoded))
    parts = [encoded.columns["input_ids"][encoded.offsets[at] : encoded.offsets[at + 1]] for at in order]
    shuffled = Encoded({"input_ids": np.concatenate(parts)}, np.cumsum([0, *map(len, parts)]), starts=encoded.starts[order])
    assert mean_token_loss(model, shuffled, Collator(0), 4) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", marked(("craft", "pissa", "full"), ("craft",)))
def test_a_run_records_the_loss_of_its_base_and_of_what_it_became(
    make: MakeSpec, tiny_llama: str, tmp_path: Path, method: str
) -> None:
    spec = make(method=method, parameters=CASES[method].parameters)
    result = train_run(spec, tmp_path / "run")
    tokenizer = load_tokenizer(tiny_llama)
    before = by_hand(load_model(Base(tiny_llama, "generation", ())), tokenizer, TEXT, 384)
    trained, _ = load_adapter(result.adapter)
    after = by_hand(trained, tokenizer, TEXT, 384)
    assert abs(after - before) > 1e-3, "training has changed what the model says of the text"
    assert result.metrics["text_loss_before"] == pytest.approx(before, rel=1e-5)
    assert result.metrics["text_loss_after"] == pytest.approx(after, rel=1e-5)
    assert result.metrics["forgetting"] == pytest.approx(after - before, rel=1e-3)
    assert result.facts["forgetting_text_sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.mark.slow
def test_measuring_changes_nothing_else_and_a_resumed_run_refuses_another_text(make: MakeSpec, tmp_path: Path) -> None:
    with_it, without = make(), make(measure={})
    one, two = train_run(with_it, tmp_path / "one"), train_run(without, tmp_path / "two")
    names = {"forgetting", "text_loss_before", "text_loss_after"}
    assert {name: value for name, value in one.metrics.items() if name not in names} == two.metrics
    (checkpoint,) = (tmp_path / "one").glob("checkpoint-*")
    (tmp_path / "text.txt").write_text("another text " * 20)
    with pytest.raises(RunPrevented, match="the text of `forgetting` has changed"):
        train_run(with_it, tmp_path / "resumed", resume_from=checkpoint)


@pytest.mark.slow
def test_a_cut_adapter_is_measured_against_the_same_base(make: MakeSpec, tmp_path: Path) -> None:
    size = 200
    whole = train_run(make(), tmp_path / "run", cuts=[size])
    _, cut = cut_and_score(whole.adapter, f"parameters:{size}", tmp_path / "cut", recovery=RECOVERY)
    metrics = cut.metrics
    assert metrics == whole.cuts[0].metrics
    trained, tokenizer = load_adapter(cut.adapter)
    after = by_hand(trained, tokenizer, TEXT, 384)
    assert metrics["text_loss_before"] == whole.metrics["text_loss_before"]
    assert metrics["forgetting"] == pytest.approx(after - metrics["text_loss_before"], abs=1e-5)
    assert metrics["forgetting"] != whole.metrics["forgetting"]
    record = json.loads((cut.adapter / "run.json").read_text())
    Path(record["spec"]["measure"]["forgetting"]["text"]).write_text("Quite another text, which the record knows nothing of.")
    with pytest.raises(ValueError, match="has changed since the adapter"):
        cut_and_score(whole.adapter, "parameters:100", tmp_path / "again")


def test_a_key_changes_only_where_it_is_asked_for(make: MakeSpec) -> None:
    plain = make(measure={})
    assert make(measure={"forgetting": False}).key == plain.key
    assert make(measure={"forgetting": True}).key == make(measure={"forgetting": {}}).key != plain.key
    assert make().key not in (plain.key, make(measure={"forgetting": True}).key)


def test_what_cannot_be_measured_is_refused_in_words(make: MakeSpec, tiny_spec: MakeSpec, tmp_path: Path) -> None:
    for call in (planned_counts, lambda spec: train_run(spec, tmp_path / "head")):
        with pytest.raises((ValueError, RunFailed), match="toy/sentiment puts a task head where the language head was"):
            call(tiny_spec(measure={"forgetting": True}))
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes("Motörhead".encode("latin-1"))
    refused = {"gone": r"gone\.txt cannot be read: No such file", "blank": r"blank\.txt is empty", "latin": "no text in UTF-8"}
    for name, said in refused.items():
        with pytest.raises(RunFailed, match=said) as caught:
            train_run(make(measure={"forgetting": {"text": str(tmp_path / f"{name}.txt")}}), tmp_path / name)
        assert isinstance(caught.value, RunPrevented) == (name == "gone")


def test_the_shipped_text_is_the_one_that_losses_were_measured_on() -> None:
    digest = hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert digest == "922d19760c17691fafa621ebf086fd4434b1dce7c65ef3a8f864ec8062a8e15c"
