"""From what a model wrote to the answer it gave: the published patterns of LLM-Adapters, and the score of a mixture of tests.

The rule is the published one and is meant to be no better: the first match of the pattern counts, letter case matters, and an
output without a match is wrong. "Not answer1 but answer2" is therefore answer1.
If a model writes the mark of a response again, the text after the last mark is read; the published script reads the text
before the second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Alternatives are tried from the left, as in the published code; none begins another, so their order does not matter.
PATTERNS: dict[str, re.Pattern[str]] = {
    "truth": re.compile(r"true|false"),
    "solution": re.compile(r"solution1|solution2"),
    "answer": re.compile(r"answer1|answer2|answer3|answer4|answer5"),
    "ending": re.compile(r"ending1|ending2|ending3|ending4"),
    "option": re.compile(r"option1|option2"),
}
RESPONSE = "the correct answer is {}"
_MARK = "### Response:"
_FORMAT = re.compile(r"Answer format:\s*(\S+)\s*$")


def extract(output: str, family: str) -> str:
    """Finds the answer in a model's output, `""` if there is none. `family` is a key of PATTERNS."""
    match = PATTERNS[family].search(output.rsplit(_MARK, 1)[-1])
    return match.group() if match else ""


def family_of(answer: str) -> str | None:
    """Finds the key of PATTERNS whose answers look like `answer`; None if it is no answer."""
    return next((family for family, pattern in PATTERNS.items() if pattern.fullmatch(answer)), None)


def options(instruction: str, family: str) -> tuple[str, ...]:
    """Lists the answers an instruction allows: from its last line `Answer format: a/b/c`, else all that it names."""
    last = _FORMAT.search(instruction)
    listed = last.group(1).split("/") if last else []
    allowed = [answer for answer in listed if PATTERNS[family].fullmatch(answer)]
    if len(allowed) < 2:
        allowed = sorted(set(PATTERNS[family].findall(instruction.lower())))
    return tuple(dict.fromkeys(allowed))


def score(groups: Sequence[str], answers: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Computes accuracies x 100 of extracted answers: `accuracy_<group>`, their plain mean as `score`, and `answered`."""
    if not labels or not len(groups) == len(answers) == len(labels):
        raise ValueError(f"{len(answers)} answers and {len(groups)} groups for {len(labels)} labels")
    hits: dict[str, list[bool]] = {}
    for group, answer, label in zip(groups, answers, labels, strict=True):
        hits.setdefault(group, []).append(answer == label)
    apart = {f"accuracy_{group}": 100.0 * sum(right) / len(right) for group, right in hits.items()}
    mean = sum(apart.values()) / len(apart)
    answered = 100.0 * sum(answer != "" for answer in answers) / len(answers)
    return {"score": mean, "accuracy": mean, **apart, "answered": answered}
