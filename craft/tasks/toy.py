"""toy: four small tasks in the shape of GLUE, made by code from a seeded grammar. No download, equal on every machine.

=====================  =============================================================  ============  ========
`toy/sentiment`        negation and contrast (SST-2)                                  2 classes     accuracy
`toy/paraphrase`       the same event or its roles exchanged (MRPC)                   2 classes     accuracy
`toy/entailment`       quantifiers over wider and narrower classes (MNLI)             3 classes     accuracy
`toy/similarity`       how many parts of an event agree, 0 to 5 (STS-B)               a number      pearson
=====================  =============================================================  ============  ========

Words alone do not give the answers away (a bag of words stays near chance): a frozen encoder with a trained head gets part of
the way, and adapting its attention gets further. Classes are balanced, and no sentence of dev occurs in train.
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

TRAIN_EXAMPLES = 2000
DEV_EXAMPLES = 500
_SEED = 20260119

GRAMMARS: dict[str, toy_grammar.Grammar] = {
    "toy/sentiment": toy_grammar.sentiment,
    "toy/paraphrase": toy_grammar.paraphrase,
    "toy/entailment": toy_grammar.entailment,
    "toy/similarity": toy_grammar.similarity,
}


def load(task: Task, data: DataSettings) -> RawData:
    """Writes 2,000 examples to train on and 500 to report. `data` is not used."""
    train, dev = write(task)
    return RawData(train, {"": dev}, fingerprint([train, dev]))


def write(task: Task) -> tuple[Dataset, Dataset]:
    """Writes train and dev of a toy task. Sentences of train are barred from dev; every label has its equal share."""
    draw = Random(f"{_SEED} {task.name}")
    barred: set[str] = set()
    train = _examples(task, TRAIN_EXAMPLES, draw, barred)
    barred = {sentence for example in train for sentence in example[:2] if sentence is not None}
    return _dataset(task, train), _dataset(task, _examples(task, DEV_EXAMPLES, draw, barred))


def _examples(task: Task, count: int, draw: Random, barred: set[str]) -> list[toy_grammar.Example]:
    n_labels = len(task.labels) or 6
    remaining_counts = {float(label): count // n_labels + (label < count % n_labels) for label in range(n_labels)}
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
    columns: dict[str, list[object]] = {name: [example[at] for example in examples] for at, name in enumerate(task.text)}
    columns[task.label] = [int(example.label) if task.labels else example.label for example in examples]
    return to_dataset(Rows(task.name, columns), text=task.text, label=task.label, labels=task.labels)


_PAIR = ("text", "text_pair")

TASKS: tuple[Task, ...] = (
    Task(
        "toy/sentiment", "Is the verdict of the sentence positive?", "classification", ("text",), "label",
        ("negative", "positive"), ("accuracy",), "accuracy", load,
    ),
    Task(
        "toy/paraphrase", "Do two sentences tell the same event?", "classification", _PAIR, "label",
        ("not_equivalent", "equivalent"), ("accuracy", "f1"), "accuracy", load,
    ),
    Task(
        "toy/entailment", "Does the premise entail, leave open or contradict the hypothesis?", "classification", _PAIR, "label",
        ("entailment", "neutral", "contradiction"), ("accuracy",), "accuracy", load,
    ),
    Task(
        "toy/similarity", "How many parts of two events agree, 0 to 5?", "regression", _PAIR, "label",
        (), ("pearson", "spearman"), "pearson", load,
    ),
)  # fmt: skip
