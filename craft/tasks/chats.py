"""Own instructions: prompts or chats of the user's files, and the text that a language model reads and is taught.

    {question: ..., answer: ...}                      text: [{role: user, content: ...}]        response: the answer
    {instruction: ..., input: ..., output: ...}       the same; content has both, as has a template for pairs
    {messages: [user, assistant, user, assistant]}    two rows, one for each reply of the assistant, with the turns before it

    turns, reply --template--> <user>Colour?<end><assistant>Red.<end>
                               ───────── prompt ─────────────╴reply╴     the prompt ends where another reply would differ

A template is a program of others. What it would leave out of a chat is refused, not lost: a turn, a key of a turn
(`tool_calls`), a thought of the reply. A date in it is that of the settings, so a prompt is the same on every day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix  # of any strings, letter by letter
from typing import TYPE_CHECKING, Any, NamedTuple

from craft.settings import CustomTask, GenerationSettings
from craft.tasks.files import DataError, KeyTwiceError, Rows, parse_json
from craft.tasks.prompts import PROMPTS, Option, Texts
from craft.tasks.rows import fold, is_blank, numbered, refuse_half_characters

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


ROLES = ("system", "developer", "user", "assistant", "tool")
MARKS = ("weight", "train", "training", "loss", "trainable")
"""Keys of a turn by which files say whether a reply is learnt: OpenAI's, axolotl's, ms-swift's."""
OPTIONS = ("tools", "documents", "chat_template_kwargs")
"""Columns of a file of chats that a chat template is given with the turns."""
Turn = dict[str, Any]


class Example(NamedTuple):
    """A reply that is learnt: the number of its row (from 0), the turns before it, and what else the template is given."""

    row: int
    turns: list[Turn]
    reply: Turn
    options: dict[str, Any]


def to_dataset(rows: Rows, settings: CustomTask) -> Dataset:
    """Makes a row for each response: `text` (the turns before it as JSON), `response`, `extras` (other keys of it, `tools`)."""
    from datasets import Dataset, Features, Value

    examples = list(read_examples(rows, settings))
    if not examples:
        raise DataError(f"{rows.source}: no reply of the assistant is marked as one to learn; there is nothing to learn here")
    columns: dict[str, list[str]] = {"text": [], "response": [], "extras": []}
    for _, turns, reply, options in examples:
        more = {key: value for key, value in reply.items() if key not in ("role", "content")}
        columns["text"].append(_to_json(turns))
        columns["response"].append(reply["content"])
        columns["extras"].append(_to_json({"reply": more, **options}))
    split = Dataset.from_dict(columns, features=Features(dict.fromkeys(columns, Value("string"))))
    return numbered(split, (rows.number(example.row) for example in examples))


def read_examples(rows: Rows, settings: CustomTask) -> Iterator[Example]:
    """Yields the replies of the file that are learnt, in its order. Raises DataError for what cannot be read."""
    for row in range(len(rows)):
        yield from read_row(rows, settings, row)


def read_row(rows: Rows, settings: CustomTask, row: int) -> Iterator[Example]:
    """Yields the replies of one row (from 0) that are learnt. Raises DataError if it cannot be read."""
    if settings.messages is None:
        question, *between, response = (rows.column(str(name))[row] for name in (*settings.prompt, settings.response))
        turn = {"role": "user", "content": question}
        for text in between:
            if text and not is_blank(text):
                turn |= {"content": f"{question}\n\n{text}", "instruction": question, "input": text}
        yield Example(row, [turn], {"role": "assistant", "content": response}, {})
        return
    place, chat = f"{rows.place(row)}: column {settings.messages!r}", rows.column(settings.messages)[row]
    options = {name: rows.columns[name][row] for name in OPTIONS if name in rows.columns}
    if not rows.source.lower().endswith((".json", ".jsonl")):  # Arrow's records have every key that any record has
        chat, options = _without_nulls(chat), _without_nulls(options)
    options = {name: _read_option(cell, f"{rows.place(row)}: column {name!r}") for name, cell in options.items() if cell}
    options = {name: option for name, option in options.items() if option}
    if not isinstance(chat, list) or not all(isinstance(turn, Mapping) for turn in chat):
        raise DataError(f"{place}: a chat is a list of {{role: ..., content: ...}}; got {str(chat)[:60]!r}")
    try:
        refuse_half_characters(json.dumps([chat, options], ensure_ascii=False, default=str))
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    read = [_read_turn(turn, f"{place}, turn {number}") for number, turn in enumerate(chat, 1)]
    turns = [turn for turn, _ in read]
    replies = [at for at, turn in enumerate(turns) if at and turn["role"] == "assistant"]
    if not replies:
        raise DataError(f"{place}: a chat holds a reply of the assistant to something; there is nothing to learn here")
    yield from (Example(row, turns[:at], turns[at], options) for at in replies if read[at][1])


