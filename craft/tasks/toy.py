"""toy: two small tasks in the shape of GLUE, made by code from a seeded grammar. No download, equal on every machine.

    toy/sentiment     negation and contrast (SST-2)
    toy/paraphrase    the same event or its roles exchanged (MRPC)

Both have two balanced classes. Words alone do not give the answers away (a bag of words stays near guessing): a frozen encoder
with a trained head gets part of the way, and adapting its attention gets further. No sentence of dev occurs in train.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from craft.data_settings import DataSettings
from craft.tasks import toy_grammar
from craft.tasks.files import Rows
from craft.tasks.rows import fingerprint, to_dataset
from craft.tasks.task import RawData, Task

if TYPE_CHECKING:
    from datasets import Dataset

_SEED = 20260119

GRAMMARS = {"toy/sentiment": toy_grammar.sentiment, "toy/paraphrase": toy_grammar.paraphrase}


def load(task: Task, data: DataSettings) -> RawData:
    """Writes 2,000 examples to train on and 500 to report. Every label has its equal share. `data` is not used."""
    draw = Random(f"{_SEED} {task.name}")
    train = _examples(task, 2000, draw, set())
    barred = {sentence for example in train for sentence in example[:2] if sentence is not None}
    splits = _dataset(task, train), _dataset(task, _examples(task, 500, draw, barred))
    return RawData(splits[0], {"": splits[1]}, fingerprint(splits))


def _examples(task: Task, count: int, draw: Random, barred: set[str]) -> list[toy_grammar.Example]:
    remaining_counts = dict.fromkeys(range(len(task.labels)), count // len(task.labels))
    chosen: dict[toy_grammar.Example, None] = {}
    while len(chosen) < count:
        for example in GRAMMARS[task.name](draw):
            if remaining_counts[example.label] and example not in chosen and barred.isdisjoint(example[:2]):
                chosen[example] = None
                remaining_counts[example.label] -= 1
    examples = list(chosen)
    draw.shuffle(examples)
    return examples


def _dataset(task: Task, examples: list[toy_grammar.Example]) -> Dataset:
    columns = {name: [example[at] for example in examples] for at, name in enumerate(task.text)}
    columns[task.label] = [example.label for example in examples]
    return to_dataset(Rows(task.name, columns), text=task.text, label=task.label, labels=task.labels)


TASKS: tuple[Task, ...] = (
    Task(
        "toy/sentiment", "Is the verdict of the sentence positive?", "classification", ("text",), "label",
        ("negative", "positive"), ("accuracy",), "accuracy", load,
    ),
    Task(
        "toy/paraphrase", "Do two sentences tell the same event?", "classification", ("text", "text_pair"), "label",
        ("not_equivalent", "equivalent"), ("accuracy", "f1"), "accuracy", load,
    ),
)  # fmt: skip
