"""Every row of METHODS against its paper: its count as the formula gives it, its start, what it trains, its saving.

`CASES` is written by hand for the tiny model: hidden 32, 3 layers, MLP 64, every projection 32 x 32 but up (64 x 32) and down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models.heads import head_names, is_head
from craft.models.loading import load_model
from craft.spec import RunSpec
from craft.trainer.adapter_folder import copy_trainable, load_adapter, restore_trainable, save_adapter
from craft.trainer.counting import count, planned_counts, saved_state
from craft.trainer.optimizing import find_decaying
from craft.tuners.registration import TUNERS, register
from tests.craft.methods import one_more

D, MLP, LAYERS, VOCABULARY, POSITIONS = 32, 64, 3, 30522, 512
LABELS = ("negative", "positive")
STEPS = 20


@dataclass(frozen=True)
class Case:
    """`count` is without the task head (32 x 2 + 2). `start`: exact, close (up to rounding) or free, as the paper has it."""

    parameters: dict[str, Any]
    count: int
    start: str = "exact"
    learning_rate: float = 1e-2


# BERT: embeddings with their norm, L x (4 projections, MLP, 2 norms), pooler.
BERT = (VOCABULARY + POSITIONS + 2) * D + 2 * D
BERT += LAYERS * (4 * (D * D + D) + D * MLP + MLP + MLP * D + D + 4 * D) + D * D + D
BIASES = D + LAYERS * (4 * D + MLP + D + 2 * D) + D

CASES: dict[str, Case] = {
    "craft": Case({"ranks": ["all", 8, 6]}, 2 * (3**2 + 8**2 + 6**2), start="free"),
    "craft_star": Case({"ranks": ["all", 8, 6]}, 4 * (3**2 + 8**2 + 6**2), start="free"),
    "head": Case({}, 0),
    "full": Case({}, BERT, learning_rate=1e-3),
    "bitfit": Case({}, BIASES),
    "lora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D)),
    "rslora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D)),
    "dora": Case({"rank": 4}, 2 * LAYERS * (4 * (D + D) + D)),
    "pissa": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D), start="close"),
    "olora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D), start="close"),
    "lora_xs": Case({"rank": 6}, 2 * LAYERS * 6**2),
    "vera": Case({"rank": 16}, 2 * LAYERS * (16 + D)),
    "galore": Case({"rank": 4, "interval": 5, "scale": 1}, BERT, learning_rate=3e-3),
    "milora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D), start="close"),
    "adalora": Case({"init_rank": 4, "target_rank": 2}, 2 * LAYERS * (4 * (D + D) + 4)),
    "lotr": Case({"rank": 5}, 2 * (5 * (D + D) + LAYERS * 5**2)),
    # 6 matrices of 1024 entries in two groups of 3072, each folded into 15 x 15 x 14 = 3150.
    "superlora": Case({"rank": 3, "groups": 2, "order": 3}, 2 * (3**3 + 3 * (15 + 15 + 14))),
    "houlsby": Case({"bottleneck": 4}, LAYERS * (2 * (2 * D * 4 + D + 4) + 2 * 2 * D)),
    "pfeiffer": Case({"bottleneck": 4}, LAYERS * (2 * D * 4 + D + 4)),
    "adapterdrop": Case({"bottleneck": 4, "dropped_layers": 1}, (LAYERS - 1) * (2 * D * 4 + D + 4)),
    # 32 = 8·4, 8 = 4·2: trains 4 2 | 8 4 and 8 4 | 4 2 of rank 2, two adapters a layer.
    "loretta": Case(
        {"bottleneck": 8, "rank": 2},
        2 * LAYERS * ((4 * 2 + 2 * 2 * 2 + 2 * 8 * 2 + 2 * 4) + (8 * 2 + 2 * 4 * 2 + 2 * 4 * 2 + 2 * 2)),
    ),
    "ia3": Case({}, LAYERS * (D + D + MLP)),
    # Every other type is in `test_peft_types.py`. LILY: an A for each module, two B for each of q and v, and routers.
    "peft": Case(
        {"peft_type": "LILY", "config": {"r": 4, "num_B": 2}}, 2 * LAYERS * 4 * D + 2 * 2 * 4 * D + 2 * LAYERS * 4 * 2
    ),
    one_more.METHOD.name: Case({}, 2 * LAYERS * D, learning_rate=1e-1),
}


@pytest.fixture(scope="module", autouse=True)
def one_row_more() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, row in one_more.TUNER_ROW.items():
            patch.setitem(TUNERS, name, row)
        patch.setitem(METHODS, one_more.METHOD.name, one_more.METHOD)
        register()
        yield


def test_every_row_has_a_case() -> None:
    assert CASES.keys() == {name for name, row in METHODS.items() if row.requires is None}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def built(name: str, tiny_bert: str) -> Callable[[], tuple[nn.Module, RunSpec]]:
    """Makes the tiny model with the row's method on it, the same at every call."""

    def make() -> tuple[nn.Module, RunSpec]:
        spec = RunSpec(model=tiny_bert, task="toy/sentiment", method=name, parameters=CASES[name].parameters)
        base = load_model(tiny_bert, "classification", LABELS)
        row = METHODS[name]
        context = BuildContext("SEQ_CLS", total_steps=STEPS)
        return row.build(base, row.parameters.model_validate(spec.parameters), context), spec

    return make


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    """Texts of two kinds of words: something that can be learnt."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(16) % 2
    words = torch.randint(1000, 2000, (16, 12), generator=draw) + 1000 * labels[:, None]
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": labels}


def logits(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


def learn(model: nn.Module, name: str, batch: dict[str, torch.Tensor], steps: int = STEPS) -> list[float]:
    """Some steps of training by the row's own optimizer; the losses, of which the last is after the last step."""
    row = METHODS[name]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": CASES[name].learning_rate, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer
    if row.optimizer is None:
        optimizer = torch.optim.AdamW(groups)
    else:
        parameters = row.parameters.model_validate(CASES[name].parameters)
        optimizer = row.optimizer(model, groups, parameters, BuildContext("SEQ_CLS", total_steps=STEPS))
    model.train()
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(**{**batch, "labels": None}).logits, batch["labels"])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*losses, nn.functional.cross_entropy(logits(model, batch), batch["labels"]).item()]


