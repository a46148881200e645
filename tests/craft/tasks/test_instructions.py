"""Own instructions: rows of prompts and chats, groups that no cut separates, texts in a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer

from craft.data_settings import CustomTask, DataSettings, GenerationSettings
from craft.tasks import find_task
from craft.tasks.chats import ChatForm
from craft.tasks.files import DataError
from craft.tasks.prompts import PROMPTS, encode
from craft.tasks.splits import load_splits

PAIR = {"prompt": "question", "response": "answer"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]


def data_of(folder: Path, rows: list[dict[str, Any]], **block: Any) -> DataSettings:
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataSettings(custom={"chat": CustomTask(kind="generation", train=str(folder / "chat.jsonl"), **block)})


def test_a_chat_gives_a_row_for_each_reply_and_is_never_split(tmp_path: Path) -> None:
    chats = [turns(f"q{n}", f"a{n}", f"and {n}?", f"also {n}") for n in range(40)]
    data = data_of(tmp_path, [{"talk": one} for one in chats], messages="talk")
    splits = load_splits(find_task("custom/chat", data), data)
    parts = [splits.train, splits.search, splits.reported[""]]
    assert [len(part) for part in parts] == [66, 6, 8]
    numbers = [{int(json.loads(text)[0]["content"][1:]) for text in part["text"]} for part in parts]
    assert sum(map(len, numbers)) == len(set.union(*numbers)) == 40
    first, second = next(zip(*[iter(splits.train)] * 2, strict=False))
    assert json.loads(second["text"])[:1] == json.loads(first["text"])
    assert [first["response"][0], second["response"][:4]] == ["a", "also"]


@pytest.mark.parametrize(
    ("row", "block", "said"),
    [
        ({"question": "q", "answer": " "}, PAIR, "line 1: column 'answer' holds ' '; text is expected"),
        ({"question": "\u200b", "answer": "a"}, PAIR, "line 1: column 'question' holds .*; text is expected"),
        ({"question": "q"}, PAIR, "no column 'answer'"),
        ({"question": "q", "answer": "a"}, PAIR, "all 30 prompts are equal, and equal prompts .* no reported part"),
        ({"a": "q", "b": 3, "c": "a"}, {"prompt": ["a", "b"], "response": "c"}, "column 'b' holds 3; text is expected"),
        ({"talk": "hello"}, {"messages": "talk"}, "a chat is a list of"),
        ({"talk": [{"role": "human", "content": "q"}]}, {"messages": "talk"}, "turn 1: a turn has a role"),
        ({"talk": [{"from": "human", "value": "q"}]}, {"messages": "talk"}, "turn 1: from and value are ShareGPT's keys"),
        (
            {"talk": [{"role": "user", "content": [{"type": "image", "url": "u"}]}]},
            {"messages": "talk"},
            "turn 1: content has the part .*parts of type text alone",
        ),
        ({"talk": [*turns("q"), {"role": "assistant", "content": "a", "weight": 0.5}]}, {"messages": "talk"}, "weight is 0.5"),
        ({"talk": [{"role": "user", "content": "q", "train": True}, *turns("q", "a")]}, {"messages": "talk"}, "train is True"),
        (
            {"talk": [*turns("q"), {"role": "assistant", "content": "a", "train": False}]},
            {"messages": "talk"},
            "no reply .* marked",
        ),
        ({"talk": turns("q", "a"), "tools": "none"}, {"messages": "talk"}, "column 'tools' holds 'none'; a list is expected"),
        ({"talk": [*turns("q"), {"role": "assistant", "content": None}]}, {"messages": "talk"}, "turn 2: a turn has a role"),
        ({"talk": turns("q")}, {"messages": "talk"}, "nothing to learn"),
    ],
)
def test_a_wrong_cell_is_named_with_its_place(tmp_path: Path, row: dict[str, Any], block: dict[str, str], said: str) -> None:
    data = data_of(tmp_path, [row] * 30, **block)
    with pytest.raises(DataError, match=said):
        load_splits(find_task("custom/chat", data), data)


def test_an_instruction_may_have_an_input(tmp_path: Path, tiny_llama: str) -> None:
    rows = [{"do": "Translate.", "input": f"word {n}" if n else None, "out": f"mot {n}"} for n in range(30)]
    data = data_of(tmp_path, rows, prompt=["do", "input"], response="out")
    splits = load_splits(find_task("custom/chat", data), data)
    texts = [text for part in (splits.train, splits.search, splits.reported[""]) for text in part["text"]]
    assert sorted(json.loads(text)[0]["content"] for text in texts)[:2] == ["Translate.", "Translate.\n\nword 1"]
    form = ChatForm(AutoTokenizer.from_pretrained(tiny_llama), GenerationSettings())
    expected = PROMPTS["alpaca"].for_evaluation
    written = {form.prompt(text) for text in texts}
    assert written == {expected("Translate."), *(expected("Translate.", f"word {n}") for n in range(1, 30))}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"kind": "generation"}, "needs the columns prompt and response, or messages alone"),
        ({"kind": "generation", "prompt": "q"}, "given: prompt"),
        ({"kind": "generation", "messages": "m", **PAIR}, "given: prompt, response, messages"),
        ({"text": "t"}, "needs the columns text and label"),
        (PAIR, "kind: generation for prompt, response or messages"),
        ({"text": "t", "label": "l", "messages": "m"}, "kind: generation for"),
    ],
)
def test_columns_of_another_kind_are_refused(block: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CustomTask(train="a.csv", **block)


def test_a_record_of_a_task_without_instructions_says_nothing_of_them() -> None:
    written = CustomTask(train="a.csv", text=("t",), label="l").model_dump(mode="json")
    assert set(written) == {"train", "validation", "text", "label", "kind", "labels", "metric"}


def test_the_chat_template_writes_prompt_and_response_and_the_loss_sees_the_response(tiny_llama: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.chat_template = TEMPLATE
    form = ChatForm(tokenizer, GenerationSettings())
    prompts, responses, _ = form.texts(
        {"text": [json.dumps(turns("q", "a", "more"))], "response": ["the answer"], "extras": ["{}"]}
    )
    (text,) = encode(tokenizer, prompts, responses, max_length=None, loss="response", special=False)
    assert tokenizer.decode(text.tokens) == "<s>[user]q</s>\n[assistant]a</s>\n[user]more</s>\n[assistant]the answer</s>"
    assert tokenizer.decode(text.tokens[text.start :]) == "the answer</s>"


def test_without_a_template_questions_take_the_settings_and_chats_are_refused(tiny_llama: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    form = ChatForm(tokenizer, GenerationSettings(prompt="llm_adapters"))
    assert form.prompt(json.dumps(turns("q"))) == PROMPTS["llm_adapters"].for_evaluation("q")
    assert form.prompt(json.dumps(turns("q")), training=True) == PROMPTS["llm_adapters"].for_training("q")
    assert ChatForm(tokenizer, GenerationSettings(prompt="none")).prompt(json.dumps(turns("q"))) == "q"
    with pytest.raises(ValueError, match="has no chat template"):
        form.prompt(json.dumps(turns("q", "a", "more")))
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="refuses a chat: roles must alternate"):
        form.prompt(json.dumps(turns("q")))
