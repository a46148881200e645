"""Audits of adapters that plain PEFT wrote: PEFT's own merge is the reference; and verdicts on simulated rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, DistilBertConfig, DistilBertForSequenceClassification

import craft
from craft.audit.audit import audit_adapter
from craft.audit.changes import changes_of, check_change, write_lora
from craft.audit.folder import Data, Folder, as_trained, read_folder
from craft.audit.verdict import Answers, Audit, Size, compare_answers
from craft.models import Base
from craft.models.adapters import WEIGHTS_FILE, read_shapes
from craft.models.loading import load_model
from craft.results import MODEL_DIGEST
from craft.scoring.scorer import splits_of
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.trainer.cuts import cut_and_score
from craft.trainer.training import train_run
from tests.craft.audit.plain_folders import CONFIGS, merged, rows, saved
from tests.craft.methods.cases import marked


@pytest.mark.parametrize("name", marked(CONFIGS, ("patterns", "dora", "vera", "milora")))
def test_a_lora_of_all_directions_is_the_adapter(name: str, tiny_bert: str, tmp_path: Path) -> None:
    whole = merged(saved(tiny_bert, CONFIGS[name], tmp_path / "whole"))
    folder = read_folder(tmp_path / "whole")
    stored = load_model(Base(tiny_bert, "classification", ("0", "1")))
    changes = changes_of(folder.load("classification", ("0", "1"), 0), stored if folder.moves_base else None)
    written = write_lora(folder, changes, tmp_path / "cut")
    base = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=2)
    again = merged(peft.PeftModel.from_pretrained(base, str(written.path)))
    torch.testing.assert_close(again, whole, rtol=1e-5, atol=1e-5)


def test_zeros_fill_up_to_one_rank_and_one_scale(tiny_bert: str, tmp_path: Path) -> None:
    """vLLM scales by alpha / r, llama.cpp by alpha over the rank of each tensor."""
    saved(tiny_bert, CONFIGS["patterns"], tmp_path / "whole")
    folder = read_folder(tmp_path / "whole")
    changes = changes_of(folder.load("classification", ("0", "1"), 0))
    assert len(set(changes.ranks.values())) > 1
    two = [write_lora(folder, changes, tmp_path / name, equal_ranks=name == "filled") for name in ("ragged", "filled")]
    config = two[1].config
    assert (config["rank_pattern"], config["lora_alpha"]) == ({}, config["r"])
    ragged, filled = (load_file(each.path / WEIGHTS_FILE) for each in two)
    assert ragged.keys() == filled.keys()
    for key in filled:
        if ".lora_A." in key:
            other = key.replace(".lora_A.", ".lora_B.")
            assert len(filled[key]) == config["r"]
            assert torch.equal(filled[other] @ filled[key], ragged[other] @ ragged[key])


@pytest.mark.slow
def test_no_size_of_an_adapter_that_does_nothing_is_enough(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100, to=tmp_path / "small")
    assert all(size.difference.probability(100) > 0.9 for size in audit.sizes)
    assert (audit.helps, audit.enough) == (False, None)
    assert audit.verdict.startswith(
        "No verdict: these 40 rows do not show that the adapter's change helps by more than the 100"
    )
    assert not (tmp_path / "small").exists()


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
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "small"), adapter_name="small")
    trained = load_file(tmp_path / "whole" / WEIGHTS_FILE)["base_model.model.classifier.weight"]
    assert torch.equal(model.get_base_model().classifier.modules_to_save["small"].weight, trained)
    model.load_adapter(str(tmp_path / "whole"), "default")
    again = audit_adapter(model, Data(rows(tmp_path), label="label"), within=100)
    assert (again.score, again.parameters) == (audit.sizes[-1].score, 64)
    model.base_model.active_adapter = ["small", "default"]  # as set_adapter leaves it, of models without a head
    for to, said in ((tmp_path, "it is there already"), (None, "small, default are active, and one is audited")):
        with pytest.raises(ValueError, match=said):
            audit_adapter(model, Data(rows(tmp_path), label="label"), to=to)


@pytest.mark.slow
@pytest.mark.usefixtures("helpful")
@pytest.mark.parametrize("name", ["pissa", "milora", "olora"])
def test_an_adapter_that_takes_from_its_base(name: str, tiny_bert: str, tmp_path: Path) -> None:
    """Its sizes are of the base as it is stored, whose score it has without its change."""
    model = saved(tiny_bert, CONFIGS[name], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100, to=tmp_path / "small")
    assert audit.parameters == sum(w.numel() for n, w in model.named_parameters() if "lora_" in n)
    again = audit_adapter(tmp_path / "small", Data(rows(tmp_path), label="label"), within=100)
    assert audit.enough is not None
    assert (again.score, again.without) == (audit.enough.score, audit.without)


@pytest.mark.parametrize("name", ["vera", pytest.param("loha", marks=pytest.mark.slow)])
def test_sizes_of_any_method_have_fewer_parameters_than_it(name: str, tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS[name], tmp_path / "whole")
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"), within=100)
    assert audit.sizes
    assert all(size.parameters <= audit.parameters // 2 for size in audit.sizes)
    assert f"a size of {name.upper()} is a LoRA of the same modules" in audit.warnings


def test_the_outputs_of_a_head_of_two_layers_are_those_of_its_last(tmp_path: Path) -> None:
    config = DistilBertConfig(vocab_size=32, dim=8, n_layers=1, n_heads=2, hidden_dim=16, num_labels=3)
    lora = peft.LoraConfig(r=2, task_type="SEQ_CLS", target_modules=["q_lin"])
    peft.get_peft_model(DistilBertForSequenceClassification(config), lora).save_pretrained(tmp_path)
    shapes = read_shapes(tmp_path)
    assert "base_model.model.pre_classifier.weight" in shapes
    assert Folder(tmp_path, {}, shapes, "base").outputs == 3


@pytest.mark.slow
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
    record = {"spec": spec.model_dump(mode="json"), "counts": counts | {"head_parameters": 0}, "metrics": {}, "facts": {}}
    (tmp_path / "whole" / "run.json").write_text(json.dumps(record))
    _, cut = cut_and_score(tmp_path / "whole", "parameters:70", tmp_path / "place", score=False)
    shutil.copytree(cut.adapter, tmp_path / "cut")
    lines: list[str] = []
    audit = audit_adapter(tmp_path / "cut", Data(rows(tmp_path), label="label", labels=("0", "1")), tell=lines.append)
    js = [j for name, j in load_file(tmp_path / "cut" / WEIGHTS_FILE).items() if "craft_J" in name]
    ranks = [int(torch.linalg.matrix_rank(j - torch.eye(len(j)), atol=1e-4)) for j in js]
    by_hand = sum(min(2 * rank * len(j), j.numel()) for rank, j in zip(ranks, js, strict=True))
    assert audit.parameters == by_hand <= 70
    assert all(size.parameters <= 35 for size in audit.sizes)
    assert f"CRAFT with {by_hand} parameters" in lines[0]
    assert lines[0].endswith(f"cut from the adapter of run {spec.key}")


@pytest.mark.parametrize("precision", [pytest.param("bf16-mixed", marks=pytest.mark.slow), "bfloat16"])
def test_craft_is_audited_in_the_format_of_its_base(precision: str, tiny_bert: str, tmp_path: Path) -> None:
    """Its factors are those of weights in one format, which a folder without a record does not name."""
    training = {"train_examples": 60, "eval_examples": 30, "max_length": 24, "max_steps": 2, "precision": precision}
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method="craft", parameters={"ranks": [2, 8, 8]}, training=training)
    result = train_run(spec, tmp_path / "run")
    own = audit_adapter(result.adapter, Data())
    assert own.score == result.metrics["score"]
    (result.adapter / "run.json").unlink()
    assert audit_adapter(result.adapter, Data(rows(tmp_path), label="label", labels=("0", "1"))).parameters == own.parameters


@pytest.mark.parametrize(("kind", "query"), [("t5", "q"), ("bart", "q_proj")])
def test_an_adapter_of_a_classifier_that_reads_the_end_of_the_text_is_checked(kind: str, query: str) -> None:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    sizes |= {f"{part}_{name}": 1 for part in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")}
    ends = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=8, **ends, **sizes)
    adapter = peft.LoraConfig(r=2, target_modules=[query], init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForSequenceClassification.from_config(config), adapter).eval()
    check_change(model, model)


@pytest.mark.slow
@pytest.mark.usefixtures("helpful")
def test_cuts_are_trained_on(tiny_bert: str, tmp_path: Path) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    file = rows(tmp_path)
    for name, train in (("cut", None), ("trained", file)):
        audit_adapter(tmp_path / "whole", Data(file, train=train, label="label"), within=100, to=tmp_path / name)
    cut, trained = (load_file(tmp_path / name / WEIGHTS_FILE) for name in ("cut", "trained"))
    assert {name: weight.shape for name, weight in cut.items()} == {name: weight.shape for name, weight in trained.items()}
    unchanged = {name for name in cut if torch.equal(cut[name], trained[name])}
    assert unchanged == {name for name in cut if "classifier" in name}, "the task head stays, nothing was cut off it"


def own_adapter(base: str, folder: Path, name: str = "lora", seed: int = 0) -> RunSpec:
    """An adapter with the record of its run on 60 rows, scored on 30; returns the run."""
    saved(base, CONFIGS[name], folder)
    training = TrainingSettings(train_examples=60, eval_examples=30, max_length=24)
    spec = RunSpec(model=base, task="toy/sentiment", method="lora", training=training, seed=seed)
    fingerprint = splits_of(spec, find_task(spec.task, spec.data)).fingerprint
    record = {"spec": spec.model_dump(mode="json"), "facts": {"data_fingerprint": fingerprint}}
    (folder / "run.json").write_text(json.dumps(record))
    return spec


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "pissa"])
def test_an_adapter_of_a_sweep_is_scored_on_the_rows_that_the_sweep_reports(name: str, tiny_bert: str, tmp_path: Path) -> None:
    """The same rows from a file give the same score; rows of its training among them are a doubt."""
    spec = own_adapter(tiny_bert, tmp_path / "own", name)
    splits = splits_of(spec, find_task(spec.task, spec.data))
    names = ("negative", "positive")
    held, learnt = (
        [{"text": row["text"], "label": names[row["label"]]} for row in part] for part in (splits.reported[""], splits.train)
    )
    taught = {row["text"] for row in learnt}
    assert not any(row["text"] in taught for row in held)
    for name, rows_ in (("held", held), ("both", held + learnt[:7])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
    lines: list[str] = []
    own = audit_adapter(tmp_path / "own", Data(), tell=lines.append)
    assert lines[0] == "toy/sentiment: the reported rows of the adapter's own run"
    held_out, both = (
        audit_adapter(tmp_path / "own", Data(str(tmp_path / f"{name}.jsonl"), label="label", labels=names))
        for name in ("held", "both")
    )
    assert (own.rows, own.score, own.without) == (30, held_out.score, held_out.without)
    assert [size.score for size in own.sizes] == [size.score for size in held_out.sizes]
    assert [audit.seen for audit in (own, held_out, both)] == [0, 0, 7]
    assert "In doubt: 7 of these 37 rows were in its training" in both.verdict
    assert "doubt" not in own.verdict


def test_an_adapter_is_read_as_it_was_trained(tiny_bert: str, tmp_path: Path) -> None:
    own_adapter(tiny_bert, tmp_path / "own")
    own, plain = read_folder(tmp_path / "own"), Data(rows(tmp_path), label="label")
    assert [as_trained(own, data).max_length for data in (plain, replace(plain, max_length=99))] == [24, 99]
    with pytest.raises(ValueError, match="go with --data"):
        audit_adapter(tmp_path / "own", Data(label="label"))
    record = json.loads((tmp_path / "own" / "run.json").read_text())
    (tmp_path / "own" / "run.json").write_text(json.dumps(record | {"facts": {MODEL_DIGEST: "0" * 64}}))
    with pytest.raises(ValueError, match="Give the model that it was trained on as the base"):
        audit_adapter(tmp_path / "own", Data())
    (tmp_path / "own" / "run.json").unlink()
    with pytest.raises(ValueError, match="name the held-out rows by --data"):
        audit_adapter(tmp_path / "own", Data())


def test_a_pooler_that_the_base_lacks_is_that_of_the_run_also_in_a_lora_of_the_adapter(tiny_bert: str, tmp_path: Path) -> None:
    base = str(shutil.copytree(tiny_bert, tmp_path / "base"))
    file, labels = f"{base}/model.safetensors", ("0", "1")
    save_file({name: weight for name, weight in load_file(file).items() if "pooler" not in name}, file, {"format": "pt"})
    own_adapter(base, tmp_path / "own", seed=1)
    folder = read_folder(tmp_path / "own")
    model = folder.load("classification", labels, 0)
    written = write_lora(folder, changes_of(model), tmp_path / "cut")
    trained = load_model(Base(base, "classification", labels), seed=1)
    stored = folder.load_base("classification", labels, 0)
    poolers = [
        next(weight for name, weight in each.named_parameters() if name.endswith("pooler.dense.weight"))
        for each in (trained, stored, model, written.load("classification", labels, 0))
    ]
    assert all(torch.equal(poolers[0], pooler) for pooler in poolers)


@pytest.mark.slow
def test_the_base_has_the_revision_that_the_adapter_names(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tiny_bert, CONFIGS["pissa"], tmp_path / "whole")
    model.peft_config["default"].revision = "v1"
    model.save_pretrained(tmp_path / "whole")
    read = list[Base]()
    monkeypatch.setattr("craft.audit.folder.load_model", lambda base, seed: read.append(base) or load_model(base, seed=seed))
    audit = audit_adapter(tmp_path / "whole", Data(rows(tmp_path), label="label"))
    assert {base.revision for base in read} == {audit.folder.revision} == {"v1"}
    elsewhere = shutil.copytree(tiny_bert, tmp_path / "elsewhere")
    assert read_folder(tmp_path / "whole", str(elsewhere)).revision is None


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


@pytest.mark.slow
def test_the_smallest_of_several_sizes_is_as_often_enough_as_the_audit_says() -> None:
    """Four sizes lose a little too much: one in ten audits may call one enough. By each size's own chance one in four does."""
    random = np.random.default_rng(5)
    audits = [audit_of(random, [1.2] * 4) for _ in range(200)]
    assert np.mean([audit.enough is not None for audit in audits]) <= 0.1
    assert np.mean([any(size.difference.probability(1) >= 0.9 for size in audit.sizes) for audit in audits]) > 0.2
    for audit in audits:
        misses = np.cumsum([1 - size.difference.probability(1) for size in audit.sizes])
        assert [audit.probability(size) for size in audit.sizes] == pytest.approx(np.maximum(0, 1 - misses))


