"""Tasks from files, of kinds that the toy suite lacks: three classes, a number (how many words two lists share), words."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from craft.tasks.toy import PEOPLE
from tests.craft.tasks.tickets import write


def word_pairs(folder: Path, kind: str) -> dict[str, Any]:
    """Writes training and validation files of five-word lists; returns the fields `task` and `data` of a run on them.

    The label is the number of shared words, 0 to 5, under `regression`. Under `classification` it is a class: none (below 2),
    some (below 4) or all.
    """
    draw, rows = Random(0), list[dict[str, Any]]()
    for _ in range(300):
        words, shared = draw.sample(PEOPLE, 10), draw.randrange(6)
        label = shared if kind == "regression" else "none" if shared < 2 else "some" if shared < 4 else "all"
        rows.append({"text": " ".join(words[:5]), "text_pair": " ".join(words[5 - shared : 10 - shared]), "label": label})
    parts = {"train": rows[:240], "validation": rows[240:]}
    files = {part: str(write(folder / f"pairs-{kind}-{part}.csv", some)) for part, some in parts.items()}
    block = files | {"text": ["text", "text_pair"], "label": "label", "kind": kind}
    return {"task": f"custom/{kind}", "data": {"custom": {kind: block}}}


COLOURS = ("red", "blue", "green", "gold")


def colours(folder: Path, metric: str | None = None, **generation: Any) -> dict[str, Any]:
    """Writes 60 questions with their answers; returns the fields `task` and `data` of a run that is answered in words."""
    rows = [{"question": f"Colour of {number}?", "answer": f"It is {COLOURS[number % 4]}."} for number in range(60)]
    file = str(write(folder / "qa.jsonl", rows))
    block = {"kind": "generation", "train": file, "prompt": "question", "response": "answer"}
    return {"task": "custom/qa", "data": {"custom": {"qa": block | {"metric": metric}}, "generation": generation}}
