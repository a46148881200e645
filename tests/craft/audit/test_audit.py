"""Audits of adapters that plain PEFT wrote: PEFT's own merge, and simulated rows, are the references."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import craft
from craft.audit.audit import audit_adapter
from craft.audit.changes import changes_of, write_lora
from craft.audit.data import Data
from craft.audit.folder import Folder, read_folder
from craft.audit.paired import Answers, compare_answers
from craft.audit.verdict import Audit, Size
from craft.factors.low_rank import ranks_within
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from craft.models.loading import load_model
from craft.spec import RunSpec
from craft.trainer.cutting import Cut, cut_adapter

BOTH = ["query", "value"]
CONFIGS = {
    "lora": peft.LoraConfig(r=4, target_modules=BOTH),
    "rslora": peft.LoraConfig(r=4, lora_alpha=16, use_rslora=True, target_modules=BOTH),
    "patterns": peft.LoraConfig(
        r=4, target_modules=BOTH, rank_pattern={"layer.0.attention.self.query": 2}, alpha_pattern={"value": 3}
    ),
    "dora": peft.LoraConfig(r=4, use_dora=True, target_modules=BOTH),
    "loha": peft.LoHaConfig(r=2, target_modules=BOTH),
    "vera": peft.VeraConfig(r=8, target_modules=BOTH),
    "boft": peft.BOFTConfig(boft_block_size=4, target_modules=BOTH),
    "adalora": peft.AdaLoraConfig(init_r=4, target_r=2, total_step=10, target_modules=BOTH),
    "pissa": peft.LoraConfig(r=4, init_lora_weights="pissa", target_modules=BOTH),
    "olora": peft.LoraConfig(r=4, init_lora_weights="olora", target_modules=BOTH),
}


def saved(base: str, config: Any, folder: Path, whole: list[str] | None = None) -> Any:
    """An adapter with random weights, written by PEFT, and its model; `whole` names modules that it trains whole."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    config.task_type, config.modules_to_save = "SEQ_CLS", whole
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    adapted.save_pretrained(folder)
    return adapted


def merged(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.merge_and_unload().state_dict().items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_lora_of_all_directions_is_the_adapter(name: str, tiny_bert: str, tmp_path: Path) -> None:
    whole = merged(saved(tiny_bert, CONFIGS[name], tmp_path / "whole"))
    folder = read_folder(tmp_path / "whole")
    stored = load_model(tiny_bert, "classification", ("0", "1"))
    changes = changes_of(folder.load("classification", ("0", "1"), 0), stored if folder.moves_base else None)
    written = write_lora(folder, changes, changes.ranks, tmp_path / "cut")
    base = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=2)
    again = merged(peft.PeftModel.from_pretrained(base, str(written.path)))
    assert again.keys() == whole.keys()
    assert all(torch.allclose(again[key], whole[key], atol=1e-5) for key in whole)


