"""Every type of the installed PEFT, as `method: peft`: it keeps the contract of a method, or it stands in CANNOT with a reason.

Counts are for the BERT of `test_contract`, or for a LLaMA of 2 layers, hidden 32, keys of 16, MLP 48.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import PeftType
from torch import Tensor, nn

from craft.methods import METHODS, shown_method
from craft.methods.from_peft.installed import CANNOT, REFUSED_SETTINGS, config_model
from craft.methods.method import BuildContext
from craft.models.heads import TASK_TYPES, head_names, is_head
from craft.models.loading import load_model
from craft.spec import RunSpec
from craft.tasks.task import Kind
from craft.trainer.adapter_folder import copy_trainable, load_adapter, restore_trainable, save_adapter
from craft.trainer.counting import count, planned_counts
from craft.tuners.registration import TUNERS
from tests.craft.methods.one_more import TUNER_ROW

D, LAYERS, MODULES = 32, 3, 2 * 3
HEAD = D * 2 + 2
LABELS = ("negative", "positive")
STEPS = 12


@dataclass(frozen=True)
class Case:
    """`count` is without the task head. `words`: the model is a language model that answers in words, so it has no head."""

    config: dict[str, Any]
    count: int
    words: bool = False
    exact_start: bool = True
    learning_rate: float = 1e-2

    @property
    def kind(self) -> Kind:
        return "generation" if self.words else "classification"


TYPES: dict[str, Case] = {
    # A holds 8 of each subspace's components, and the rows of all B together are those of W.
    "ADAMSS": Case({"r": 8, "num_subspaces": 2, "subspace_rank": 1}, MODULES * (2 * 8 + D)),
    "ADAPTION_PROMPT": Case({"adapter_len": 4, "adapter_layers": 2}, 2 * (4 * D + 1), words=True, learning_rate=1.0),
    "BEFT": Case({}, MODULES * D),
    "BOFT": Case({"boft_block_size": 4}, MODULES * (D // 4 * 4 * 4 + D)),
    "C3A": Case({"block_size": 8}, MODULES * (D // 8) ** 2 * 8, exact_start=False),
    "DEFT": Case({"r": 4}, MODULES * 4 * (D + D), exact_start=False),
    "DELORA": Case({"r": 4, "delora_lambda": 2}, MODULES * (4 * (D + D) + 1)),
    "FOURIERFT": Case({"n_frequency": 40, "scaling": 10.0}, MODULES * 40, exact_start=False),
    # A diagonal, and one entry in a hundred off it.
    "FROD": Case({"sparse_rate": 0.01}, MODULES * (D + int(0.01 * D * D)), exact_start=False),
    # A and B of rank 4, C of rank 4 between d_in and one bias, D and E one number each.
    "GLORA": Case({"r": 4}, MODULES * (2 * 4 * (D + D) + 4 * (D + 1) + 2)),
    "GRALORA": Case({"r": 4, "alpha": 8}, MODULES * 4 * (D + D)),
    "HIRA": Case({"r": 4}, MODULES * 4 * (D + D)),
    "HRA": Case({"r": 4}, MODULES * 4 * D, exact_start=False),
    "IA3": Case({"feedforward_modules": []}, MODULES * D),
    # An A for each module, two B for each of q and v, and a router that mixes them.
    "LILY": Case({"r": 4, "num_B": 2}, MODULES * 4 * D + 2 * 2 * 4 * D + MODULES * 4 * 2),
    "LN_TUNING": Case({"target_modules": ["LayerNorm"]}, (1 + 2 * LAYERS) * 2 * D),
    "LOHA": Case({"r": 2}, MODULES * 2 * 2 * (D + D)),
    "LOKR": Case({"r": 2}, MODULES * (4 * 4 + 2 * (8 + 8))),
    "LORA": Case({"r": 4, "init_lora_weights": "orthogonal"}, MODULES * 4 * (D + D), exact_start=False),
    "MISS": Case({"r": 4}, MODULES * 4 * D),
    # 4 x 4 blocks of skew-symmetric 8 x 8 matrices.
    "OFT": Case({"oft_block_size": 8}, MODULES * (D // 8) * (8 * 7 // 2)),
    "OSF": Case({"effective_rank": 24}, MODULES * ((D - 24) * (D + D) + (D - 24)), exact_start=False),
    "PEANUT": Case({"r": 4}, MODULES * 4 * (D + D)),
    "PSOFT": Case({"r": 6}, MODULES * (6 * 5 // 2 + 6 + 6)),
    # VeRA's b and d, and a second d for the deviation of what is sampled.
    "PVERA": Case({"r": 16}, MODULES * (2 * 16 + D)),
    # 4 pairs of random bases of rank 8: their diagonals.
    "RANDLORA": Case({"r": 8}, MODULES * (4 * 8 + 4 * D)),
    "ROAD": Case({"group_size": 8}, MODULES * 2 * D // 2),
    "SHADOW": Case(
        {"r": 4, "shadow_num_hidden_layers": 1, "shadow_intermediate_size": 48},
        # Injection, update and gate in each of 2 layers; beside them a backbone of one layer.
        2 * (2 * 4 * D + 2 * (2 * 4 * D + 4 + D)) + (2 * D * D + 2 * 16 * D + 3 * 48 * D + 3 * D),
        words=True,
    ),
    # As many entries of W as LoRA of rank 2 has.
    "SHIRA": Case({"r": 2}, MODULES * 2 * (D + D)),
    "SUPERTUNING": Case({"sparsity": 0.9}, MODULES * round(0.1 * D * D)),
    "TINYLORA": Case({"r": 2, "u": 16}, MODULES * 16),
    "TRAINABLE_TOKENS": Case({"token_indices": list(range(40, 60))}, 20 * D, words=True),
    "UNILORA": Case({"r": 2, "theta_d_length": 32}, 32, exact_start=False, learning_rate=1e-1),
    "VBLORA": Case(
        {"r": 2, "num_vectors": 12, "vector_length": 8}, 12 * 8 + MODULES * 2 * (D // 8 + D // 8) * 12, exact_start=False
    ),
    "VERA": Case({"r": 16}, MODULES * (16 + D)),
    "WAVEFT": Case({"n_frequency": 40}, MODULES * 40),
}


@dataclass
class Made:
    """A type's tuner on a tiny model, before and after some steps of training."""

    spec: RunSpec
    case: Case
    model: nn.Module
    start: Tensor
    base: Tensor
    losses: list[float] = field(default_factory=list)
    trained: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    end: Tensor = field(default_factory=Tensor)


