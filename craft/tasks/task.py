"""`Task` and `Metric`: the rows of TASKS and of METRICS, and the data that a task reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from craft.settings import DataSettings, GenerationSettings

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from craft.tasks.prompts import Form

Kind = Literal["classification", "regression", "generation"]


@dataclass(frozen=True)
class RawData:
    """A task's data as published: every `Dataset` has the columns `text`, `text_pair` (for pairs) and `label`.

    Tasks that are answered in words have the columns that their `Task.form` renders.

    `reported` maps a split's suffix to its rows; the usual single split has the suffix `""` (MNLI: `_matched`,
    `_mismatched`). `fingerprint` is a SHA-256 over the rows, by which equal data are recognized on any machine. `files` are
    the local files that the data were read from, if any; data in memory are valid while these files do not change.
    """

    train: Dataset
    reported: Mapping[str, Dataset]
    fingerprint: str
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One row of METRICS: `compute(predictions, labels)` of n rows, where 1 is perfect, and the `kind` of tasks that it scores.

    Own instructions give the two columns of their predictions that `reads` names. `percent`: x 100 it is a percentage.
    `signed`: it is from -1 to 1. `one_class`: it is the score of one of two classes, whose number is 1. `by_token`: its error
    is far smaller than that of right and wrong, as it is a mean over tokens. `credits` may be computed unless that takes
    minutes. `package` is what has to be installed, with the extra of the metric's name.
    """

    compute: Callable[[Any, Any], float]
    kind: Kind
    percent: bool = False
    signed: bool = False
    one_class: bool = False
    reads: tuple[str, str] = ("output", "response")
    by_token: bool = False
    credits: bool = True
    package: str | None = None

    @property
    def graded(self) -> bool:
        """Whether each row is right or wrong, and no number."""
        return self.kind != "regression" and not self.by_token

    def fits(self, kind: Kind, classes: int) -> bool:
        return self.kind == kind and not (self.one_class and classes > 2)


class Published(NamedTuple):
    """Numbers of rows of published data that train and of each split that is scored, and where the data are."""

    train: int
    reported: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class Task:
    """One row of TASKS. `metrics` are names in `craft.tasks.metrics.METRICS`; `primary` x 100 is the score.

    `positive` is the number of the class that metrics of one class score.
    `text` and `label` are the columns of the published data. `labels` are the class names in order, none for other kinds;
    `span` is the range of a regression's values, if known. `groups(texts)` gives for each row the number of the row whose group
    it is in; a group is never split between training and scoring. Where it is absent, rows with equal texts are a group. Texts
    are equal if `meaning` of them is. With `chooses_by_holders` the search split has only the row that gives its group the
    number: the sentence, and no phrases of it. `form` renders the rows of a task that is answered in words.
    `published` has the sizes of published data, for plans without them.
    """

    name: str
    title: str
    kind: Kind
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    primary: str
    load: Callable[[Task, DataSettings], RawData]
    span: tuple[float, float] | None = None
    groups: Callable[[Sequence[str]], Sequence[int]] | None = None
    chooses_by_holders: bool = False
    meaning: Callable[[str], str] = str.strip
    positive: int = 1
    form: Callable[[PreTrainedTokenizerBase, GenerationSettings], Form] | None = None
    published: Callable[[DataSettings], Published] | None = None

    @property
    def suite(self) -> str:
        return self.name.split("/", 1)[0]
