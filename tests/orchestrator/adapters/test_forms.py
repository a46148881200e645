"""What an adapter becomes: merged weights with every kind of head, a LoRA, a server's answers, and a folder with a card."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaModel

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models.files import MINILM
from craft.models.loading import load_tokenizer
from craft.spec import RunSpec
from craft.tasks.prompts import PROMPTS
from craft.trainer.training import train_run
from orchestrator.adapters.merging import merged_model, write_as_lora, write_merged
from orchestrator.adapters.model_card import Taken, loading, model_card, peft_config, served_by
from orchestrator.plan.trial import PlannedTrial, TrialResult
from orchestrator.record.state import Entry
from orchestrator.results.summary import summarize_entries
from orchestrator.serving import Answerer
from tests.craft.conftest import make_tiny
from tests.craft.methods.cases import QUICK, SUBJECTS
from tests.golden import check_golden

UNMERGED = dict.fromkeys(
    ("lotr", "superlora", "loretta", "houlsby", "pfeiffer", "adapterdrop"), "not merged into the base weights"
) | {"peft LILY": "not supported for Lily"}
SHORT = {"train_examples": 16, "eval_examples": 8, "max_steps": 1, "batch_size": 8, "max_length": 16}
"""Settings of a training whose scores do not matter."""
TOKENS = torch.arange(1, 13).view(2, 6)
HEADS = ("roberta", "distilbert")
"""A head of two layers in one module, and of two modules."""
PAIRS = [
    pytest.param(name, head, marks=() if name in QUICK else pytest.mark.slow)
    for name, case in SUBJECTS.items()
    for head in HEADS
    if not case.words and (head == HEADS[0] or " " not in name)
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
    config = {"r": 2, "target_modules": ["q_proj"], "layer_replication": [[0, 2], [1, 3]]}
    parameters = {"peft_type": "LORA", "config": config}
    spec = RunSpec(model=base, task="toy/sentiment", method="peft", parameters=parameters, training=SHORT)
    adapter = train_run(spec, tmp_path / "run").adapter
    with pytest.raises(ValueError, match=r"method peft LORA cannot be merged here: .*take the adapter without --as merged"):
        write_merged(adapter, tmp_path / "merged")


def test_craft_is_written_as_a_lora_by_its_own_factors(tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module has the rank r2, and all layers of a projection the same B = s U2: no SVD finds these again."""
    training = SHORT | {"max_steps": 2, "learning_rate": 0.1}
    parameters = {"ranks": ["all", 8, 4], "projections": ["q", "up"]}
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method="craft", parameters=parameters, training=training)
    adapter = train_run(spec, tmp_path / "run").adapter
    monkeypatch.setattr(torch.linalg, "svd", lambda *_, **__: pytest.fail("an SVD of a change that is a product already"))
    write_as_lora(adapter, tmp_path / "lora")
    weights = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    for word in ("query", "intermediate"):
        (first, *others) = [weight for name, weight in weights.items() if "lora_B" in name and word in name]
        assert first.shape[1] == 8
        assert all(torch.equal(first, other) for other in others)
    own, written = ({path.name for path in folder.iterdir()} for folder in (adapter, tmp_path / "lora"))
    assert own - {"manifest.json"} <= written


@pytest.mark.parametrize(
    ("method", "precision"), [("pissa", "float32"), ("olora", "float32"), ("milora", "float32"), ("pissa", "bfloat16")]
)
def test_an_adapter_that_takes_its_start_out_of_the_base_is_written_as_a_lora_of_twice_its_rank(
    method: str, precision: str, tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = SHORT | {"precision": precision}
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method=method, parameters={"rank": 2}, training=training)
    adapter = train_run(spec, tmp_path / "run").adapter
    if precision == "bfloat16":
        monkeypatch.setattr("orchestrator.adapters.merging.TOLERANCE", 0)
        with pytest.raises(ValueError, match="because its start was rounded over a bfloat16 base"):
            write_as_lora(adapter, tmp_path / "refused")
        monkeypatch.setattr("orchestrator.adapters.merging.TOLERANCE", 0.02)
    write_as_lora(adapter, tmp_path / "lora")
    assert (peft_config(tmp_path / "lora") or {})["r"] <= 4


SINGLE, PAIR = "toy/sentiment", "toy/paraphrase"


@pytest.fixture(scope="module")
def served(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answerer]:
    folder = tmp_path_factory.mktemp("served")
    specs = {task: RunSpec(model=tiny_bert, task=task, method="head", training=SHORT) for task in (SINGLE, PAIR)}
    return {task: Answerer(train_run(spec, folder / spec.key).adapter) for task, spec in specs.items()}