@pytest.mark.slow
def test_verdicts_are_right_as_often_as_they_say() -> None:
    """Adapters whose smaller sizes lose more."""
    random, said, came = np.random.default_rng(6), list[float](), list[bool]()
    for _ in range(250):
        losses = np.cumsum(random.exponential(random.choice([0.3, 1.0]), 4)) - 0.5
        audit = audit_of(random, np.clip(losses, -3, 5.9).tolist(), 800)
        if (size := audit.enough) is not None:
            said.append(audit.probability(size))
            came.append(losses[audit.sizes.index(size)] <= 1)
            assert f"P(within 1) {said[-1]:.2f}" in audit.verdict
    assert len(said) > 60
    assert np.mean(came) == pytest.approx(np.mean(said), abs=0.05)


def test_modules_that_keep_no_rank_are_named() -> None:
    audit = audit_of(np.random.default_rng(7), [0.0], 4000)
    ranks = {"query": 3, "key": 0, "value": 0}
    audit = replace(audit, sizes=(replace(audit.sizes[0], ranks=ranks),))
    assert audit.verdict.endswith("a LoRA of rank 3, and of rank 0 in key, value.")


def test_rows_to_decide_would_decide() -> None:
    labels, first = np.ones(200), np.ones(200)
    second = np.r_[np.zeros(1), np.ones(199)]
    gap = compare_answers(Answers("accuracy", (first, labels)), Answers("accuracy", (second, labels)))
    need = gap.rows_to_decide(1.0, 0.9)
    assert need is not None
    times = need // 200 + 1
    more = [Answers("accuracy", (np.tile(side, times), np.tile(labels, times))) for side in (first, second)]
    assert gap.probability(1.0) < 0.9 <= compare_answers(*more).probability(1.0)
