"""The predictions behind a reported score, kept next to the adapter.

    predictions/reported.jsonl.gz   a task head's answers (MNLI: matched.jsonl.gz, mismatched.jsonl.gz)
    predictions/boolq.jsonl         answers in words (`craft.scoring.words`)

    {"row": 17, "label": "refund", "answer": "billing", "right": false, "probability": 0.93, "margin": 2.587}
    {"row": 17, "label": 3.2, "answer": 2.871}                                                     a regression's

`row` is the number by which error messages name it. `probability` is that of the answer, `margin` the distance of its logit to
the next. The worst mistakes also hold their `text` (and `text_pair`), so that they can be read where the data are not. Lines
are in the order in which rows were scored, which is the same for all trials of a sweep.

Credits are what each block of scored rows contributed to a score, in points. They tell how far a score is luck with the rows:

    credit of block b = B s - (B - 1) s(without b)          pseudo-values of the jackknife (Tukey 1958); their mean is about s
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from craft.disk import replacing

if TYPE_CHECKING:
    from datasets import Dataset

    from craft.tasks.task import Task


PREDICTIONS_FILE = "predictions.safetensors"

Keep = Callable[[dict[str, float]], None]
"""Called with the metrics so far while the reported splits are scored, so that a run that breaks off can continue there."""


@dataclass(frozen=True)
class Reported:
    """`score` and the other metrics of the reported splits, with notes for readers and with facts, the credits."""

    metrics: dict[str, float]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def split_name(suffix: str) -> str:
    """Returns the name of a reported split for watchers and in files: `reported`, or MNLI's `matched` and `mismatched`."""
    return suffix.removeprefix("_") or "reported"


def count_examples(train: int, search: int, reported: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Makes a scorer's `examples` and `passes`."""
    examples = {"train_examples": train, "search_examples": search, "reported_examples": sum(reported.values())}
    return examples, {"search": search, **reported}


Prediction = dict[str, Any]
WORST = 20
"""So many mistakes of a split are kept with their texts."""
_LETTERS = 500


def predictions_of(task: Task, split: Dataset, outputs: np.ndarray) -> list[Prediction]:
    """Reads a task head's outputs (n, classes), or (n, 1) of a regression, as answers to the rows of `split`."""
    rows, labels, values = split["row"][:], split["label"][:], outputs.astype(np.float64)
    if task.kind == "regression":
        lines: list[Prediction] = [
            {"row": row, "label": float(f"{label:.7g}"), "answer": float(f"{value:.7g}")}
            for row, label, value in zip(rows, labels, values[:, 0], strict=True)
        ]
    else:
        ranked = np.sort(values, axis=1)
        shares = 1 / np.exp(values - ranked[:, -1:]).sum(axis=1)
        columns = zip(rows, labels, values.argmax(axis=1), shares, ranked[:, -1] - ranked[:, -2], strict=True)
        lines = [
            {
                "row": row,
                "label": task.labels[label],
                "answer": task.labels[answer],
                "right": bool(label == answer),
                "probability": round(float(share), 4),
                "margin": round(float(margin), 3),
            }
            for row, label, answer, share, margin in columns
        ]
    for place in worst(lines):
        lines[place] |= {name: split[place][name][:_LETTERS] for name in ("text", "text_pair") if name in split.column_names}
    return lines


def worst(lines: Sequence[Prediction]) -> list[int]:
    """Returns the places of the surest mistakes, the surest first; of a regression, of the largest errors.

    An answer whose probability is below 0.5 is no sure one.
    """

    def size(line: Prediction) -> tuple[float, float]:
        if "right" not in line:
            return abs(line["answer"] - line["label"]), 0.0
        return line.get("probability", 0.0), line.get("margin", 0.0)

    wrong = [place for place, line in enumerate(lines) if not line.get("right", False)]
    places = [place for place in wrong if lines[place].get("probability", 1.0) >= 0.5]
    return sorted(places, key=lambda place: size(lines[place]), reverse=True)[:WORST]


def write_predictions(file: Path, lines: Sequence[Prediction]) -> None:
    """Writes a split's file, compressed if its name ends in `.gz`. Equal lines give equal bytes."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as aside:
        aside.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


def read_predictions(folder: Path) -> dict[str, list[Prediction]]:
    """Reads the files of a folder of predictions, by the names of their splits or tests."""
    return {file.name.partition(".jsonl")[0]: read_file(file) for file in sorted(folder.glob("*.jsonl*"))}


def read_file(file: Path) -> list[Prediction]:
    packed = file.read_bytes()
    text = (gzip.decompress(packed) if file.suffix == ".gz" else packed).decode()
    return [json.loads(line) for line in text.split("\n") if line]


Numbers = NDArray[np.float64]
CREDITS, SEARCH_CREDITS = "credits", "search_credits"
"""The names of the facts: of the reported rows, and of the search split's."""
BLOCKS, DRAWS = 200, 10_000


def credits_of(score: Callable[[NDArray[np.bool_]], float], rows: int, name: str = CREDITS) -> dict[str, str]:
    """Computes the fact `name` from the score, in points, of the rows that a mask leaves; nothing for fewer than ten rows."""
    if rows < 10:
        return {}
    values = block_credits(score, rows)
    scale = float(np.abs(values).max()) / 127 or 1.0
    return {name: f"{scale:.6g} {base64.b64encode(np.round(values / scale).astype(np.int8).tobytes()).decode()}"}


def block_credits(score: Callable[[NDArray[np.bool_]], float], rows: int) -> Numbers:
    """Computes each block's credit less their mean, `(blocks,)`, from the score of the rows that a mask leaves."""
    blocks = min(rows, BLOCKS)
    block = np.arange(rows) % blocks
    left_out = np.array([score(block != number) for number in range(blocks)])
    return (blocks - 1) * (left_out.mean() - left_out)


def read_credits(fact: str) -> Numbers:
    """Reads the fact: each block's credit less their mean, `(blocks,)`."""
    scale, _, letters = fact.partition(" ")
    return float(scale) * np.frombuffer(base64.b64decode(letters), dtype=np.int8).astype(float)


def draw_luck(gaps: Numbers, graded: float, counts: Sequence[int] = ()) -> Numbers:
    """Returns draws of what new rows would change about the difference of two models, in points, `(DRAWS,)`: the blocks are
    drawn again with weights (the Bayesian bootstrap, Rubin 1981).

    Before the data one row differs, half of it for each side. So equal answers to n rows do not show that no row differs.

    Args:
        gaps: the credits of one model less those of the other, `(blocks,)`; `counts` of each, or one.
        graded: the number of rows, each of which is right or wrong; infinite where rows have values.
    """
    blocks = tuple(counts) or (1,) * len(gaps)
    row = 100 * sum(blocks) / graded
    drawn: Numbers = _weights(blocks) @ np.array([*(gaps - np.average(gaps, weights=blocks)), row, -row])
    return drawn


@functools.lru_cache(maxsize=4)
def _weights(counts: tuple[int, ...]) -> Numbers:
    return np.random.default_rng(0).dirichlet([*counts, 0.5, 0.5], DRAWS)