def test_zeros_fill_up_to_one_rank_and_one_scale(tiny_bert: str, tmp_path: Path) -> None:
    """vLLM scales by alpha / r, llama.cpp by alpha over the rank of each tensor."""
    saved(tiny_bert, CONFIGS["patterns"], tmp_path / "whole")
    folder = read_folder(tmp_path / "whole")
    changes = changes_of(folder.load("classification", ("0", "1"), 0))
    ranks = ranks_within(changes.values, changes.costs, changes.parameters // 2)
    assert len(set(ranks.values())) > 1
    two = [write_lora(folder, changes, ranks, tmp_path / name, equal_ranks=name == "filled") for name in ("ragged", "filled")]
    config = two[1].config
    assert (config["rank_pattern"], config["lora_alpha"]) == ({}, config["r"])
    ragged, filled = (load_file(each.path / WEIGHTS_FILE) for each in two)
    assert ragged.keys() == filled.keys()
    for key in filled:
        if ".lora_A." in key:
            other = key.replace(".lora_A.", ".lora_B.")
            assert len(filled[key]) == config["r"]
            assert torch.equal(filled[other] @ filled[key], ragged[other] @ ragged[key])


def test_a_cut_is_peft_s_count_and_the_nearest_of_its_ranks(tiny_bert: str, tmp_path: Path) -> None:
    model = saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    deltas = {
        name: module.get_delta_weight("default").detach()
        for name, module in model.get_base_model().named_modules()
        if isinstance(module, peft.tuners.lora.Linear)
    }
    folder = read_folder(tmp_path / "whole")
    changes = changes_of(folder.load("classification", ("0", "1"), 0))
    assert changes.parameters == 6 * 4 * 64
    ranks = ranks_within(changes.values, changes.costs, changes.parameters // 2)
    written = write_lora(folder, changes, ranks, tmp_path / "cut")
    weights = load_file(written.path / WEIGHTS_FILE)
    own = {key: weight for key, weight in weights.items() if "lora_" in key}
    assert sum(weight.numel() for weight in own.values()) == sum(64 * rank for rank in ranks.values()) <= 6 * 4 * 32
    for name, rank in ranks.items():
        left = torch.linalg.svdvals(deltas[name])[rank:]
        b, a = (own.get(f"base_model.model.{name}.lora_{half}.weight", torch.zeros(32, 0)) for half in "BA")
        product = b @ a if rank else torch.zeros(32, 32)
        assert torch.linalg.norm(deltas[name] - product) == pytest.approx(float(torch.linalg.norm(left)), rel=1e-3, abs=1e-5)


def rows(folder: Path, many: int = 40) -> str:
    file = folder / "rows.csv"
    file.write_text("text,label\n" + "".join(f"row {at} is {'good' if at % 2 else 'bad'},{at % 2}\n" for at in range(many)))
    return str(file)


@pytest.fixture
def helpful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters of random weights pass as helpful, so that one of their sizes is enough."""
    monkeypatch.setattr("craft.audit.audit._helps", lambda *_: True)


def test_no_size_of_an_adapter_that_does_nothing_is_enough(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100, to=tmp_path / "small")
    assert all(size.difference.chance(100) > 0.9 for size in audit.sizes)
    assert (audit.helps, audit.enough, audit.highest_rank) == (False, None, 0)
    assert audit.verdict.startswith(
        "No verdict: these 40 rows do not show that the adapter's change helps by more than the 100"
    )
    assert not (tmp_path / "small").exists()


def test_a_control_token_in_a_held_out_text_is_refused_with_its_line(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    token = AutoTokenizer.from_pretrained(tiny_bert).sep_token
    (tmp_path / "marks.csv").write_text(f"text,label\nfine,0\nan {token} inside,1\n")
    with pytest.raises(ValueError, match=r"marks\.csv, line 3: column 'text' holds .*; the tokenizer reads it as a control"):
        audit_adapter(tmp_path / "whole", Data(str(tmp_path / "marks.csv"), label="label"))


@pytest.mark.parametrize("within", [float("nan"), float("inf"), -1, 0])
def test_points_that_are_none_are_refused_at_once(within: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 100"):
        audit_adapter(tmp_path, Data("rows.csv"), within=within)


@pytest.mark.usefixtures("helpful")
def test_an_audit_of_a_plain_folder(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100, to=tmp_path / "small")
    assert [size.parameters for size in audit.sizes] == [768, 384, 192, 64]
    assert audit.rows == 40
    assert audit.enough == audit.sizes[-1]
    assert "64 of its 1,536 parameters are enough" in audit.verdict
    assert any("above the most frequent class (50.0)" in line for line in audit.warnings)
    base = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=2)
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "small"))
    trained = load_file(tmp_path / "whole" / WEIGHTS_FILE)["base_model.model.classifier.weight"]
    assert torch.equal(model.get_base_model().classifier.modules_to_save["default"].weight, trained)
    again = audit_adapter(tmp_path / "small", Data(rows(tmp_path), label="label"), within=100)
    assert again.score == audit.sizes[-1].score


@pytest.mark.usefixtures("helpful")
@pytest.mark.parametrize("name", ["pissa", "olora"])
def test_an_adapter_that_takes_from_its_base(name: str, tiny_bert: str, tmp_path: Path) -> None:
    """Its sizes are of the base as it is stored, whose score it has without its change."""
    model = saved(tiny_bert, CONFIGS[name], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100, to=tmp_path / "small")
    assert audit.parameters == sum(w.numel() for n, w in model.named_parameters() if "lora_" in n)
    again = audit_adapter(tmp_path / "small", Data(rows(tmp_path), label="label"), within=100)
    assert audit.enough is not None
    assert (again.score, again.without) == (audit.enough.score, audit.without)


def test_what_is_more_than_a_change_of_weights_is_refused(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    forward, bias = peft.tuners.lora.Linear.forward, torch.linspace(0, 1, 32)

    def forward_and_more(layer: Any, *args: Any) -> torch.Tensor:
        return forward(layer, *args) + layer.lora_alpha["default"] * bias

    monkeypatch.setattr(peft.tuners.lora.Linear, "forward", forward_and_more)
    with pytest.raises(ValueError, match="more than a change of weights of linear layers"):
        audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))


@pytest.mark.parametrize(
    ("whole", "named"),
    [
        (["word_embeddings"], "bert.embeddings.word_embeddings"),
        (["classifier", "pooler"], "bert.pooler"),
        (["LayerNorm"], "bert.embeddings.LayerNorm, .* and 4 more"),
    ],
)
def test_modules_that_are_trained_whole_are_refused_by_name(
    whole: list[str], named: str, tiny_bert: str, tmp_path: Path
) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole", whole)
    with pytest.raises(ValueError, match=rf"trains whole modules of its base \(modules_to_save: {named}\)"):
        audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))


def test_a_head_that_modules_to_save_names_is_no_part_of_the_count(tiny_bert: str, tmp_path: Path) -> None:
    counts = []
    for name, whole in (("silent", None), ("named", ["classifier"])):
        saved(tiny_bert, CONFIGS["lora"], tmp_path / name, whole)
        counts.append(audit_adapter(tmp_path / name, Data(rows(tmp_path), label="label")).parameters)
    assert counts == [6 * 4 * 64] * 2


@pytest.mark.parametrize("name", ["vera", "loha"])
def test_sizes_of_any_method_have_fewer_parameters_than_it(name: str, tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS[name], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100)
    assert audit.sizes
    assert all(size.parameters <= audit.parameters // 2 for size in audit.sizes)
    assert f"a size of {name.upper()} is a LoRA of the same modules" in audit.warnings


@pytest.mark.usefixtures("helpful")
def test_sizes_of_craft_are_craft(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, craft.CraftConfig(ranks=("all", 8, 8), projections=("q", "v")), tmp_path / "whole")
    file = rows(tmp_path)
    data = Data(file, train=file, label="label", labels=("0", "1"))
    audit = audit_adapter(tmp_path / "whole", data, within=100, to=tmp_path / "small")
    assert audit.parameters == 2 * (3**2 + 8**2 + 8**2)
    assert all(size.parameters <= audit.parameters // share for size, share in zip(audit.sizes, (2, 4, 8, 16), strict=False))
    assert audit.enough is not None
    js = {name: j for name, j in load_file(tmp_path / "small" / WEIGHTS_FILE).items() if "craft_J" in name}
    ranks = {name: int(torch.linalg.matrix_rank(j - torch.eye(len(j)), atol=1e-4)) for name, j in js.items()}
    assert ranks == dict(audit.enough.ranks), "training on keeps the ranks"


def test_a_cut_of_this_package_has_the_parameters_that_were_left_and_says_of_what_it_is(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, craft.CraftConfig(ranks=("all", 8, 8), projections=("q", "v")), tmp_path / "whole")
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method="craft", parameters={"ranks": ["all", 8, 8]})
    counts = {"trainable_parameters": 2 * (3**2 + 8**2 + 8**2), "total_parameters": 9999, "adapter_bytes": 9999}
    record = {"spec": spec.model_dump(mode="json"), "counts": counts, "metrics": {}}
    (tmp_path / "whole" / "run.json").write_text(json.dumps(record))
    cut_adapter(tmp_path / "whole", Cut(parameters=70), tmp_path / "cut")
    lines: list[str] = []
    audit = audit_adapter(tmp_path / "cut", Data(rows(tmp_path), label="label", labels=("0", "1")), tell=lines.append)
    js = [j for name, j in load_file(tmp_path / "cut" / WEIGHTS_FILE).items() if "craft_J" in name]
    ranks = [int(torch.linalg.matrix_rank(j - torch.eye(len(j)), atol=1e-4)) for j in js]
    by_hand = sum(min(2 * rank * len(j), j.numel()) for rank, j in zip(ranks, js, strict=True))
    assert audit.parameters == by_hand <= 70
    assert all(size.parameters <= 35 for size in audit.sizes)
    assert f"CRAFT with {by_hand} parameters" in lines[0]
    assert lines[0].endswith(f"cut from the adapter of run {spec.key}")


@pytest.mark.usefixtures("helpful")
def test_cuts_are_trained_on(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    file = rows(tmp_path)
    for name, train in (("cut", None), ("trained", file)):
        audit_adapter(tmp_path / "whole", Data(file, train=train, label="label"), within=100, to=tmp_path / name)
    cut, trained = (load_file(tmp_path / name / WEIGHTS_FILE) for name in ("cut", "trained"))
    assert {name: weight.shape for name, weight in cut.items()} == {name: weight.shape for name, weight in trained.items()}
    assert all(not torch.equal(cut[name], trained[name]) for name in cut)


def test_the_chance_is_right_about_new_rows() -> None:
    """Of audits that say `within a point` with a chance from 0.9 to 0.99, about so many are right."""
    random, said, came = np.random.default_rng(3), list[float](), list[bool]()
    for _ in range(400):
        worse, better = random.uniform(0, 0.05, 2)
        labels = np.ones(400)
        change = random.choice([-1, 0, 1], 400, p=[worse, 1 - worse - better, better])
        first = np.where(change < 0, 1, np.where(change > 0, 0, 1))
        gap = compare_answers(Answers("accuracy", (first, labels)), Answers("accuracy", (first + change, labels)))
        chance = gap.chance(1.0)
        if 0.9 <= chance <= 0.99:
            said.append(chance)
            came.append(100 * (better - worse) >= -1)
    assert len(said) > 30
    assert np.mean(came) == pytest.approx(np.mean(said), abs=0.07)


def audit_of(random: np.random.Generator, losses: Sequence[float], rows: int = 400) -> Audit:
    """An audit of sizes that lose so many points on endless rows; each answers 6 % of the rows otherwise."""
    labels, sizes = np.ones(rows), list[Size]()
    for place, loss in enumerate(losses):
        change = random.choice([-1, 0, 1], rows, p=[0.03 + loss / 200, 0.94, 0.03 - loss / 200])
        sides = np.where(change < 0, 1, np.where(change > 0, 0, 1))
        gap = compare_answers(Answers("accuracy", (sides, labels)), Answers("accuracy", (sides + change, labels)))
        sizes.append(Size(800 >> place, {"query": 1}, 80.0, gap))
    whole = Folder(Path("whole"), {"peft_type": "LORA"}, {}, "base")
    return Audit(whole, "accuracy", rows, 1600, 80.0, 50.0, tuple(sizes), 1.0, 0.9, False, {}, ())


def test_the_smallest_of_several_sizes_is_as_often_enough_as_the_audit_says() -> None:
    """Four sizes lose a little too much: one in ten audits may call one enough. By each size's own chance one in four does."""
    random = np.random.default_rng(5)
    audits = [audit_of(random, [1.2] * 4) for _ in range(200)]
    assert np.mean([audit.enough is not None for audit in audits]) <= 0.1
    assert np.mean([any(size.difference.chance(1) >= 0.9 for size in audit.sizes) for audit in audits]) > 0.2
    for audit in audits:
        misses = np.cumsum([1 - size.difference.chance(1) for size in audit.sizes])
        assert [audit.chance(size) for size in audit.sizes] == pytest.approx(np.maximum(0, 1 - misses))


def test_verdicts_are_right_as_often_as_they_say() -> None:
    """Adapters whose smaller sizes lose more."""
    random, said, came = np.random.default_rng(6), list[float](), list[bool]()
    for _ in range(250):
        losses = np.cumsum(random.exponential(random.choice([0.3, 1.0]), 4)) - 0.5
        audit = audit_of(random, np.clip(losses, -3, 5.9).tolist(), 800)
        if (size := audit.enough) is not None:
            said.append(audit.chance(size))
            came.append(losses[audit.sizes.index(size)] <= 1)
            assert f"P(within 1) {said[-1]:.2f}" in audit.verdict
    assert len(said) > 60
    assert np.mean(came) == pytest.approx(np.mean(said), abs=0.05)


def test_rows_to_decide_would_decide() -> None:
    labels, first = np.ones(200), np.ones(200)
    second = np.r_[np.zeros(1), np.ones(199)]
    gap = compare_answers(Answers("accuracy", (first, labels)), Answers("accuracy", (second, labels)))
    need = gap.rows_to_decide(1.0, 0.9)
    assert need is not None
    times = need // 200 + 1
    more = [Answers("accuracy", (np.tile(side, times), np.tile(labels, times))) for side in (first, second)]
    assert gap.chance(1.0) < 0.9 <= compare_answers(*more).chance(1.0)


def _remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _damage(folder: Path) -> None:
    file = folder / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:200])


