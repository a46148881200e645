"""The card that a trial's adapter gets before it goes to the tracking store."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from craft.spec import RunSpec
from craft.tasks.prompts import PROMPTS
from orchestrator.adapters.model_card import Taken, loading, model_card, served_by
from orchestrator.plan.trial import PlannedTrial, TrialResult
from orchestrator.record.state import Entry
from orchestrator.results.summary import summarize_entries
from tests.golden import check_golden

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 12,
    "lora_alpha": 24,
    "lora_dropout": 0.05,
    "target_modules": ["model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"],
    "init_lora_weights": True,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
}


def record(kind: str = "generation", **training: Any) -> dict[str, Any]:
    settings = {"learning_rate": 2e-4, "batch_size": 4, "gradient_accumulation": 2, "epochs": 2, "precision": "bfloat16"}
    settings |= {"head_learning_rate": None, "schedule": "constant", "warmup_ratio": 0.1, "max_length": 512}
    run = RunSpec(model="org/base", task="toy/sentiment", method="lora", training=settings | training, seed=7)
    return {"kind": kind, "spec": run.model_dump(mode="json")}


@pytest.mark.parametrize(
    ("change", "programs"),
    [
        ({}, ["vllm", "text-generation-launcher", "python"]),
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


def test_what_is_no_language_model_has_no_server_nor_has_an_adapter_of_a_gguf_base() -> None:
    assert served_by(record("classification"), CONFIG) == []
    gguf = record()
    gguf["spec"]["model"] = "models/x-q4.gguf"
    assert served_by(gguf, CONFIG) == []
    assert served_by(gguf, None, merged=True)


def test_a_model_is_asked_in_the_form_in_which_it_was_trained() -> None:
    code = loading(record() | {"facts": {"prompt_form": "alpaca"}}, "craft", pair=False)
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert PROMPTS["alpaca"].for_evaluation("a question") in texts


def test_a_merged_model_is_served_as_it_is() -> None:
    assert [command.split()[0] for command in served_by(record(), None, merged=True)] == [
        "vllm",
        "text-generation-launcher",
        "python",
    ]


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
    return model_card(Taken(sweep, summary, entry, (picked,)), content, **{"pair": True} | more)


@pytest.mark.parametrize("by_peft", [True, False])
def test_the_card_has_the_scores_and_loads_the_adapter(by_peft: bool) -> None:
    card = ModelCard(card_of(CONTENT, config={"peft_type": "CRAFT"} if by_peft else None))
    assert [(row.dataset_type, row.metric_value) for row in card.data.eval_results] == [("toy/paraphrase", 81.25)]
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    check_golden(f"card/{'peft' if by_peft else 'own'}.txt", card.content)


def test_hostile_names_are_text() -> None:
    evil = "<script>alert(1)</script> | `x` [l](http://e) \n# head\n---\na: !!python/object b"
    spec = CONTENT["spec"] | {"model": evil, "task": evil, "method": "lora", "parameters": {"rank": evil}}
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
