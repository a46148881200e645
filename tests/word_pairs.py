"""Tasks from files, of kinds that the toy suite lacks: three classes, a number (how many words two lists share), words."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

from craft.tasks.toy import PEOPLE


def word_pairs(folder: Path, kind: str) -> dict[str, Any]:
    """Writes training and validation files of five-word lists; returns the fields `task` and `data` of a run on them.

    The label is the number of shared words, 0 to 5, under `regression`. Under `classification` it is a class: none (below 2),
    some (below 4) or all.
    """
    files = {part: str(folder / f"pairs-{kind}-{part}.csv") for part in ("train", "validation")}
    draw = Random(0)
    for part, count in (("train", 240), ("validation", 60)):
        with Path(files[part]).open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["text", "text_pair", "label"])
            for _ in range(count):
                words, shared = draw.sample(PEOPLE, 10), draw.randrange(6)
                label = shared if kind == "regression" else "none" if shared < 2 else "some" if shared < 4 else "all"
                lines.writerow([" ".join(words[:5]), " ".join(words[5 - shared : 10 - shared]), label])
    block = files | {"text": ["text", "text_pair"], "label": "label", "kind": kind}
    return {"task": f"custom/{kind}", "data": {"custom": {kind: block}}}


COLOURS = ("red", "blue", "green", "gold")


def colours(folder: Path, metric: str | None = None, **generation: Any) -> dict[str, Any]:
    """Writes 60 questions with their answers; returns the fields `task` and `data` of a run that is answered in words."""
    rows = [{"question": f"Colour of {number}?", "answer": f"It is {COLOURS[number % 4]}."} for number in range(60)]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    block = {"kind": "generation", "train": str(folder / "qa.jsonl"), "prompt": "question", "response": "answer"}
    return {"task": "custom/qa", "data": {"custom": {"qa": block | {"metric": metric}}, "generation": generation}}
