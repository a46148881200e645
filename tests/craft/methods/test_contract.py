"""Every row of METHODS, and every type of PEFT, against its paper: its count, its start, what it trains, its saving."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models import Base
from craft.models.loading import TASK_TYPES, head_names, is_head, load_model, trained_weights
from craft.models.projections import linear_modules
from craft.spec import RunSpec
from craft.trainer.adapter_folder import copy_trainable, load_adapter, restore_trainable, save_adapter
from craft.trainer.counting import count, planned_counts, saved_state
from craft.trainer.loop import find_decaying
from tests.conftest import toy_tokenizer
from tests.craft.methods.cases import CASES, SUBJECTS, TYPES, Case, D, marked, put

LABELS = ("negative", "positive")
STEPS = 20
TARGETS = torch.arange(16) % 2
TEXTS = torch.randint(40, 50, (16, 8), generator=torch.Generator().manual_seed(0)) + 10 * TARGETS[:, None]
"""Texts of two kinds of words, of the tokens that every tiny model has: something that can be learnt."""


@dataclass
class Subject:
    """A method on a tiny model, before and after some steps of training by the row's own optimizer."""

    name: str
    case: Case
    spec: RunSpec
    model: nn.Module
    base: Tensor
    start: Tensor
    losses: list[float] = field(default_factory=list)
    trained: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    end: Tensor = field(default_factory=Tensor)


def spec_of(name: str, tiny_bert: str, tiny_llama: str) -> RunSpec:
    case = SUBJECTS[name]
    model, task = (tiny_llama, "commonsense") if case.words else (tiny_bert, "toy/sentiment")
    return RunSpec(model=model, task=task, method=name.partition(" ")[0], parameters=case.parameters)


def base_of(spec: RunSpec, case: Case) -> nn.Module:
    return copy.deepcopy(read_base(spec.model, case.kind, () if case.words else LABELS))


@cache
def read_base(model: str, kind: str, labels: tuple[str, ...]) -> nn.Module:
    return load_model(Base(model, kind, labels))


def build(spec: RunSpec, case: Case, base: nn.Module | None = None) -> nn.Module:
    """Builds as a run does: what a tuner draws comes from the run's seed."""
    base = base or base_of(spec, case)
    transformers.set_seed(0)
    return put(base, spec.method, spec.parameters, TASK_TYPES[case.kind])


def outputs(model: nn.Module, case: Case) -> Tensor:
    logits = model(input_ids=TEXTS, attention_mask=torch.ones_like(TEXTS)).logits
    return logits[:, -1] if case.words else logits


def score(model: nn.Module, case: Case) -> Tensor:
    with torch.no_grad():
        return outputs(model.eval(), case)


def learn(subject: Subject) -> None:
    model, case, row = subject.model, subject.case, METHODS[subject.spec.method]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: value.detach().clone() for name, value in tensors.items()}
    subject.trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": case.learning_rate, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer
    if row.optimizer is None:
        optimizer = torch.optim.AdamW(groups)
    else:
        parameters = row.parameters.model_validate(case.parameters)
        optimizer = row.optimizer(model, groups, parameters, BuildContext("SEQ_CLS", total_steps=STEPS))
    model.train()
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(outputs(model, case), TARGETS)
        subject.losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    subject.moved = {name for name, value in tensors.items() if not torch.equal(value, before[name])}
    subject.end = score(model, case)
    subject.losses.append(nn.functional.cross_entropy(subject.end, TARGETS).item())


@pytest.fixture(scope="module", params=marked(SUBJECTS))
def subject(request: pytest.FixtureRequest, tiny_bert: str, tiny_llama: str) -> Subject:
    name, case = request.param, SUBJECTS[request.param]
    spec = spec_of(name, tiny_bert, tiny_llama)
    model = build(spec, case)
    subject = Subject(name, case, spec, model, score(base_of(spec, case), case), score(model, case))
    learn(subject)
    return subject


def test_every_row_has_a_case() -> None:
    assert CASES.keys() == {name for name, row in METHODS.items() if row.requires is None}


def test_trains_as_many_numbers_as_its_paper_says(subject: Subject) -> None:
    counts, planned = count(subject.model), planned_counts(subject.spec)
    assert counts.trainable_parameters == subject.case.count
    assert counts.head_parameters == (0 if subject.case.words else D * 2 + 2)
    for quantity in ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes"):
        assert getattr(planned, quantity) == getattr(counts, quantity), f"{quantity} planned without weights"


@pytest.mark.parametrize("name", marked(name for name in CASES if name != "peft"))
def test_trains_as_many_numbers_over_a_bfloat16_base(name: str, tiny_bert: str, tiny_llama: str) -> None:
    case, spec = CASES[name], spec_of(name, tiny_bert, tiny_llama)
    base = Base(spec.model, case.kind, LABELS, precision="bfloat16", master_weights=METHODS[name].master_weights)
    assert count(build(spec, case, load_model(base))).trainable_parameters == case.count


