"""PROMPTS: the templates that put an instruction to a language model; and which tokens the loss sees.

`llm_adapters` is the published code's, byte for byte (LLM-Adapters' finetune.py and commonsense_evaluate.py, as DoRA took them
over): its lines are indented by the sixteen spaces of a Python literal, and its training text differs from its evaluation text
(two blanks after the first sentence instead of one, an indented empty line before the response).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Loss = Literal["response", "text"]
IGNORED = -100  # the label that torch's cross entropy leaves out

_LETTERS = 16
"""A text with more letters than this for each token that is kept is cut by letters first."""

_INTRODUCTION = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request."
)
_INDENT = " " * 16


class Texts(NamedTuple):
    """Rows as a model reads them: what comes before each response in a training text, the responses, and what the model
    continues where it writes an answer."""

    contexts: list[str]
    responses: list[str]
    asked: list[str]


class Option(NamedTuple):
    """An answer that is allowed: the text that continues `context` if it is given, and the characters of the answer itself."""

    context: str
    continuation: str
    characters: int


class Form(Protocol):
    """How a task renders its rows for a tokenizer. Texts of the same rows, settings and `name` are equal."""

    @property
    def name(self) -> str: ...

    @property
    def templated(self) -> bool:
        """Whether texts come from a chat template, with all special tokens."""
        ...

    def texts(self, rows: Mapping[str, Sequence[str]]) -> Texts: ...

    def options(self, rows: Mapping[str, Sequence[str]]) -> list[dict[str, Option]]:
        """Returns each row's options, by the answers that they are."""
        ...

    def notes(self, rows: Mapping[str, Sequence[str]]) -> list[str]: ...


@dataclass(frozen=True)
class Prompt:
    """One row of PROMPTS: the templates with `{instruction}` and `{input}`; the response follows them immediately."""

    training: str
    evaluation: str
    training_with_input: str
    evaluation_with_input: str

    def for_training(self, instruction: str, context: str = "") -> str:
        return _filled(self.training_with_input if context else self.training, instruction, context)

    def for_evaluation(self, instruction: str, context: str = "") -> str:
        return _filled(self.evaluation_with_input if context else self.evaluation, instruction, context)


def _filled(template: str, instruction: str, context: str) -> str:
    # Not str.format: instructions hold braces of their own, and one replaced text must not be searched for the next mark.
    prefix, suffix = template.split("{instruction}")
    return prefix + instruction + suffix.replace("{input}", context)


_ALPACA = _INTRODUCTION + "\n\n### Instruction:\n{instruction}\n\n### Response:\n"
_ALPACA_INPUT = _WITH_INPUT + "\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"

PROMPTS: dict[str, Prompt] = {
    "none": Prompt("{instruction}", "{instruction}", "{instruction}\n{input}", "{instruction}\n{input}"),
    "alpaca": Prompt(_ALPACA, _ALPACA, _ALPACA_INPUT, _ALPACA_INPUT),
    "llm_adapters": Prompt(
        training=f"{_INTRODUCTION}  \n\n{_INDENT}### Instruction:\n{_INDENT}{{instruction}}\n{_INDENT}\n"
        f"{_INDENT}### Response:\n{_INDENT}",
        evaluation=f"{_INTRODUCTION} \n\n{_INDENT}### Instruction:\n{_INDENT}{{instruction}}\n\n"
        f"{_INDENT}### Response:\n{_INDENT}",
        training_with_input=f"{_WITH_INPUT} \n\n{_INDENT}### Instruction:\n{_INDENT}{{instruction}}\n{_INDENT}\n"
        f"{_INDENT}### Input:\n{_INDENT}{{input}}\n{_INDENT}\n{_INDENT}### Response:\n{_INDENT}",
        evaluation_with_input=f"{_WITH_INPUT}\n\n{_INDENT}### Instruction:\n{_INDENT}{{instruction}}\n\n"
        f"{_INDENT}### Input:\n{_INDENT}{{input}}\n\n{_INDENT}### Response:\n{_INDENT}",
    ),
}


def shorten(text: str, tokenizer: PreTrainedTokenizerBase, tokens: int) -> str:
    """Cuts a text that is far longer than `tokens` of its tokens by letters, since tokenizing megabytes takes minutes.

    What is returned has more tokens than that still, so that it counts as cut.
    """
    letters = _LETTERS * max(tokens, 64)
    while letters < len(text) and tokenizer.truncation_side == "right":
        part = text[:letters]
        if len(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) > tokens + 16:
            return part
        letters *= 2
    return text


@dataclass(frozen=True)
class TaughtText:
    """Tokens of one text; the loss sees those from `start` on. It is at least 1, because nothing predicts the first token."""

    tokens: list[int]
    start: int


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    responses: Sequence[str],
    *,
    max_length: int | None,
    loss: Loss,
    ends: bool = True,
    special: bool = True,
) -> list[TaughtText]:
    """Encodes training texts: prompt, response, end of text.

    A text is tokenized as a whole, as a model meets it; a token belongs to the response if any of its characters does.
    Longer texts are cut at the right, and the end-of-text token is only added where there is room, as the published trainer
    does: a text whose response is cut away teaches nothing under `loss="response"`. `ends`: whether the end of text belongs to
    the response. `special`: whether the tokenizer adds its special tokens, which texts of a chat template have already.
    """
    full = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    encoded: Any = tokenizer(
        full if max_length is None else [shorten(text, tokenizer, max_length) for text in full],
        truncation=max_length is not None,
        max_length=max_length,
        return_offsets_mapping=True,
        add_special_tokens=special,
    )
    end_of_text = tokenizer.eos_token_id
    texts = []
    for prompt, ids, offsets in zip(prompts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        tokens = list(ids)
        if not ends:
            tokens = tokens[:-1] if tokens[-1:] == [end_of_text] else tokens
        elif end_of_text is not None and tokens[-1:] != [end_of_text] and (max_length is None or len(tokens) < max_length):
            tokens.append(int(end_of_text))
        in_response = (at for at, (_, end) in enumerate(offsets) if end > len(prompt))
        first = next(in_response, len(ids) if len(tokens) > len(ids) else len(tokens))
        texts.append(TaughtText(tokens, 1 if loss == "text" else max(1, first)))
    return texts
