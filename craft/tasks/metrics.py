"""METRICS: what predictions are worth, one row each, and the scores of a task (x 100).

The numbers equal scikit-learn's and scipy's wherever those are defined. Where they are not, a convention holds, so that a
model which has learnt nothing scores a plain 0 and never NaN:

- Matthews is 0 if predictions or labels are of one class only;
- Pearson and Spearman are 0 if predictions or labels are constant;
- F1 is 0 if there is no true positive.

`collapsed` tells such a model from one that is merely bad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from craft.tasks import extraction

if TYPE_CHECKING:
    from craft.tasks.task import Task


@dataclass(frozen=True)
class Metric:
    """One row of METRICS: `compute(predictions (n,), labels (n,)) -> float`, 1 being perfect. For which kind of task."""

    title: str
    kind: str
    compute: Callable[[np.ndarray, np.ndarray], float]


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal entries."""
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN); 0 without a true positive."""
    hits = np.sum((predictions == 1) & (labels == 1))
    return float(2 * hits / max(np.sum(predictions == 1) + np.sum(labels == 1), 1))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Unweighted mean of the F1 of every class that occurs in predictions or labels."""
    classes = np.union1d(predictions, labels)
    return float(np.mean([f1(predictions == given, labels == given) for given in classes]))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation for any number of classes (Gorodkin 2004); 0 if either side is of one class only."""
    classes, joint = np.unique(np.concatenate([predictions, labels]), return_inverse=True)
    predicted, actual = np.split(joint, 2)
    n = len(predicted)
    by_prediction = np.bincount(predicted, minlength=len(classes)).astype(np.float64)
    by_label = np.bincount(actual, minlength=len(classes)).astype(np.float64)
    spread = (n * n - by_prediction @ by_prediction) * (n * n - by_label @ by_label)
    if spread == 0:
        return 0.0
    return float((n * np.sum(predicted == actual) - by_prediction @ by_label) / np.sqrt(spread))


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson correlation in float64; 0 if either side is constant (up to rounding)."""
    sides = []
    for side in (predictions, labels):
        side = np.asarray(side, dtype=np.float64)
        centred = side - side.mean()
        norm = np.linalg.norm(centred)
        if norm <= 1e-13 * np.linalg.norm(side):
            return 0.0
        sides.append(centred / norm)
    return float(np.clip(sides[0] @ sides[1], -1.0, 1.0))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson correlation of the ranks, ties sharing their mean rank."""
    from scipy.stats import rankdata

    return pearson(rankdata(predictions), rankdata(labels))


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", "classification", accuracy),
    "f1": Metric("F1 of class 1", "classification", f1),
    "macro_f1": Metric("mean F1 of the classes", "classification", macro_f1),
    "matthews": Metric("Matthews correlation", "classification", matthews),
    "pearson": Metric("Pearson correlation", "regression", pearson),
    "spearman": Metric("Spearman correlation", "regression", spearman),
}


def decide(predictions: Any, kind: str) -> np.ndarray:
    """What a model's outputs say: class numbers (n,) from logits (n, classes), or values (n,) from (n, 1).

    Class numbers and values that are already (n,) stay as they are. Raises ValueError if an output is not finite.
    """
    outputs = np.asarray(predictions)
    bad = int(np.sum(~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1))) if len(outputs) else 0
    if bad:
        raise ValueError(f"{bad} of {len(outputs)} predictions are not finite: training has diverged")
    if kind == "regression":
        return outputs.reshape(len(outputs)).astype(np.float64)
    return outputs.argmax(axis=1) if outputs.ndim == 2 else outputs


def compute_metrics(task: Task, predictions: Any, labels: Any) -> dict[str, float]:
    """Every metric of `task` x 100, and `score`, which is its primary one.

    Args:
        task: the row of TASKS; its metrics are computed.
        predictions: logits (n, classes), class numbers (n,), or for regression values (n,) or (n, 1).
        labels: (n,).

    Raises:
        ValueError: no predictions, another number of labels than of predictions, or an output that is not finite.
    """
    decided, answers = decide(predictions, task.kind), np.asarray(labels)
    if not len(decided) or len(decided) != len(answers):
        raise ValueError(f"{task.name}: {len(decided)} predictions for {len(answers)} labels")
    values = {name: 100.0 * METRICS[name].compute(decided, answers) for name in task.metrics}
    return values | {"score": values[task.primary]}


def compute_reported(task: Task, outputs: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """The metrics of the reported splits together, from `{suffix: (predictions, labels)}`.

    A single split gives its metrics. Several (MNLI) give those of all rows taken together under the plain names, so `score`
    is the overall one, and those of each split under `<metric><suffix>`. Tests answered in words give each test's accuracy
    and, as `score`, the mean of the tests; their predictions are extracted answers.
    """
    if task.kind == "generation":
        groups = [suffix.removeprefix("_") for suffix, (answers, _) in outputs.items() for _ in answers]
        together = [[cell for pair in outputs.values() for cell in pair[side]] for side in (0, 1)]
        return extraction.score(groups, *together)
    if len(outputs) == 1:
        return compute_metrics(task, *next(iter(outputs.values())))
    rows = [np.concatenate([np.asarray(pair[side]) for pair in outputs.values()]) for side in (0, 1)]
    values = compute_metrics(task, *rows)
    for suffix, pair in outputs.items():
        apart = compute_metrics(task, *pair)
        values |= {f"{name}{suffix}": apart[name] for name in task.metrics}
    return values


def collapsed(predictions: Any) -> bool:
    """Whether a model says the same for every one of two or more examples: one class, or one constant value.

    Logits (n, classes) and whole numbers (n,) are read as classes, other values (n,) or (n, 1) as regression.
    """
    outputs = np.asarray(predictions)
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        outputs = outputs.argmax(axis=1)
    if len(outputs) < 2:
        return False
    return bool(np.ptp(outputs) <= 1e-6 * np.max(np.abs(outputs))) if outputs.dtype.kind == "f" else bool(np.ptp(outputs) == 0)
