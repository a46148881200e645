"""GLUE: the eight tasks of Wang et al. (2018) that the adapter papers report, with their official metrics.

Data come from a folder (`data.root`, with `glue/TASK/train.parquet` and `validation.parquet`, columns and label numbers as on
the hub) or else from the hub's `nyu-mll/glue`. The hidden test sets are never read: scores are reported on the public
validation sets, for MNLI on the matched and the mismatched one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from craft.settings import DataSettings, HubSplit
from craft.tasks.files import DataUnavailable, read_rows
from craft.tasks.hub_splits import read_split
from craft.tasks.rows import fingerprint, to_dataset
from craft.tasks.task import Kind, Published, RawData, Task

HUB = "nyu-mll/glue"

# LoRA's GLUE runs (arXiv 2106.09685, table 9) start these from the adapter trained on MNLI; the name is the task's.
WARM_START = {"glue/mrpc": "glue/mnli", "glue/rte": "glue/mnli", "glue/stsb": "glue/mnli"}

# Rows of train and of the dev sets, as the hub's page of the dataset has them.
SIZES = {
    "cola": (8551, 1043), "sst2": (67349, 872), "mrpc": (3668, 408), "stsb": (5749, 1500), "qqp": (363846, 40430),
    "mnli": (392702, 9815, 9832), "qnli": (104743, 5463), "rte": (2490, 277),
}  # fmt: skip


def load(task: Task, data: DataSettings) -> RawData:
    name = task.name.removeprefix("glue/")
    suffixes = ("_matched", "_mismatched") if name == "mnli" else ("",)
    splits = ["train", *(f"validation{suffix}" for suffix in suffixes)]
    if data.root is not None:
        folder = Path(data.root).expanduser() / "glue" / name
        if not folder.is_dir():
            present = sorted(entry.name for entry in folder.parent.glob("*/"))
            raise DataUnavailable(
                f"{task.name}: data.root has no folder {folder}; expected there: "
                f"{', '.join(f'{split}.parquet' for split in splits)}. GLUE tasks in that folder: "
                f"{', '.join(present) or 'none'}. Without data.root the hub's {HUB} is read"
            )
        paths = tuple(folder / f"{split}.parquet" for split in splits)
        tables = [read_rows(path) for path in paths]
    else:
        advice = (
            f". Or give a folder that holds glue/{name}/{splits[0]}.parquet and "
            f"{', '.join(f'{split}.parquet' for split in splits[1:])} as data.root (--set data.root=FOLDER)"
        )
        hub_splits = [HubSplit(path=HUB, name=name, split=split) for split in splits]
        paths, tables = (), [read_split(split, advice, names=False) for split in hub_splits]
    train, *reported = [to_dataset(table, task) for table in tables]
    return RawData(train, dict(zip(suffixes, reported, strict=True)), fingerprint([train, *reported]), paths)


def phrases(texts: Sequence[str]) -> list[int]:
    """Finds for each text the number of the longest one that contains it as successive words, which may be itself.

    SST-2's training rows are phrases of the same sentences, so a row carved from among them alone has its sentence in training.
    """
    sentences = [text.split() for text in texts]
    complete = {" ".join(sentence) for sentence in sentences}
    lengths = sorted({len(sentence) for sentence in sentences})
    holder: dict[str, int] = {}
    for row in sorted(range(len(sentences)), key=lambda row: (-len(sentences[row]), row)):
        sentence = sentences[row]
        if " ".join(sentence) not in holder:
            for size in lengths[: bisect_right(lengths, len(sentence))]:
                for begin in range(len(sentence) - size + 1):
                    part = " ".join(sentence[begin : begin + size])
                    if part in complete:
                        holder.setdefault(part, row)
    return [holder[" ".join(sentence)] for sentence in sentences]


def _row(name: str, title: str, text: tuple[str, ...], labels: tuple[str, ...], *metrics: str, **groups: Any) -> Task:
    kind: Kind = "classification" if labels else "regression"
    span = None if labels else (0.0, 5.0)  # STS-B, the one regression
    train, *reported = SIZES[name]
    sizes = Published(train, tuple(reported), f"the hub's {HUB}, which a run fetches itself")
    return Task(
        f"glue/{name}", title, kind, text, "label", labels, metrics, metrics[0], load, span, published=lambda _: sizes, **groups
    )


_PAIR = ("sentence1", "sentence2")
_FOLLOWS = ("entailment", "not_entailment")

TASKS: tuple[Task, ...] = (
    _row("cola", "CoLA: is the sentence acceptable English?", ("sentence",), ("unacceptable", "acceptable"),
         "matthews", "accuracy"),
    _row("sst2", "SST-2: is the phrase positive?", ("sentence",), ("negative", "positive"), "accuracy", groups=phrases,
         chooses_by_holders=True),
    _row("mrpc", "MRPC: do two news sentences say the same?", _PAIR, ("not_equivalent", "equivalent"), "accuracy", "f1"),
    _row("stsb", "STS-B: how similar are two sentences, 0 to 5?", _PAIR, (), "pearson", "spearman"),
    _row("qqp", "QQP: do two questions ask the same?", ("question1", "question2"), ("not_duplicate", "duplicate"),
         "accuracy", "f1"),
    _row("mnli", "MNLI: does the premise entail, leave open or contradict the hypothesis?", ("premise", "hypothesis"),
         ("entailment", "neutral", "contradiction"), "accuracy"),
    _row("qnli", "QNLI: does the sentence answer the question?", ("question", "sentence"), _FOLLOWS, "accuracy"),
    _row("rte", "RTE: does the premise entail the hypothesis?", _PAIR, _FOLLOWS, "accuracy"),
)  # fmt: skip