def _pickle(folder: Path) -> None:
    (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin")


def _config(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def _rename(part: str, to: str) -> Any:
    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS_FILE)
        save_file({name.replace(part, to): weight for name, weight in weights.items()}, folder / WEIGHTS_FILE)

    return change


def _without_head(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    save_file({name: weight for name, weight in weights.items() if "classifier" not in name}, folder / WEIGHTS_FILE)


def _not_a_number(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    next(weight for name, weight in weights.items() if "lora_B" in name)[0] = torch.nan
    save_file(weights, folder / WEIGHTS_FILE)


def _merged(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    (folder / WEIGHTS_FILE).rename(folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


def _nested(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "inner")
    for file in [*folder.iterdir()]:
        file.unlink()
    shutil.move(folder.parent / "inner", folder / "checkpoint-9")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_merged, "it is a whole model"),
        (_nested, "adapters are in checkpoint-9"),
        (_remove(WEIGHTS_FILE), "copy it from where the adapter was trained"),
        (_pickle, "its weights are pickled"),
        (_damage, "is damaged"),
        (_without_head, "holds no task head"),
        (_config(base_model_name_or_path=None), "give it as --base"),
        (_config(base_model_name_or_path="./nowhere"), "does not exist"),
        (_config(bias="all"), "trains biases too"),
        (_config(lora_bias=True), "trains biases too"),
        (_config(task_type="TOKEN_CLS"), "is for TOKEN_CLS"),
        (_config(layer_replication=[[0, 2], [1, 3]]), "repeats layers"),
        (_not_a_number, "are no numbers"),
        (_config(peft_type="PROMPT_TUNING"), "puts vectors before the text"),
        (_config(peft_type="NEW"), "no configuration of PEFT"),
        (_config(r=5), "does not fit"),
        (_config(target_modules=["query", "value", "key"]), "has no weights for 6 parts"),
        (_config(target_modules=["query"]), "has 6 weights for modules that .* does not name: bert.encoder.layer.0.*value"),
        (_config(r="8"), 'r is "8"'),
        (_config(r=None), "r is null"),
        (_config(r=10**8), "no weight in .* is so large"),
        (_config(lora_alpha=1e308), "not a number up to"),
        (_config(rank_pattern={"query": "4"}), "not a number for each pattern"),
        (_config(target_modules="(["), "is no regular expression"),
        (_config(target_modules=r"(\w+\.?)+!"), "take over 0.3 s"),
        (_config(rank_pattern={r"(\w+\.?)+!": 4}), "take over 0.3 s"),
        (_config(layers_to_transform=[0], layers_pattern=r"(\w+\.?)+!"), "take over 0.3 s"),
        (lambda folder: (folder / CONFIG_FILE).write_text("[" * 100_000), "maximum recursion depth"),
        (lambda folder: os.truncate(folder / CONFIG_FILE, 200 * 2**30), "it has 200"),
        (_rename("lora_A.", "lora_A.sft."), "names of a training state and not PEFT's: they hold `sft`"),
        (_rename("base_model.", "module.base_model."), "they hold `module`"),
        (_rename("model.bert", "model._orig_mod.bert"), "they hold `_orig_mod`"),
        (_rename("classifier.", "classifier.modules_to_save.default."), "they hold `modules_to_save`"),
    ],
)
def test_folders_that_cannot_be_audited_are_refused_in_words(
    change: Any, said: str, tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("craft.models.adapters.PATTERN_SECONDS", 0.3)
    saved(tiny_bert, peft.LoraConfig(r=4, target_modules=BOTH), tmp_path / "whole")
    change(tmp_path / "whole")
    with pytest.raises(ValueError, match=said):
        audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))


def test_classes_in_another_order_are_noticed(tiny_bert: str, tmp_path: Path) -> None:
    model = saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole").eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    texts = [f"{word} {at}" for at in range(20) for word in ("good", "bad")]
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    gap = logits[:, 1] - logits[:, 0]
    weights = load_file(tmp_path / "whole" / WEIGHTS_FILE)
    weights["base_model.model.classifier.bias"][0] += gap.median()
    save_file(weights, tmp_path / "whole" / WEIGHTS_FILE)
    file = tmp_path / "rows.csv"
    lines = [f"{text},{'no' if other else 'yes'}" for text, other in zip(texts, gap > gap.median(), strict=True)]
    file.write_text("\n".join(["text,label", *lines]) + "\n")
    with pytest.raises(ValueError, match="with `yes no` it is in 100 %"):
        audit_adapter(tmp_path / "whole", Data(str(file), label="label"))
    assert audit_adapter(tmp_path / "whole", Data(str(file), label="label", labels=("yes", "no"))).score == 100
