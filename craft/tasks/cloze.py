r"""Cloze form of multiple choice: the model reads each option's own text, not a list of options and their names.

    question    Question: Which equipment keeps out mold spores?\nAnswer:   ->  " safety goggles" | " breathing mask" | ...
    ending      She bends down and grabs the pole. the lady                 ->  " swings and lands in her arms." | ...
    option      Sarah was a better surgeon than Maria so {Sarah | Maria}    ->  " always got the harder cases."
    truth       Question: is house tax the same as property tax?\nAnswer:   ->  " true" | " false"

These are the forms of lm-evaluation-harness: PIQA, ARC and OpenBookQA; HellaSwag; WinoGrande by partial evaluation (Trinh and
Le 2018, arXiv 1806.02847); BoolQ, whose answers are here those of the mixture. The instruction of a record holds all of it, so
training texts are made in the same form: the context and the right option's continuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from craft.tasks.extraction import options

_TASK = re.compile(
    r"Please (?:choose the correct \w+ (?:to the question|to (?:fill in the blank to )?complete the given sentence)"
    r"|answer the following question with true or false, question):\s*"
)
_FORMAT = re.compile(r"\s*Answer format:\s*\S+\s*$")


@dataclass(frozen=True)
class Choices:
    """The allowed answers of one question, each with its context and with the text that continues the context."""

    answers: tuple[str, ...]
    contexts: tuple[str, ...]
    continuations: tuple[str, ...]


def read_choices(instruction: str, context: str, family: str) -> Choices:
    """Reads the options of an instruction in cloze form.

    Args:
        instruction: as in the mixture: task, question, `Answer1: ...` for each option, `Answer format: ...`.
        context: further context, which comes first.
        family: a key of `craft.tasks.extraction.PATTERNS`.
    """
    text = _FORMAT.sub("", instruction)
    begin = _TASK.match(text)
    text = text[begin.end() :] if begin else text
    prefix = f"{context}\n" if context else ""
    if family == "truth":
        answers: tuple[str, ...] = ("true", "false")
        return Choices(answers, (f"{prefix}Question: {text.strip()}\nAnswer:",) * 2, tuple(f" {answer}" for answer in answers))
    answers = options(instruction, family)
    question, texts = _split(text, answers)
    if len(answers) < 2 or not question or not all(texts):
        raise ValueError(
            f"no question or no text of an option in {instruction[:120]!r}: score: cloze reads 'Answer1: text Answer2: ...'"
        )
    if family == "ending":
        return Choices(answers, (prefix + question,) * len(answers), tuple(f" {text}" for text in texts))
    if family == "option":
        before_blank, _, after_blank = question.partition("_")
        if not after_blank.strip():
            raise ValueError(f"no blank '_' with text behind it in {instruction[:120]!r}: score: cloze puts each option there")
        contexts = tuple(prefix + before_blank + text for text in texts)
        return Choices(answers, contexts, (f" {after_blank.strip()}",) * len(answers))
    return Choices(answers, (f"{prefix}Question: {question}\nAnswer:",) * len(answers), tuple(f" {text}" for text in texts))


def read_taught(rows: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Reads contexts and right continuations of a mixture's rows (the columns of `craft.tasks.commonsense.COLUMNS`)."""
    contexts, continuations = [], []
    for text, context, family, label in zip(rows["text"], rows["input"], rows["family"], rows["label"], strict=True):
        choices = read_choices(text, context, family)
        if label not in choices.answers:
            raise ValueError(f"the answer {label!r} is none of {', '.join(choices.answers)} in {text[:120]!r}")
        at = choices.answers.index(label)
        contexts.append(choices.contexts[at])
        continuations.append(choices.continuations[at])
    return contexts, continuations


def _split(text: str, answers: Sequence[str]) -> tuple[str, list[str]]:
    """Splits `text` into the question and the text of each option; texts are empty where the option's mark is missing."""
    begins, ends, at = [], [], 0
    for answer in answers:
        mark = f"{answer.capitalize()}:"
        place = text.find(mark, at)
        if place < 0:
            return text.strip(), [""] * len(answers)
        at = place + len(mark)
        begins.append(at)
        ends.append(place)
    return text[: ends[0]].strip(), [text[begin:end].strip() for begin, end in zip(begins, [*ends[1:], len(text)], strict=True)]