def test_trains_as_many_numbers_as_its_paper_says(name: str, built: Callable[[], tuple[nn.Module, RunSpec]]) -> None:
    model, spec = built()
    counts = count(model)
    assert counts.trainable_parameters == CASES[name].count
    assert counts.head_parameters == D * 2 + 2
    planned = planned_counts(spec)
    for quantity in ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes"):
        assert getattr(planned, quantity) == getattr(counts, quantity), f"{quantity} planned without weights"


def test_starts_where_its_paper_says(
    name: str, built: Callable[[], tuple[nn.Module, RunSpec]], tiny_bert: str, batch: dict[str, torch.Tensor]
) -> None:
    before = logits(load_model(tiny_bert, "classification", LABELS), batch)
    after = logits(built()[0], batch)
    if CASES[name].start == "exact":
        assert torch.equal(after, before)
    elif CASES[name].start == "close":
        torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
        assert not torch.equal(after, before), "the weights are split in two: rounding shows"
    else:
        assert torch.isfinite(after).all()


def test_weight_decay_leads_to_the_base_model(
    name: str, built: Callable[[], tuple[nn.Module, RunSpec]], tiny_bert: str, batch: dict[str, torch.Tensor]
) -> None:
    """Smaller weights make a model nearer to the base, or the row says that its weights decay to their start."""
    base, (model, _) = logits(load_model(tiny_bert, "classification", LABELS), batch), built()
    before, heads = (logits(model, batch) - base).norm(), head_names(model)
    decays = find_decaying(model)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.requires_grad and key in decays and not is_head(key, heads):
                weight.mul_(0.5)
    leads_away = bool((logits(model, batch) - base).norm() > before + 1e-3)
    # Of `peft`'s types some lead away; weights of the base itself decay to 0 in every published recipe.
    assert METHODS[name].decays_to_start or METHODS[name].master_weights or not leads_away
    assert leads_away or name == "peft" or not METHODS[name].decays_to_start