@pytest.mark.parametrize(
    ("task", "rows", "said"),
    [
        (PAIR, [{"text": "a"}], "columns text; the adapter reads text and text_pair"),
        (PAIR, [{"text": "a", "text_pair": "b"}, {"text": "a"}], "row 2: text_pair is nan; a text is expected"),
        (PAIR, [{"text": None, "text_pair": "b"}], "row 1: text is None; a text is expected"),
        (SINGLE, [{"text": "a", "text_pair": "b"}], "columns text, text_pair; the adapter reads text"),
        (SINGLE, [{"text": "a"}, {"text": 5}], "row 2: text is 5; a text is expected"),
        (SINGLE, [{"text": "a"}, {"text": " "}], "row 2: text is ' '; a text is expected"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(
    served: dict[str, Answerer], task: str, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        served[task].predict(rows)


def test_what_fits_is_answered(served: dict[str, Answerer]) -> None:
    assert len(served[PAIR].predict([{"text": "a", "text_pair": "b"}] * 2)) == 2
    assert len(served[SINGLE].predict([{"text": "a", "id": 7}])) == 1


CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 12, "rank_pattern": {}}


def record(model: str = "org/base", kind: str = "generation") -> dict[str, Any]:
    return {"kind": kind, "spec": RunSpec(model=model, task="toy/sentiment", method="lora").model_dump(mode="json")}


ALL = ["vllm", "text-generation-launcher", "python"]


@pytest.mark.parametrize(
    ("change", "programs"),
    [
        ({}, ALL),
        ({"rank_pattern": {"model.layers.0.self_attn.q_proj": 2}}, ["vllm"]),
        ({"use_rslora": True}, ["vllm", "text-generation-launcher"]),
        ({"use_dora": True}, []),
        ({"modules_to_save": ["lm_head"]}, []),
        ({"peft_type": "VERA"}, []),
    ],
)
def test_a_command_for_each_server_that_computes_the_same(change: dict[str, Any], programs: list[str]) -> None:
    commands = served_by(record(), CONFIG | change, "my folder")
    assert [command.split()[0] for command in commands] == programs
    assert all("'my folder'" in command or "='my folder'" in command for command in commands)
    assert not commands or "--max-lora-rank 16 " in commands[0]


def test_what_is_no_language_model_has_no_server_nor_has_an_adapter_of_a_gguf_base_but_a_merged_model_has() -> None:
    gguf = record("models/x-q4.gguf")
    assert served_by(record(kind="classification"), CONFIG) == served_by(gguf, CONFIG) == []
    for trained in (record(), gguf):
        assert [command.split()[0] for command in served_by(trained, None, merged=True)] == ALL


def test_a_model_is_asked_in_the_form_in_which_it_was_trained() -> None:
    code = loading(record() | {"facts": {"prompt_form": "alpaca"}}, "craft")
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert PROMPTS["alpaca"].for_evaluation("a question") in texts


RUN = RunSpec(
    model="sentence-transformers/all-MiniLM-L6-v2",
    task="toy/paraphrase",
    method="craft",
    parameters={"ranks": ["all", 8, 8], "projections": ["q", "v"]},
    training={"learning_rate": 1e-3},
    seed=2,
)
CONTENT: dict[str, Any] = {"spec": RUN.model_dump(mode="json"), "kind": "classification", "labels": ["no", "yes"]}
CONTENT |= {"counts": {"trainable_parameters": 328.0}, "metrics": {"score": 81.25}}
CONTENT |= {"facts": {"device": "cpu"}, "notes": ["micro-batches of 4"]}


def card_of(content: dict[str, Any], sweep: str = "demo", picked: str = "Picked: the best.", **more: Any) -> str:
    trial = PlannedTrial(RUN, "c0ffee0000", "CRAFT 8, q v")
    result = TrialResult(trial.key, "finished", CONTENT["metrics"], CONTENT["counts"], facts=CONTENT["facts"])
    entry = Entry(trial.trial, result)
    (summary,) = summarize_entries([entry])
    return model_card(Taken(sweep, summary, entry, (picked,)), content, **more)


def test_the_card_has_the_scores_and_loads_the_adapter() -> None:
    card, own = (ModelCard(card_of(CONTENT, config=config)) for config in ({"peft_type": "CRAFT"}, None))
    assert [(row.dataset_type, row.metric_value) for row in card.data.eval_results] == [("toy/paraphrase", 81.25)]
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    check_golden("card.txt", card.content)
    without_peft = re.sub(r"(?s)import craft  # .*?```python\n", "", card.content)
    assert own.content == without_peft != card.content, "PEFT cannot load it, the project can"


def test_hostile_names_are_text() -> None:
    evil = "<script>alert(1)</script> | `x` [l](http://e) \n# head\n---\na: !!python/object b"
    data = CONTENT["spec"]["data"] | {"custom": {evil: {"text": ["a"]}}}
    spec = CONTENT["spec"] | {
        "model": evil,
        "task": f"custom/{evil}",
        "data": data,
        "method": "lora",
        "parameters": {"rank": evil},
    }
    content = CONTENT | {"spec": spec, "labels": [evil, "b"], "facts": {"device": evil}, "notes": [evil]}
    matter, _, body = card_of(content, evil, evil).removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(matter).get("base_model") in (None, evil)
    assert "<script" not in re.sub(r"`[^`]*`", "", body), "outside of code"
    assert [line for line in body.splitlines() if line.startswith("# ")] == [body.strip().splitlines()[0]]


def test_the_card_of_a_gguf_base_names_its_file() -> None:
    spec = CONTENT["spec"] | {"model": "models/tiny Q4.gguf"}
    card = card_of(CONTENT | {"spec": spec, "facts": {"model_sha256": "ab" * 32}})
    assert "base_model" not in card.split("---")[1]  # a path is no hub id
    assert "models/tiny" not in card
    assert f"It is a GGUF file, SHA-256 `{'ab' * 32}`, and its weights are dequantized" in card
