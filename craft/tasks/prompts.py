"""PROMPTS: how an instruction is put to a language model, and which of its tokens the loss sees.

`alpaca` is the plain template. `llm_adapters` is the published code's, byte for byte: its lines are indented by the sixteen
spaces of a Python literal, and its training text differs from its evaluation text (two blanks after the first sentence instead
of one, an indented empty line before the response). Scores under the two are not comparable, so the variant is part of a
run's settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Loss = Literal["response", "text"]
IGNORED = -100  # the label that torch's cross entropy leaves out

_INTRODUCTION = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request."
)
_INDENT = " " * 16


@dataclass(frozen=True)
class Prompt:
    """One row of PROMPTS: the templates with `{instruction}` and `{input}`; the response follows them immediately."""

    training: str
    evaluation: str
    training_with_input: str
    evaluation_with_input: str

    def for_training(self, instruction: str, given: str = "") -> str:
        """What stands before the response in a training text."""
        return _filled(self.training_with_input if given else self.training, instruction, given)

    def for_evaluation(self, instruction: str, given: str = "") -> str:
        """What the model has to continue when it is evaluated."""
        return _filled(self.evaluation_with_input if given else self.evaluation, instruction, given)


def _filled(template: str, instruction: str, given: str) -> str:
    # Not str.format: instructions hold braces of their own, and one replaced text must not be searched for the next mark.
    before, after = template.split("{instruction}")
    return before + instruction + after.replace("{input}", given)


_ALPACA = _INTRODUCTION + "\n\n### Instruction:\n{instruction}\n\n### Response:\n"
_ALPACA_INPUT = _WITH_INPUT + "\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"

PROMPTS: dict[str, Prompt] = {
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


def encode(
    tokenizer: PreTrainedTokenizerBase, prompt: str, response: str, *, max_length: int, loss: Loss
) -> dict[str, list[int]]:
    """Tokens and labels of one training text: prompt, response, end of text.

    The text is tokenized as a whole, as a model meets it; a token belongs to the response if any of its characters does.
    Longer texts are cut at the right, and the end-of-text token is only added where there is room, as the published trainer
    does: a text whose response is cut away has no label left under `loss="response"` (see `teaches`).

    Args:
        tokenizer: a fast tokenizer with an end-of-text token.
        prompt: from `Prompt.for_training`.
        response: what the model is to say.
        max_length: the most tokens, the special ones included.
        loss: `response`, the paper's, or `text`, the published trainer's loss on the prompt as well.

    Returns:
        `input_ids`, `attention_mask` and `labels`, each of the text's number of tokens; labels left out of the loss are -100.
    """
    found: Any = tokenizer(prompt + response, truncation=True, max_length=max_length, return_offsets_mapping=True)
    tokens, offsets = list(found["input_ids"]), list(found["offset_mapping"])
    in_response = [end > len(prompt) for _, end in offsets]
    end_of_text = tokenizer.eos_token_id
    if end_of_text is not None and len(tokens) < max_length and (not tokens or tokens[-1] != end_of_text):
        tokens.append(int(end_of_text))
        in_response.append(True)
    elif tokens and tokens[-1] == end_of_text:
        in_response[-1] = True
    labels = tokens if loss == "text" else [token if at else IGNORED for token, at in zip(tokens, in_response, strict=True)]
    return {"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": list(labels)}


def teaches(encoded: dict[str, list[int]]) -> bool:
    """Whether any token of the text is in the loss: a batch without one would have a loss of NaN."""
    return any(label != IGNORED for label in encoded["labels"][1:])