def words_of(case: Case) -> Tensor:
    """Texts of two kinds of words, of the tokens that every tiny model has."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(40, 50, (8, 6), generator=draw) + 10 * (torch.arange(8) % 2)[:, None]


def outputs(model: nn.Module, case: Case) -> Tensor:
    words = words_of(case)
    logits = model(input_ids=words, attention_mask=torch.ones_like(words)).logits
    return logits[:, -1] if case.words else logits


def scored(model: nn.Module, case: Case) -> Tensor:
    with torch.no_grad():
        return outputs(model.eval(), case)


def base_of(spec: RunSpec, case: Case) -> nn.Module:
    return load_model(spec.model, case.kind, () if case.words else LABELS)


def built(spec: RunSpec, case: Case, seed: int = 0) -> nn.Module:
    """As a run builds it: what a tuner draws comes from the run's seed."""
    base = base_of(spec, case)
    transformers.set_seed(seed)
    row = METHODS["peft"]
    return row.build(base, row.parameters.model_validate(spec.parameters), BuildContext(TASK_TYPES[case.kind]))


def learn(made: Made) -> None:
    model, case = made.model, made.case
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: value.detach().clone() for name, value in tensors.items()}
    made.trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW((w for w in model.parameters() if w.requires_grad), lr=case.learning_rate, weight_decay=0.0)
    labels = torch.arange(8) % 2
    model.train()
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(outputs(model, case), labels)
        made.losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.moved = {name for name, value in tensors.items() if not torch.equal(value, before[name])}
    made.end = scored(model, case)
    made.losses.append(nn.functional.cross_entropy(made.end, labels).item())