def _read_turn(record: Mapping[str, Any], place: str) -> tuple[Turn, bool]:
    """Reads a turn without empty keys and marks. Returns it, and whether the marks say that it is learnt."""
    turn = {key: cell for key, cell in record.items() if cell is not None and cell != [] and cell != {} and key not in MARKS}
    if "role" not in turn and {"from", "value"} <= turn.keys():
        raise DataError(f"{place}: from and value are ShareGPT's keys; write role ({', '.join(ROLES)}) and content")
    parts = turn.get("content", "")
    if isinstance(parts, list):
        for part in parts:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise DataError(f"{place}: content has the part {str(part)[:60]}; parts of type text alone are read")
        parts = "".join(part["text"] for part in parts)
    empty = turn.get("role") == "tool" or "tool_calls" in turn
    if turn.get("role") not in ROLES or not isinstance(parts, str) or (is_blank(parts) and not empty):
        raise DataError(f"{place}: a turn has a role ({', '.join(ROLES)}) and a text as its content")
    marks = {key: record[key] for key in MARKS if record.get(key) is not None}
    for key, mark in marks.items():
        if mark not in (0, 1):
            raise DataError(f"{place}: {key} is {mark!r}; a reply is learnt (1, true) or not (0, false)")
        if mark and key != "weight" and turn["role"] != "assistant":
            raise DataError(
                f"{place}: {key} is {mark!r} in a turn of the role {turn['role']}; replies of the assistant alone are learnt"
            )
    return turn | {"content": parts}, all(marks.values())


def _read_option(option: Any, place: str) -> Any:
    """Reads the tools (or documents, or arguments) of a chat, which many files hold as JSON in a text."""
    try:
        parsed = parse_json(option) if isinstance(option, str) else option
    except KeyTwiceError as error:
        raise DataError(f"{place}: {error}") from error
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list | dict):
        raise DataError(f"{place} holds {str(option)[:60]!r}; a list is expected, or JSON of one")
    return parsed


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _example(text: str, response: str, extras: str) -> Example:
    """Reads the columns of `to_dataset`."""
    options = json.loads(extras)
    return Example(0, json.loads(text), {"role": "assistant", "content": response, **options.pop("reply", {})}, options)


def same_opening(texts: Sequence[str]) -> list[int]:
    """Finds for each row the first row that opens with the same turns, up to the first of the user. No split separates them."""
    first: dict[str, int] = {}
    groups = []
    for row, text in enumerate(texts):
        turns = json.loads(meaning(text))
        position = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), len(turns))
        groups.append(first.setdefault(json.dumps(turns[: position + 1]), row))
    return groups


def meaning(text: str) -> str:
    """Folds the strings of the turns in `text`."""
    turns = json.loads(text)
    return json.dumps([{key: fold(cell) if isinstance(cell, str) else cell for key, cell in turn.items()} for turn in turns])


THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a reply that templates leave out of replies before the last."""
_NOW = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_PLAIN = {"role", "content", "instruction", "input"}


@dataclass(frozen=True)
class ChatForm:
    """`craft.tasks.prompts.Form` of chats: the tokenizer's own template, or for a single question that of the settings.
    `answers` are those among which the metric `cloze` chooses."""

    tokenizer: PreTrainedTokenizerBase
    settings: GenerationSettings
    answers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "chat template" if self.templated else self.settings.prompt

    @property
    def templated(self) -> bool:
        return bool(self.tokenizer.chat_template) and self.settings.prompt != "none"

    def texts(self, rows: Mapping[str, Sequence[str]]) -> Texts:
        """Returns the texts of rows, the template's end of a turn with the response. Raises ValueError if the template refuses
        a chat, or leaves something of a reply out."""
        examples = [_example(*cells) for cells in zip(rows["text"], rows["response"], rows["extras"], strict=True)]
        pairs = [self.teach(example) for example in examples]
        contexts = [context for context, _ in pairs]
        return Texts(contexts, [reply for _, reply in pairs], contexts if self.templated else [*map(self._ask, examples)])

    def options(self, rows: Mapping[str, Sequence[str]]) -> list[dict[str, Option]]:
        every = []
        for text, extras in zip(rows["text"], rows["extras"], strict=True):
            pairs = [self.teach(_example(text, answer, extras)) for answer in self.answers]
            options = (Option(*pair, len(answer.strip())) for pair, answer in zip(pairs, self.answers, strict=True))
            every.append(dict(zip(self.answers, options, strict=True)))
        return every

    def notes(self, rows: Mapping[str, Sequence[str]]) -> list[str]:
        if not self.templated or self.texts(rows).asked[0] == self._ask(_example(rows["text"][0], "", rows["extras"][0])):
            return []
        return ["the chat template begins an answer in another way than it writes a reply: answers begin as replies do"]

    def _ask(self, example: Example, training: bool = False) -> str:
        _, turns, reply, options = example
        if self.templated:
            return self._write(turns, options, add_generation_prompt=True)
        plain = len(turns) == 1 and turns[0]["role"] == "user" and {*turns[0], *reply} <= _PLAIN and not options
        if not plain:
            raise ValueError(
                f"the tokenizer of {self.tokenizer.name_or_path} has no chat template to write a chat of several turns, or "
                "with tools, in: take an instruct model, or give the columns prompt and response"
            )
        template = PROMPTS[self.settings.prompt]
        question = {"instruction": turns[0]["content"], "input": ""} | turns[0]
        write = template.for_training if training else template.for_evaluation
        return write(question["instruction"], question["input"])

    def teach(self, example: Example) -> tuple[str, str]:
        """Returns what comes before a reply in a training text, and the reply as it is written there."""
        _, turns, reply, options = example
        if not self.templated:
            return self._ask(example, training=True), reply["content"]
        prompt, full = self._ask(example), self._write([*turns, reply], options)
        if not full.startswith(prompt):
            # What the template puts before an answer is not what it writes before a reply, such as an open thought.
            other = self._write([*turns, {"role": "assistant", "content": "x"}], options)
            turns_text = commonprefix([prompt, self._write(turns, options)]).rstrip()  # noqa: RUF071
            prompt = commonprefix([prompt, full, other])  # noqa: RUF071
            if len(prompt) < len(turns_text):
                raise ValueError(f"{self._called} writes the turns before this reply otherwise when the reply follows")
        for key in ("content", *THOUGHTS):
            if _letters(reply.get(key) or "") not in _letters(full):
                raise ValueError(
                    f"{self._called} leaves out a part of this reply's {key}, such as its thoughts: take it out of the file, "
                    "or take a model whose template writes it"
                )
        return prompt, full[len(prompt) :].rstrip("\n")

    def refuse_loss(self, chat: list[Turn], options: dict[str, Any]) -> None:
        """Raises ValueError if the template writes a chat and the same without one of its parts alike."""
        full = self._write(chat, options)
        for name, changed, less in _without_a_part(chat, options):
            try:
                written = self._write(changed, less)
            except ValueError:  # the template needs the part
                continue
            if written == full:
                raise ValueError(
                    f"{self._called} leaves out {name}: take it out of the file, or take a model whose template writes it"
                )

    @property
    def _called(self) -> str:
        return f"the chat template of {self.tokenizer.name_or_path}"

    def _write(self, turns: list[Turn], options: Mapping[str, Any], **flags: Any) -> str:
        arguments = {"date_string": f"{self.settings.date:%d %b %Y}", **options}
        arguments |= arguments.pop("chat_template_kwargs", {})
        template = self.tokenizer.get_chat_template(tools=options.get("tools"))
        template = _NOW.sub(lambda call: json.dumps(self.settings.date.strftime(call[2])), template)
        if "strftime_now(" in template:
            raise ValueError(f"{self._called} writes today's date in a way that data.generation.date cannot decide")
        problem: Exception | None = None
        for messages in _spellings(turns):
            try:
                return str(
                    self.tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **arguments, **flags)
                )
            except Exception as error:  # a template may raise anything
                problem = problem or error
        raise ValueError(f"{self._called} refuses a chat: {problem}") from problem


def check_chats(rows: Rows, settings: CustomTask, form: ChatForm) -> None:
    """Raises DataError, with the place, unless a model reads every row of a file of instructions as it is."""
    tokens, shapes = control_tokens(form.tokenizer), set[str]()
    for example in read_examples(rows, settings):
        chat, options = [*example.turns, example.reply], example.options
        try:
            if token := tokens.search(json.dumps([chat, options], ensure_ascii=False)):
                raise ValueError(
                    f"a text holds {token[0]!r}, which the tokenizer reads as a control token and not as text: take it out, "
                    "or write it in another way"
                )
            form.teach(example)
            shape = json.dumps([[(turn["role"], *turn) for turn in chat], [*options]])
            if form.templated and shape not in shapes:
                form.refuse_loss(chat, options)
                shapes.add(shape)
        except ValueError as error:
            raise DataError(f"{rows.place(example.row)}: {error}") from error


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Finds what the tokenizer would read as one of its special tokens, one that is for unknown words alone excepted."""
    names = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    if tokenizer.unk_token not in (tokenizer.bos_token, tokenizer.eos_token):  # GPT-2 has one token for all three
        names -= {tokenizer.unk_token}
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _without_a_part(chat: list[Turn], options: dict[str, Any]) -> Iterator[tuple[str, list[Turn], dict[str, Any]]]:
    """Yields the name of each part that a template must not leave out, and the chat in which it is missing or different."""
    for at, turn in enumerate(chat):
        names = {"tool_call_id", "id", *(["name"] if turn["role"] == "tool" else [])}  # they lead programs, not models
        for key in turn.keys() - _PLAIN - names - (set(THOUGHTS) if at + 1 < len(chat) else set()):
            changed = {name: value for name, value in turn.items() if name != key}
            yield f"{key!r} of turn {at + 1}", [*chat[:at], changed, *chat[at + 1 :]], options
        if turn["content"]:
            changed = turn | {"content": turn["content"] + "x"}
            yield f"turn {at + 1} (role {turn['role']})", [*chat[:at], changed, *chat[at + 1 :]], options
    for name in options:
        yield f"{name!r}", chat, {key: value for key, value in options.items() if key != name}


def _spellings(turns: list[Turn]) -> Iterator[list[Turn]]:
    """Yields the forms in which templates expect calls of tools, the most usual first. A template raises on the others.

    Most templates write a call's arguments as JSON themselves; a few take the JSON that OpenAI's files have. Most take a turn
    without content; a few need an empty one.
    """
    for empty in (None, ""):
        chat = [turn | {"content": turn["content"] or empty} if "tool_calls" in turn else turn for turn in turns]
        yield json.loads(json.dumps(chat), object_hook=_parsed)
        yield chat


def _letters(text: Any) -> str:
    return "".join(text.split()) if isinstance(text, str) else ""


def _parsed(record: dict[str, Any]) -> dict[str, Any]:
    """Reads `arguments` of a JSON object that are themselves JSON of an object in a text."""
    try:
        arguments = json.loads(record.get("arguments", ""))
    except (TypeError, ValueError):
        return record
    return record | {"arguments": arguments} if isinstance(arguments, dict) else record
