"""Own instructions and chats: what is read and refused of files, and how a model reads them in its own template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    DebertaV2Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    RobertaTokenizer,
    T5Tokenizer,
)

from craft.settings import CustomTask, DataSettings, GenerationSettings
from craft.tasks import find_task
from craft.tasks.chats import ChatForm, control_tokens, to_dataset
from craft.tasks.custom import check_texts, usable_rows
from craft.tasks.files import DataError
from craft.tasks.prompts import PROMPTS
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


def prompt(form: ChatForm, *said: str, text: str | None = None) -> str:
    rows = {"text": [text or json.dumps(turns(*said))], "response": ["a"], "extras": ["{}"]}
    return form.texts(rows).asked[0]


def test_a_chat_gives_a_row_for_each_reply_and_is_never_split(tmp_path: Path) -> None:
    chats = [turns(f"q{n}", f"a{n}", f"and {n}?", f"also {n}") for n in range(40)]
    chats[7][1] |= {"tool_calls": [CALL]}
    data = data_of(tmp_path, [{"talk": one} for one in chats], messages="talk")
    splits = load_splits(find_task("custom/chat", data), data)
    parts = [splits.train, splits.search, splits.reported[""]]
    assert [len(part) for part in parts] == [66, 6, 8]
    numbers = [{int(json.loads(text)[0]["content"][1:]) for text in part["text"]} for part in parts]
    assert sum(map(len, numbers)) == len(set.union(*numbers)) == 40
    first, second = next(zip(*[iter(splits.train)] * 2, strict=False))
    assert json.loads(second["text"])[:1] == json.loads(first["text"])
    assert [first["response"][0], second["response"][:4]] == ["a", "also"]
    extras = [row for part in parts for row in part["extras"] if json.loads(row)["reply"]]
    assert [json.loads(row)["reply"] for row in extras] == [{"tool_calls": [CALL]}]


IMAGE = {"role": "user", "content": [{"type": "image", "url": "u"}]}


def reply(content: str | None = "a", **keys: Any) -> list[dict[str, Any]]:
    return [*turns("q"), {"role": "assistant", "content": content, **keys}]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "q", "answer": " "}, "line 1: column 'answer' holds ' '; text is expected"),
        ({"question": "q"}, "no column 'answer'"),
        ({"question": "q", "answer": "a"}, "all 30 prompts are equal, and equal prompts .* no reported part"),
        ({"question": "q", "more": 3, "answer": "a"}, "column 'more' holds 3; text is expected"),
        ({"talk": "hello"}, "a chat is a list of"),
        ({"talk": [{"role": "human", "content": "q"}]}, "turn 1: a turn has a role"),
        ({"talk": [{"from": "human", "value": "q"}]}, "turn 1: from and value are ShareGPT's keys"),
        ({"talk": [IMAGE]}, "turn 1: content has the part .*parts of type text alone"),
        ({"talk": reply(weight=0.5)}, "weight is 0.5"),
        ({"talk": [turns("q")[0] | {"train": True}, *reply()]}, "train is True"),
        ({"talk": reply(train=False)}, "no reply .* marked"),
        ({"talk": reply(), "tools": "none"}, "column 'tools' holds 'none'; a list is expected"),
        ({"talk": reply(None)}, "turn 2: a turn has a role"),
        ({"talk": turns("q")}, "nothing to learn"),
        ({"talk": reply("\ud83d")}, "line 1: column 'talk': holds half a surrogate pair"),
    ],
)
def test_a_wrong_cell_is_named_with_its_place(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    block = {"messages": "talk"} if "talk" in row else PAIR | ({"prompt": ["question", "more"]} if "more" in row else {})
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
    written = {prompt(form, text=text) for text in texts}
    assert written == {expected("Translate."), *(expected("Translate.", f"word {n}") for n in range(1, 30))}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"kind": "generation"}, "needs the columns prompt and response, or messages alone"),
        ({"kind": "generation", "prompt": "q"}, "given: prompt"),
        ({"kind": "generation", "messages": "m", **PAIR}, "given: prompt, response, messages"),
        ({"text": "t"}, "needs the columns text and label"),
        (PAIR, "kind: generation for prompt, response or messages"),
        ({"kind": "generation", "prompt": "a", "response": "a"}, "'a' is named twice"),
        ({"text": ["t", "l"], "label": "l"}, "'l' is named twice"),
    ],
)
def test_columns_of_another_kind_are_refused(block: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CustomTask(train="a.csv", **block)


def test_without_a_template_questions_take_the_settings(tiny_llama: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    form = ChatForm(tokenizer, GenerationSettings(prompt="llm_adapters"))
    texts = form.texts({"text": [json.dumps(turns("q"))], "response": ["a"], "extras": ["{}"]})
    assert texts.asked == [PROMPTS["llm_adapters"].for_evaluation("q")]
    assert texts.contexts == [PROMPTS["llm_adapters"].for_training("q")]
    assert prompt(ChatForm(tokenizer, GenerationSettings(prompt="none")), "q") == "q"


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
AS_TEXT = CALL | {"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOL_TEMPLATE = """{% if tools %}[tools]{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]\
{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
{% for call in m.tool_calls %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}\
{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}<end>
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
AS_JSON = TOOL_TEMPLATE.replace("call.function.arguments | tojson", "'' + call.function.arguments")
OPEN_THOUGHT = TEMPLATE.replace("[assistant]{%", "[assistant]<think>\n{%")
STRIPS = OPEN_THOUGHT.replace("m.content", "m.content.split('</think>')[-1]")
EMPTY_THOUGHT = TEMPLATE.replace(
    "{{ m.content }}", "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
)
SKIPS = TEMPLATE.replace("in messages %}", "in messages if m.role != 'tool' %}")
DEFINED = AS_JSON.replace("{{ m.content }}", "{% if m.content is defined %}<text>{{ m.content }}{% endif %}")
NEEDED = TOOL_TEMPLATE.replace("{{ m.content }}", "{{ '' + m.content }}")
CHANGES = TEMPLATE.replace("[{{ m.role }}]", "[{{ m.role }}{{ messages | length }}]")
USED = [*turns("q"), {"role": "assistant", "content": None, "tool_calls": [CALL]}]
TALK = [*USED, {"role": "tool", "content": "cold", "tool_call_id": "c1"}, {"role": "assistant", "content": "Cold."}]


@pytest.fixture
def form(tiny_llama: str) -> Callable[..., ChatForm]:
    def make(template: str | None, **settings: Any) -> ChatForm:
        tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
        tokenizer.chat_template = template
        return ChatForm(tokenizer, GenerationSettings(**settings))

    return make


def taught(form: ChatForm, folder: Path, row: dict[str, Any]) -> list[tuple[str, str]]:
    data = data_of(folder, [row] * 2, messages="talk").custom["chat"]
    check_texts(data, form.tokenizer, form.settings)
    split = to_dataset(usable_rows(data, data.train), data)
    return list(zip(*form.texts(split[: len(split) // 2])[:2], strict=True))


CALLED = '<call>weather {"city": "Oslo"}</call><end>'
ASKED, USER_TURN = "<s>[user]q</s>\n[assistant]", "[user]q<end>\n[assistant]"
BETWEEN, THOUGHT = "<s>[user]q</s>\n[tool]cold</s>\n[assistant]", "<think>so</think>a<end>"
OFFERED, SAID = f"[tools]{json.dumps(TOOLS)}{USER_TURN}", [{"type": "text", "text": "q"}]
USE = {"role": "tool", "content": "cold", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("template", "talk", "more", "pairs"),
    [
        (TOOL_TEMPLATE, USED, {}, [(USER_TURN, CALLED)]),
        (TOOL_TEMPLATE, reply("", tool_calls=[AS_TEXT]), {}, [(None, CALLED)]),
        (DEFINED, reply("", tool_calls=[AS_TEXT]), {}, [(None, CALLED)]),
        (NEEDED, USED, {}, [(None, CALLED)]),
        (AS_JSON, reply("", tool_calls=[AS_TEXT]), {}, [(None, CALLED)]),
        (TOOL_TEMPLATE, TALK, {}, [(None, CALLED), (f"{USER_TURN}{CALLED}\n[tool]cold(c1)<end>\n[assistant]", "Cold.<end>")]),
        (TOOL_TEMPLATE, reply(), {"tools": TOOLS}, [(OFFERED, "a<end>")]),
        (TOOL_TEMPLATE, reply(), {"tools": json.dumps(TOOLS)}, [(OFFERED, "a<end>")]),
        (TEMPLATE, [*turns("q"), USE | {"name": "w"}, *reply()[1:]], {}, [(BETWEEN, "a</s>")]),
        (TOOL_TEMPLATE, reply(reasoning_content="so"), {}, [(None, THOUGHT)]),
        (TOOL_TEMPLATE, [*reply(reasoning_content="so"), *reply("b")], {}, [(None, THOUGHT), (None, "b<end>")]),
        (TEMPLATE, [{"role": "user", "content": SAID}, *reply()[1:]], {}, [(ASKED, "a</s>")]),
        (TEMPLATE, [*reply("no", weight=0), *reply("yes", weight=1)], {}, [(f"{ASKED}no</s>\n{ASKED[3:]}", "yes</s>")]),
        (TEMPLATE, [*reply("no", train=False), *reply("yes")], {}, [(None, "yes</s>")]),
        (TEMPLATE, [*reply("no", loss=0), *reply("yes", refusal=None)], {}, [(None, "yes</s>")]),
        (TEMPLATE, reply(), {"tools": "[]", "documents": None}, [(None, "a</s>")]),
        (OPEN_THOUGHT, reply(), {}, [(ASKED, "a</s>")]),
        (OPEN_THOUGHT, reply("<tag>"), {}, [(ASKED, "<tag></s>")]),
        (OPEN_THOUGHT, reply("<think>\nso</think>a"), {}, [(f"{ASKED}<think>\n", "so</think>a</s>")]),
        (EMPTY_THOUGHT, reply(), {}, [(ASKED, "<think>\n\n</think>\n\na</s>")]),
    ],
)
def test_the_template_is_given_all_of_a_chat(
    form: Callable[..., ChatForm], tmp_path: Path, template: str, talk: Any, more: Any, pairs: list[tuple[str | None, str]]
) -> None:
    for (prompt, response), wanted in zip(taught(form(template), tmp_path, {"talk": talk, **more}), pairs, strict=True):
        assert (wanted[0] and prompt, response) == wanted


@pytest.mark.parametrize(
    ("template", "row", "said"),
    [
        (TEMPLATE, {"talk": reply("", tool_calls=[CALL])}, "leaves out 'tool_calls' of turn 2"),
        (TEMPLATE, {"talk": reply(), "tools": TOOLS}, "leaves out 'tools'"),
        (TEMPLATE, {"talk": reply(reasoning_content="so")}, "leaves out a part of this reply's reasoning_content"),
        (TEMPLATE, {"talk": reply(name="Ann")}, "leaves out 'name' of turn 2"),
        (STRIPS, {"talk": reply("<think>so</think>a")}, "leaves out a part of this reply's content"),
        (SKIPS, {"talk": [TALK[0], {"role": "tool", "content": "cold"}, TALK[-1]]}, r"leaves out turn 2 \(role tool\)"),
        (CHANGES, {"talk": reply()}, "writes the turns before this reply otherwise"),
        (TEMPLATE, {"talk": reply("an </s> inside")}, "holds '</s>'"),
        (TEMPLATE, {"talk": reply(), "tools": [{"name": "<s>"}]}, "holds '<s>'"),
        ("{{ raise_exception('roles must alternate') }}", {"talk": reply()}, "refuses a chat: roles must alternate"),
        ("{{ messages[0].content + 1 }}", {"talk": reply()}, "refuses a chat: can only concatenate"),
        (None, {"talk": reply("", tool_calls=[CALL])}, "no chat template"),
        (None, {"talk": reply(), "tools": TOOLS}, "no chat template"),
        (None, {"talk": [{"role": "system", "content": "s"}, *reply()]}, "no chat template"),
        (None, {"talk": turns("q", "a", "more", "b")}, "no chat template"),
    ],
)  # fmt: skip
def test_what_a_model_would_not_read_is_refused_with_its_line(
    form: Callable[..., ChatForm], tmp_path: Path, template: str | None, row: dict[str, Any], said: str
) -> None:
    plain = {"talk": turns("q", "a")}
    rows = [plain, row] if template and template.startswith(("{{ bos", "{% if")) and template != CHANGES else [row]
    data = data_of(tmp_path, rows, messages="talk").custom["chat"]
    made = form(template)
    with pytest.raises(DataError, match=rf"chat.jsonl, line {len(rows)}: .*{said}"):
        check_texts(data, made.tokenizer, made.settings)


@pytest.mark.parametrize("name", ["chat.parquet", "CHAT.PARQUET", "saved"])
def test_chats_of_arrow_have_no_nulls_of_their_neighbours(
    form: Callable[..., ChatForm], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"type": "function", "function": {"name": "time", "arguments": {"zone": "CET"}}}
    table = pyarrow.table({"talk": [USED, reply("", tool_calls=[other])]})
    pyarrow.parquet.write_table(table, tmp_path / name)
    train: Any = str(tmp_path / name)
    if name == "saved":
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        datasets.Dataset.from_parquet(train).save_to_disk(str(tmp_path / "set"))
        train = {"path": str(tmp_path / "set")}
    task = CustomTask(kind="generation", train=train, messages="talk")
    split = to_dataset(usable_rows(task, task.train), task)
    assert form(TOOL_TEMPLATE).texts(split[:]).responses == [
        '<call>weather {"city": "Oslo"}</call><end>',
        '<call>time {"zone": "CET"}</call><end>',
    ]


@pytest.mark.parametrize("expression", ["strftime_now('%d %b %Y')", "date_string"])
def test_the_day_is_the_settings(form: Callable[..., ChatForm], expression: str) -> None:
    template = f"[{{{{ {expression} }}}}]" + TEMPLATE
    written = [prompt(form(template, **day), "q") for day in ({}, {"date": "2025-01-31"})]
    assert [text[:13] for text in written] == ["[26 Jul 2024]", "[31 Jan 2025]"]
    with pytest.raises(ValueError, match="cannot decide"):
        prompt(form("{{ strftime_now(messages[0].content) }}"), "q")


def test_a_control_token_in_a_text_is_refused(form: Callable[..., ChatForm], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nfine,a\nan </s> inside,b\nand </s>,a\n")
    data = DataSettings(custom={"t": CustomTask(train=str(tmp_path / "t.csv"), text=("text",), label="label")})
    made = form(None)
    with pytest.raises(
        DataError, match=r"t\.csv, line 3: column 'text' holds '</s>', as do 1 more rows; the tokenizer reads it as"
    ):
        check_texts(data.custom["t"], made.tokenizer, made.settings)


def _words(*special: str) -> dict[str, int]:
    return {word: at for at, word in enumerate([*special, *sorted(ByteLevel.alphabet())])}


def _pieces(*special: str) -> list[tuple[str, float]]:
    return [(word, -float(at >= len(special))) for at, word in enumerate([*special, "▁", *"abcepsSEP<>/[]"])]


TOKENIZERS = {
    "bert": lambda: BertTokenizer(vocab=_words("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
    "roberta, bart": lambda: RobertaTokenizer(vocab=_words("<s>", "<pad>", "</s>", "<unk>", "<mask>"), merges=[]),
    "gpt2": lambda: GPT2Tokenizer(vocab=_words("<|endoftext|>"), merges=[]),
    "t5": lambda: T5Tokenizer(vocab=_pieces("<pad>", "</s>", "<unk>"), extra_ids=2),
    "deberta-v2": lambda: DebertaV2Tokenizer(vocab=_pieces("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")),
    "llama": lambda: LlamaTokenizer(vocab=_words("<unk>", "<s>", "</s>"), merges=[]),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_refused_is_what_the_tokenizer_reads_as_a_token_of_its_own(name: str) -> None:
    """Marks of another family, in other case or with a blank in them, are text."""
    tokenizer = TOKENIZERS[name]()  # type: ignore[no-untyped-call]
    own, pattern = {*tokenizer.all_special_ids}, control_tokens(tokenizer)
    marks = {*tokenizer.all_special_tokens, "<s>", "</s>", "[SEP]", "<|endoftext|>", "<S>", "[sep]", "</s >", "< s>"}
    if name != "gpt2":  # its token for unknown words ends texts as well
        own, marks = own - {tokenizer.unk_token_id}, marks - {tokenizer.unk_token}
    read = {mark: bool(own & {*tokenizer(f"a {mark} b", add_special_tokens=False)["input_ids"]}) for mark in marks}
    assert {mark: bool(pattern.search(f"a {mark} b")) for mark in marks} == read
    assert 0 < sum(read.values()) < len(marks)