@pytest.fixture(scope="module", params=TYPES)
def made(request: pytest.FixtureRequest, tiny_bert: str, tiny_llama: str) -> Made:
    case = TYPES[request.param]
    model, task = (tiny_llama, "commonsense") if case.words else (tiny_bert, "toy/sentiment")
    spec = RunSpec(model=model, task=task, method="peft", parameters={"peft_type": request.param, "config": case.config})
    tuned = built(spec, case)
    found = Made(spec, case, tuned, scored(tuned, case), scored(base_of(spec, case), case))
    learn(found)
    return found


def test_every_type_of_the_installed_peft_trains_or_says_why_not() -> None:
    """A type that a newer PEFT adds belongs in TYPES here, or with a reason in `craft.methods.from_peft.installed.CANNOT`."""
    theirs = {one.value for one in PeftType} - TUNERS.keys() - TUNER_ROW.keys()  # another test may have added its own
    assert theirs == TYPES.keys() | CANNOT.keys()
    assert not TYPES.keys() & CANNOT.keys()
    for (kind, key), (values, reason) in REFUSED_SETTINGS.items():
        assert key in config_model(kind).model_fields
        assert values
        assert reason


def test_the_page_of_methods_names_every_type_on_its_side() -> None:
    page = (Path(__file__).parents[3] / "docs" / "methods.md").read_text()
    able, _, rest = page.partition("\n- Train BERT and LLaMA: ")[2].partition("\n- Cannot train here: ")
    cannot = rest.partition(" LoRA's starts from data")[0]
    assert set(re.findall(r"`([A-Z0-9_]+)`", able)) == TYPES.keys()
    assert set(re.findall(r"`([A-Z0-9_]+)`", cannot)) == CANNOT.keys()


def test_a_type_trains_as_many_numbers_as_its_paper_says(made: Made) -> None:
    counts, planned = count(made.model), planned_counts(made.spec)
    assert counts.trainable_parameters == made.case.count
    assert counts.head_parameters == (0 if made.case.words else HEAD)
    for quantity in ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes"):
        assert getattr(planned, quantity) == getattr(counts, quantity), f"{quantity} planned without weights"


def test_a_type_learns_and_touches_nothing_else(made: Made) -> None:
    assert torch.isfinite(made.start).all()
    assert not made.case.exact_start or torch.equal(made.start, made.base)
    assert made.losses[-1] < 0.9 * made.losses[0], made.losses
    assert made.moved <= made.trained, "something moved that does not train"
    heads = head_names(made.model)
    assert any(not is_head(name, heads) for name in made.moved), "the head alone has learnt"
    assert {w.dtype for w in made.model.parameters() if w.requires_grad} == {torch.float32}


def test_a_type_saves_and_loads_to_equal_outputs(made: Made, tmp_path: Path) -> None:
    fresh = built(made.spec, made.case)
    restore_trainable(fresh, copy_trainable(made.model))
    assert torch.equal(scored(fresh, made.case), made.end), "a resumed run goes on elsewhere"
    record = {"spec": made.spec.model_dump(mode="json"), "kind": made.case.kind, "labels": [] if made.case.words else LABELS}
    folder = save_adapter(made.model, tmp_path / "adapter", json.loads(json.dumps(record)))
    torch.manual_seed(99)
    loaded, _ = load_adapter(folder)
    assert torch.equal(scored(loaded, made.case), made.end)


