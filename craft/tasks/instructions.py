"""Own instructions: prompts or chats of the user's files, and the text that a language model reads and is taught.

    {question: ..., answer: ...}                      text: [{role: user, content: ...}]        response: the answer
    {instruction: ..., input: ..., output: ...}       the same; content has both, as has a template for pairs
    {messages: [user, assistant, user, assistant]}    two rows, one for each reply of the assistant, with the turns before it

`text` holds the turns before a reply as JSON, because each tokenizer writes them in its own chat template
(`craft.tasks.forms`). Rows that open with the same question are one group, which no cut separates: the turns of a chat, a
question with several answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from craft.data_settings import CustomTask
from craft.tasks.files import DataError, KeyTwiceError, Rows, parse_json
from craft.tasks.rows import check_text, fold, is_blank, numbered

if TYPE_CHECKING:
    from datasets import Dataset

ROLES = ("system", "developer", "user", "assistant", "tool")
MARKS = ("weight", "train", "training", "loss", "trainable")
"""Keys of a turn by which files say whether a reply is learnt: OpenAI's, axolotl's, ms-swift's."""
OPTIONS = ("tools", "documents", "chat_template_kwargs")
"""Columns of a file of chats that a chat template is given with the turns."""
Turn = dict[str, Any]


def columns(settings: CustomTask) -> tuple[str, ...]:
    """Returns the columns of the file that are read."""
    return tuple(name for name in (*settings.prompt, settings.response, settings.messages) if name is not None)


class Example(NamedTuple):
    """A reply that is learnt: the number of its row (from 0), the turns before it, and what else the template is given."""

    row: int
    turns: list[Turn]
    reply: Turn
    options: dict[str, Any]


def to_dataset(rows: Rows, settings: CustomTask) -> Dataset:
    """Makes a row for each response: `text`, `response`, `extras` (the reply's other keys, `tools`) and `row`."""
    from datasets import Dataset, Features, Value

    examples = list(read_examples(rows, settings))
    if not examples:
        raise DataError(f"{rows.source}: no reply of the assistant is marked as one to learn; there is nothing to learn here")
    columns: dict[str, list[str]] = {
        "text": [_to_json(example.turns) for example in examples],
        "response": [example.reply["content"] for example in examples],
        "extras": [_to_json({"reply": _extra_keys(example.reply), **example.options}) for example in examples],
    }
    split = Dataset.from_dict(columns, features=Features(dict.fromkeys(columns, Value("string"))))
    return numbered(split, (rows.number(example.row) for example in examples))


def read_examples(rows: Rows, settings: CustomTask) -> Iterator[Example]:
    """Yields the replies of the file that are learnt, in its order. Raises DataError with the place of what cannot be read."""
    for row in range(len(rows)):
        yield from read_row(rows, settings, row)


def read_row(rows: Rows, settings: CustomTask, row: int) -> Iterator[Example]:
    """Yields the replies of one row (from 0) that are learnt. Raises DataError if it cannot be read."""
    names = columns(settings)
    cells = [rows.column(name)[row] for name in names]
    if settings.messages is None:
        turn = {"role": "user", "content": cells[0]}
        for at, (column, cell) in enumerate(zip(names, cells, strict=True)):
            if not (optional := 0 < at < len(names) - 1) or cell is not None:
                check_text(cell, rows, row, column, optional)
            if optional and cell and not is_blank(cell):
                turn |= {"content": f"{cells[0]}\n\n{cell}", "instruction": cells[0], "input": cell}
        yield Example(row, [turn], {"role": "assistant", "content": cells[-1]}, {})
        return
    (chat,) = cells
    place = f"{rows.place(row)}: column {settings.messages!r}"
    options = {name: rows.columns[name][row] for name in OPTIONS if name in rows.columns}
    if rows.source.endswith(".parquet"):  # its records have every key that any record has
        chat, options = _without_nulls(chat), _without_nulls(options)
    options = {name: _read_option(cell, f"{rows.place(row)}: column {name!r}") for name, cell in options.items() if cell}
    options = {name: option for name, option in options.items() if option}
    turns, learnt = _checked(chat, place)
    for at, turn in enumerate(turns):
        if turn["role"] == "assistant" and at and learnt[at]:
            yield Example(row, turns[:at], turn, options)


def _checked(chat: Any, place: str) -> tuple[list[Turn], list[bool]]:
    """Reads the turns of a chat as templates expect them, and which of them are learnt if they are replies."""
    if not isinstance(chat, list) or not all(isinstance(turn, Mapping) for turn in chat):
        raise DataError(f"{place}: a chat is a list of {{role: ..., content: ...}}; got {str(chat)[:60]!r}")
    read = [_read_turn(turn, f"{place}, turn {number}") for number, turn in enumerate(chat, 1)]
    if not any(turn["role"] == "assistant" for turn, _ in read[1:]):
        raise DataError(f"{place}: a chat holds a reply of the assistant to something; there is nothing to learn here")
    return [turn for turn, _ in read], [learnt for _, learnt in read]


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


def _extra_keys(turn: Turn) -> Turn:
    return {key: value for key, value in turn.items() if key not in ("role", "content")}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def same_opening(texts: Sequence[str]) -> list[int]:
    """Finds for each row the first row that opens with the same turns, up to the first of the user."""
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
