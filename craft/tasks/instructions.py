"""Own instructions: prompts or chats of the user's files, and the text that a language model reads and is taught.

    {question: ..., answer: ...}                      text: [{role: user, content: ...}]        response: the answer
    {instruction: ..., input: ..., output: ...}       the same; content has both, as has a template for pairs
    {messages: [user, assistant, user, assistant]}    two rows, one for each reply of the assistant, with the turns before it

`text` holds the turns before a reply as JSON, because each tokenizer writes them in its own chat template (`Form`). Rows that
open with the same question are one group, which no cut separates: the turns of a chat, a question with several answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from craft.settings import CustomTask, GenerationSettings
from craft.tasks.files import DataError, Rows
from craft.tasks.prompts import PROMPTS
from craft.tasks.rows import check_text, is_blank, numbered

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

METRICS = ("likelihood", "exact_match", "chrf")
"""The first is the score unless the task says another."""
ROLES = ("system", "user", "assistant", "tool")


def columns(given: CustomTask) -> tuple[str, ...]:
    """The columns of the file that are read."""
    return tuple(name for name in (*given.prompt, given.response, given.messages) if name is not None)


def to_dataset(rows: Rows, given: CustomTask) -> Dataset:
    """One row for each response, with the columns `text`, `response` and `row`."""
    from datasets import Dataset, Features, Value

    texts: list[str] = []
    responses: list[str] = []
    numbers: list[int] = []
    if given.messages is not None:
        for row, chat in enumerate(rows.column(given.messages)):
            turns = _checked(chat, f"{rows.place(row)}: column {given.messages!r}")
            for at, turn in enumerate(turns):
                if turn["role"] == "assistant" and at:
                    texts.append(json.dumps(turns[:at], ensure_ascii=False))
                    responses.append(turn["content"])
                    numbers.append(rows.number(row))
    else:
        names = columns(given)
        for row, cells in enumerate(zip(*map(rows.column, names), strict=True)):
            turn = {"role": "user", "content": cells[0]}
            for place, (column, cell) in enumerate(zip(names, cells, strict=True)):
                if not (optional := 0 < place < len(names) - 1) or cell is not None:
                    check_text(cell, rows, row, column, optional)
                if optional and cell and not is_blank(cell):
                    turn |= {"content": f"{cells[0]}\n\n{cell}", "instruction": cells[0], "input": cell}
            texts.append(json.dumps([turn], ensure_ascii=False))
            responses.append(cells[-1])
            numbers.append(rows.number(row))
    kinds = Features(dict.fromkeys(("text", "response"), Value("string")))
    return numbered(Dataset.from_dict({"text": texts, "response": responses}, features=kinds), numbers)


def _checked(chat: Any, place: str) -> list[dict[str, str]]:
    if not isinstance(chat, list) or not all(isinstance(turn, Mapping) for turn in chat):
        raise DataError(f"{place}: a chat is a list of {{role: ..., content: ...}}; got {str(chat)[:60]!r}")
    for number, turn in enumerate(chat, 1):
        if turn.get("role") not in ROLES or not isinstance(turn.get("content"), str) or not turn["content"].strip():
            raise DataError(f"{place}, turn {number}: a turn has a role ({', '.join(ROLES)}) and a text as its content")
    if not any(turn["role"] == "assistant" for turn in chat[1:]):
        raise DataError(f"{place}: a chat holds a reply of the assistant to something; there is nothing to learn here")
    return [{"role": turn["role"], "content": turn["content"]} for turn in chat]


def same_opening(texts: Sequence[str]) -> list[int]:
    """For each row the first row that opens with the same turns, up to the first of the user."""
    first: dict[str, int] = {}
    groups = []
    for row, text in enumerate(texts):
        turns = json.loads(meaning(text))
        asked = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), len(turns))
        groups.append(first.setdefault(json.dumps(turns[: asked + 1]), row))
    return groups


def meaning(text: str) -> str:
    """The turns in `text` without the blanks around their strings."""
    turns = json.loads(text)
    return json.dumps([{key: one.strip() if isinstance(one, str) else one for key, one in turn.items()} for turn in turns])


@dataclass(frozen=True)
class Form:
    """How a tokenizer's model reads a chat: its own chat template, or for a single question the template of the settings."""

    tokenizer: PreTrainedTokenizerBase
    settings: GenerationSettings

    @property
    def name(self) -> str:
        return "chat template" if self.templated else self.settings.prompt

    @property
    def templated(self) -> bool:
        """Whether texts come from a chat template, with all special tokens in them."""
        return bool(self.tokenizer.chat_template)

    def prompt(self, text: str, *, training: bool = False) -> str:
        """What stands before the response to the turns in `text`."""
        turns = json.loads(text)
        if self.templated:
            return self._write(turns, add_generation_prompt=True)
        if len(turns) > 1:
            raise ValueError(
                f"the tokenizer of {self.tokenizer.name_or_path} has no chat template to write a chat of several turns in: "
                "take an instruct model, or give the columns prompt and response"
            )
        template = PROMPTS[self.settings.prompt]
        asked = turns[0].get("instruction", turns[0]["content"]), turns[0].get("input", "")
        return (template.for_training if training else template.for_evaluation)(*asked)

    def taught(self, rows: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
        """Prompts and responses of rows as the training text has them, the template's end of a turn with the response."""
        prompts = [self.prompt(text, training=True) for text in rows["text"]]
        if not self.templated:
            return prompts, list(rows["response"])
        responses = []
        for text, prompt, response in zip(rows["text"], prompts, rows["response"], strict=True):
            whole = self._write([*json.loads(text), {"role": "assistant", "content": response}])
            # A template that drops or adds something before the last reply leaves the reply itself.
            responses.append(whole[len(prompt) :].rstrip("\n") if whole.startswith(prompt) else response)
        return prompts, responses

    def _write(self, turns: list[dict[str, str]], **options: Any) -> str:
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(turns, tokenize=False, **options))
        except TemplateError as error:
            raise ValueError(f"the chat template of {self.tokenizer.name_or_path} refuses a chat: {error}") from error