@pytest.mark.parametrize("kind", TYPES)
def test_a_llama_takes_every_type(kind: str, tiny_model: Callable[..., Any]) -> None:
    """Grouped queries make v narrower than q, and there are no biases."""
    config = {} if kind == "LN_TUNING" else TYPES[kind].config
    parameters = METHODS["peft"].parameters.model_validate({"peft_type": kind, "config": config})
    model = METHODS["peft"].build(tiny_model("llama", head="causal"), parameters, BuildContext("CAUSAL_LM"))
    model(input_ids=torch.ones(2, 5, dtype=torch.long)).logits.sum().backward()
    assert any(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("kind", [name for name, case in TYPES.items() if case.words and name != "SHADOW"])
def test_a_type_that_leaves_a_head_untrained_is_refused_one(kind: str, tiny_llama: str) -> None:
    spec = RunSpec(
        model=tiny_llama,
        task="toy/sentiment",
        method="peft",
        parameters={"peft_type": kind, "config": TYPES[kind].config},
    )
    with pytest.raises(ValueError, match=f"{kind} trains no task head"):
        planned_counts(spec)


@pytest.mark.parametrize("kind", CANNOT)
def test_a_type_that_cannot_train_is_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(ValueError, match="cannot train here: ") as raised:
        METHODS["peft"].parameters.model_validate({"peft_type": kind})
    assert CANNOT[kind] in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"peft_type": "LILLY"}, "has no type 'LILLY'. Did you mean 'LILY'?"),
        ({"peft_type": "CRAFT"}, "has no type 'CRAFT'"),
        ({"peft_type": "LILY", "config": {"num_b": 2}}, "unknown key 'num_b' of PEFT's LilyConfig. Did you mean 'num_B'?"),
        ({"peft_type": "LILY", "config": {"r": "four"}}, "r: got 'four'; PEFT's LilyConfig takes int"),
        ({"peft_type": "LILY", "config": {"task_type": "SEQ_CLS"}}, "task_type is not given here: it follows from the task"),
        ({"peft_type": "WAVEFT", "config": {"wavelet_family": "db99"}}, "Wavelet family db99 not supported"),
        ({"peft_type": "LORA", "config": {"init_lora_weights": "eva"}}, "computed from data before training"),
        ({"peft_type": "ADAMSS", "config": {"use_asa": True}}, "calls between steps"),
        (
            {"peft_type": "LILY", "config": {"target_modules": ["query"]}, "projections": ["q"]},
            "names the modules too",
        ),
        ({"peft_type": "LN_TUNING", "projections": ["q"]}, "LN_TUNING adapts none"),
        ({"peft_type": "LILY", "projections": ["q", "q"]}, "each projection once"),
    ],
)
def test_a_mistake_is_said_in_words(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as raised:
        METHODS["peft"].parameters.model_validate(given)
    assert message in str(raised.value)


def test_what_only_the_model_shows_is_said_in_words_too(tiny_bert: str) -> None:
    def refused(peft_type: str, **config: Any) -> str:
        parameters = {"peft_type": peft_type, "config": config}
        with pytest.raises(ValueError, match=r".") as raised:
            planned_counts(RunSpec(model=tiny_bert, task="toy/sentiment", method="peft", parameters=parameters))
        return str(raised.value)

    assert "positive integer" in refused("LILY", r=-1)
    assert "Please specify `target_modules`" in refused("LN_TUNING")
    assert "No modules were targeted" in refused("LILY", target_modules=["no_such"])


def test_norms_that_train_are_refused_over_bfloat16(tiny_llama: str) -> None:
    parameters = {"peft_type": "LN_TUNING", "config": {"target_modules": ["norm"]}}
    training: Any = {"precision": "bfloat16"}
    spec = RunSpec(model=tiny_llama, task="toy/sentiment", method="peft", parameters=parameters, training=training)
    with pytest.raises(ValueError, match="take precision: bf16-mixed or float32"):
        planned_counts(spec)


def test_a_name_in_small_letters_is_the_same_run_and_defaults_are_left_out() -> None:
    def run(**parameters: Any) -> RunSpec:
        return RunSpec(model="m", task="toy/sentiment", method="peft", parameters=parameters)

    small = run(peft_type="lily", config={"r": 4})
    assert small == run(peft_type="LILY", config={"r": 4}, projections=["q", "v"])
    assert small.parameters["config"] == {"r": 4}
    assert shown_method("peft", small.parameters) == "peft LILY"
    labels = {METHODS["peft"].label(METHODS["peft"].parameters.model_validate(one.parameters)) for one in (
        small, run(peft_type="LILY", config={"r": 8}), run(peft_type="HIRA", config={"r": 4}),
        run(peft_type="LILY", config={"r": 4}, projections=["q"]),
    )}  # fmt: skip
    assert labels == {"LILY r 4, q v", "LILY r 8, q v", "HIRA r 4, q v", "LILY r 4, q"}