def test_starts_where_its_paper_says(subject: Subject) -> None:
    assert torch.isfinite(subject.start).all()
    equal = torch.equal(subject.start, subject.base)
    assert equal or subject.case.start != "exact"
    if subject.case.start == "close":
        torch.testing.assert_close(subject.start, subject.base, atol=1e-4, rtol=1e-4)
        assert not equal, "the weights are split in two: rounding shows"


@pytest.mark.parametrize("name", marked(name for name in CASES if name != "peft"))
def test_weight_decay_leads_to_the_base_model(name: str, tiny_bert: str, tiny_llama: str) -> None:
    """Smaller weights make a model nearer to the base, or the row says that its weights decay to their start."""
    case, spec = CASES[name], spec_of(name, tiny_bert, tiny_llama)
    base, model = score(base_of(spec, case), case), build(spec, case)
    before, heads, decays = (score(model, case) - base).norm(), head_names(model), find_decaying(model)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.requires_grad and key in decays and not is_head(key, heads):
                weight.mul_(0.5)
    leads_away = bool((score(model, case) - base).norm() > before + 1e-3)
    # Weights of the base itself decay to 0 in every published recipe.
    assert METHODS[name].decays_to_start or METHODS[name].master_weights or not leads_away
    assert leads_away or not METHODS[name].decays_to_start


def test_learns_and_touches_nothing_else(subject: Subject) -> None:
    assert subject.losses[-1] < 0.9 * subject.losses[0], subject.losses
    assert subject.moved <= subject.trained, "something moved that does not train"
    heads = head_names(subject.model)
    assert any(not is_head(name, heads) for name in subject.moved) != (subject.name == "head"), (
        "the head alone, or more than it"
    )
    assert {weight.dtype for weight in subject.model.parameters() if weight.requires_grad} == {torch.float32}


def test_saves_and_loads_to_equal_outputs(subject: Subject, tmp_path: Path) -> None:
    case = subject.case
    # What resuming relies on: the parameters that train, by name, put into a fresh model make the model that trained.
    fresh = build(subject.spec, case)
    restore_trainable(fresh, copy_trainable(subject.model))
    assert torch.equal(score(fresh, case), subject.end)
    record = {"spec": subject.spec.model_dump(mode="json"), "kind": case.kind, "labels": [] if case.words else LABELS}
    folder = save_adapter(subject.model, tmp_path / "adapter", json.loads(json.dumps(record)))
    torch.manual_seed(99)
    loaded, _ = load_adapter(folder)
    tolerance = 1e-6 if "close" in (case.start, case.loads) else 0
    torch.testing.assert_close(score(loaded, case), subject.end, atol=tolerance, rtol=tolerance)
    written = load_file(next(folder.glob("[!b]*.safetensors")))
    assert sum(tensor.nbytes for tensor in written.values()) >= count(subject.model).adapter_bytes
    shapes = {tuple(tensor.shape) for tensor in saved_state(subject.model).values()}
    assert shapes <= {tuple(tensor.shape) for tensor in written.values()}


SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
HEADS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "bart": (
        {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
        | {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
        {"classification_head"},
    ),
    "deberta-v2": (SMALL, {"pooler", "classifier"}),
    "distilbert": ({"n_layers": 2, "dim": 32, "hidden_dim": 64, "n_heads": 2}, {"pre_classifier", "classifier"}),
    "llama": (SMALL, {"score"}),
    "modernbert": (SMALL, {"head", "classifier"}),
    "t5": ({"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}, {"classification_head"}),
}
"""Models whose heads have modules of several names: their sizes, and those modules."""


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize("name", ["lora", "craft", "houlsby", "peft LILY"])
def test_a_head_of_any_names_trains_and_is_saved(architecture: str, name: str, tmp_path: Path) -> None:
    (sizes, heads), tokenizer = HEADS[architecture], toy_tokenizer()
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = transformers.AutoConfig.for_model(
        architecture, vocab_size=len(tokenizer), decoder_start_token_id=3, **tokens, **sizes
    )
    transformers.set_seed(0)
    for part in (transformers.AutoModel.from_config(config), tokenizer):
        part.save_pretrained(tmp_path / "base")
    spec = spec_of(name, str(tmp_path / "base"), "")
    model = build(spec, SUBJECTS[name])
    trained = {name.removeprefix("base_model.model."): weight for name, weight, head in trained_weights(model) if head}
    assert {name.split(".")[0] for name in trained} == heads
    assert count(model).head_parameters == sum(weight.numel() for weight in trained.values())
    assert count(model) == planned_counts(spec)
    with torch.no_grad():
        for weight in trained.values():
            weight.add_(0.1 * torch.randn(weight.shape))
        texts = nn.functional.pad(TEXTS, (0, 1), value=3)
        logits = model.eval()(input_ids=texts).logits
        record = {"spec": spec.model_dump(mode="json"), "kind": "classification", "labels": LABELS}
        loaded, _ = load_adapter(save_adapter(model, tmp_path / "adapter", record))
        assert torch.equal(loaded(input_ids=texts).logits, logits)


@pytest.mark.parametrize("row", CASES)
def test_its_words_are_understood(row: str) -> None:
    method = METHODS[row]
    parameters = method.parameters.model_validate(CASES[row].parameters if row == "peft" else {})
    assert method.label(parameters).strip() == method.label(parameters) != ""
    assert method.parameters.model_validate(parameters.model_dump(mode="json")) == parameters
    with pytest.raises(ValueError, match="no_such"):
        method.parameters.model_validate({"no_such": 1})


@pytest.mark.parametrize("name", marked(SUBJECTS))
def test_its_base_computes_in_the_format_of_the_precision(name: str, tiny_bert: str, tiny_llama: str) -> None:
    """Seen at the first product of an MLP, which few methods adapt."""
    case, spec = SUBJECTS[name], spec_of(name, tiny_bert, tiny_llama)
    base: Any = load_model(Base(spec.model, case.kind, () if case.words else LABELS, precision="bf16-mixed"))
    formats = list[torch.dtype]()
    first = next(path for path in linear_modules(base) if path.endswith(("intermediate.dense", "up_proj")))
    base.get_submodule(first).register_forward_hook(lambda _module, _inputs, output: formats.append(output.dtype))
    build(spec, case, base)(input_ids=TEXTS)
    assert formats == [torch.bfloat16]


PLACED = [name for name, row in METHODS.items() if "layers" in row.parameters.model_fields and name in SUBJECTS]


@pytest.mark.parametrize("name", marked([*PLACED, "peft LILY"]))
def test_adapts_the_layers_that_are_asked_for(name: str, tiny_bert: str, tiny_llama: str) -> None:
    """Of three layers: the gradient ends where the first adapted one begins, so training costs less."""
    case, spec = SUBJECTS[name], spec_of(name, tiny_bert, tiny_llama)
    method = METHODS[spec.method]

    def reached(layers: Any) -> list[bool]:
        placed = method.parameters.model_validate(case.parameters | {"layers": layers})
        assert method.parameters.model_validate(placed.model_dump(mode="json")) == placed
        model = method.build(base_of(spec, case), placed, BuildContext(TASK_TYPES[case.kind], total_steps=STEPS))
        states = model(input_ids=TEXTS, output_hidden_states=True).hidden_states
        return [bool(state.requires_grad) for state in states]

    if name == "adapterdrop":  # without its first
        assert reached(None) == [False, False, True, True]
        with pytest.raises(ValueError, match="layers"):
            reached("top 1")
        return
    assert reached(None) == [False, True, True, True]
    assert reached("top 2") == reached([1, 2]) == reached(2) == [False, False, True, True]
    assert reached([0]) == reached(None)
    assert method.text(method.parameters.model_validate({**case.parameters, "layers": 1})).endswith(", top 1")
    for layers, message in ((4, "the last 4 asked for"), ([3], "3 asked for"), ("top", "got 'top'"), ([1, 1], "each once")):
        with pytest.raises(ValueError, match=message):
            reached(layers)


def test_pefts_own_names_are_understood() -> None:
    read = METHODS["lora"].parameters.model_validate
    assert read({"r": 2, "lora_alpha": 4, "lora_dropout": 0.1}) == read({"rank": 2, "alpha": 4, "dropout": 0.1})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("olora", {}), ("peft", {"peft_type": "LORA", "config": {"init_lora_weights": "olora", "target_modules": ["c_attn"]}})],
)
def test_olora_is_refused_where_peft_would_read_weights_transposed(
    name: str, parameters: dict[str, Any], tiny_model: Callable[..., Any]
) -> None:
    row = METHODS[name]
    with pytest.raises(ValueError, match="take pissa"):
        row.build(tiny_model("gpt2"), row.parameters.model_validate(parameters), BuildContext("SEQ_CLS"))


def test_without_biases_there_is_nothing_to_train(tiny_model: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="has none"):
        put(tiny_model("llama"), "bitfit")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_a_llama_takes_every_type(kind: str, tiny_model: Callable[..., Any]) -> None:
    """Grouped queries make k and v narrower than q. `tests.craft.scoring.test_positions` puts all other methods on one."""
    # The norms of a LLaMA have other names.
    given = {"peft_type": kind} if kind == "LN_TUNING" else TYPES[kind].parameters
    built = put(tiny_model("llama", head="causal"), "peft", given, "CAUSAL_LM")
    built(input_ids=torch.ones(2, 5, dtype=torch.long)).logits.sum().backward()
    assert any(weight.grad is not None for weight in built.parameters())