def test_learns_and_touches_nothing_else(
    name: str, built: Callable[[], tuple[nn.Module, RunSpec]], batch: dict[str, torch.Tensor]
) -> None:
    model, _ = built()
    heads = head_names(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {key: value.detach().clone() for key, value in tensors.items()}
    trained = {key for key, weight in model.named_parameters() if weight.requires_grad}
    losses = learn(model, name, batch)
    assert losses[-1] < 0.9 * losses[0], losses
    moved = {key for key, value in tensors.items() if not torch.equal(value, before[key])}
    assert moved <= trained, "something moved that does not train"
    assert any(not is_head(key, heads) for key in moved) != (name == "head"), "the head alone has learnt, or more than it"


def test_saves_and_loads_to_equal_outputs(
    name: str, built: Callable[[], tuple[nn.Module, RunSpec]], batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    model, spec = built()
    learn(model, name, batch, steps=5)
    expected = logits(model, batch)
    record = {"spec": spec.model_dump(mode="json"), "kind": "classification", "labels": list(LABELS)}
    folder = save_adapter(model, tmp_path / "adapter", json.loads(json.dumps(record)))
    # What resuming relies on: the parameters that train, by name, put into a fresh model make the model that trained.
    fresh, _ = built()
    restore_trainable(fresh, copy_trainable(model))
    assert torch.equal(logits(fresh, batch), expected)
    torch.manual_seed(99)
    loaded, _ = load_adapter(folder)
    if CASES[name].start == "close":
        torch.testing.assert_close(logits(loaded, batch), expected, atol=1e-6, rtol=1e-6)
    else:
        assert torch.equal(logits(loaded, batch), expected)
    written = load_file(next(folder.glob("*.safetensors")))
    assert sum(tensor.nbytes for key, tensor in written.items()) >= count(model).adapter_bytes
    assert {tuple(tensor.shape) for tensor in saved_state(model).values()} <= {tuple(t.shape) for t in written.values()}


@pytest.mark.parametrize("row", [*METHODS, one_more.METHOD.name])
def test_its_words_are_understood(row: str) -> None:
    method = METHODS[row]
    parameters = method.parameters.model_validate(CASES[row].parameters if row == "peft" else {})
    assert method.label(parameters).strip() == method.label(parameters) != ""
    assert method.parameters.model_validate(parameters.model_dump(mode="json")) == parameters
    with pytest.raises(ValueError, match="no_such"):
        method.parameters.model_validate({"no_such": 1})


@pytest.mark.parametrize("row", ["lora", "rslora", "dora", "pissa", "olora", "milora", "adalora", "lora_xs", "lotr"])
def test_a_rank_above_the_smaller_side_is_refused(row: str, tiny_model: Callable[..., Any]) -> None:
    method, name = METHODS[row], "init_rank" if row == "adalora" else "rank"
    model = tiny_model("bert", head="classifier").to("meta")
    with pytest.raises(ValueError, match=r"rank 5000 is more than the smaller side of an adapted weight; at most \d+ here"):
        method.build(model, method.parameters.model_validate({name: 5000}), BuildContext("SEQ_CLS", total_steps=STEPS))


@pytest.mark.parametrize(
    ("row", "theirs", "ours"),
    [
        ("lora", {"r": 2, "lora_alpha": 4, "lora_dropout": 0.1}, {"rank": 2, "alpha": 4, "dropout": 0.1}),
        ("vera", {"r": 2, "vera_dropout": 0.1}, {"rank": 2, "dropout": 0.1}),
        ("lora_xs", {"r": 2, "psoft_dropout": 0.1}, {"rank": 2, "dropout": 0.1}),
    ],
)
def test_pefts_own_names_are_understood(row: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    model = METHODS[row].parameters
    assert model.model_validate(theirs) == model.model_validate(ours)


def test_a_llama_takes_every_row_that_its_layers_allow(tiny_model: Callable[..., Any], name: str) -> None:
    """Grouped queries make k and v narrower than q; there are no biases, and no pooler."""
    model = tiny_model("llama", head="classifier")
    row = METHODS[name]
    parameters = row.parameters.model_validate(CASES[name].parameters)
    if name == "bitfit":
        with pytest.raises(ValueError, match="has none"):
            row.build(model, parameters, BuildContext("SEQ_CLS"))
        return
    built = row.build(model, parameters, BuildContext("SEQ_CLS", total_steps=STEPS))
    out = built(input_ids=torch.ones(2, 5, dtype=torch.long))
    assert out.logits.shape == (2, 2)
    assert (count(built).trainable_parameters > 0) == (name != "head")
