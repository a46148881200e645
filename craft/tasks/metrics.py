"""METRICS: one row for each way to compare predictions with labels; and the scores of a task (x 100).

scikit-learn, scipy and sacrebleu compute the numbers. They are imported by the functions that need them, because checking a
sweep file reads this table. Where a library gives NaN or a warning, a convention gives 0 instead, so that a model which has
learnt nothing scores a plain 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from craft.tasks.task import Metric

if TYPE_CHECKING:
    from craft.tasks.task import Task


def accuracy(predictions: Any, labels: Any) -> float:
    return float(np.mean(np.asarray(predictions) == np.asarray(labels)))


def f1(predictions: np.ndarray, labels: np.ndarray, of: Sequence[int] | None = None) -> float:
    """Computes the mean F1 of classes, those that occur if `of` is None; that of a class without a true positive is 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, labels=of, average="macro", zero_division=0))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if 0 in (np.ptp(predictions), np.ptp(labels)) else float(matthews_corrcoef(labels, predictions))


def correlation(predictions: np.ndarray, labels: np.ndarray, by: str = "pearsonr") -> float:
    """Computes a correlation of `scipy.stats` in float64; 0 if either side is constant up to rounding."""
    from scipy import stats

    sides = [np.asarray(side, dtype=np.float64) for side in (predictions, labels)]
    return 0.0 if any(map(is_constant, sides)) else float(getattr(stats, by)(*sides).statistic)


def is_constant(values: np.ndarray) -> bool:
    """Returns whether values differ by no more than a network that computes in float32 errs, whatever type holds them now."""
    return bool(np.ptp(values) <= 1e-5 * np.max(np.abs(values)))


def likelihood(log_likelihoods: np.ndarray, tokens: np.ndarray) -> float:
    """Computes the geometric mean of a token's probability, from each text's log-likelihood and number of tokens."""
    return math.exp(log_likelihoods.sum() / tokens.sum())


def chrf(answers: Sequence[str], responses: Sequence[str]) -> float:
    """Computes the chrF of the answers (Popović 2015), by sacrebleu."""
    from sacrebleu.metrics import CHRF

    return float(CHRF().corpus_score(list(answers), [list(responses)]).score) / 100


CLOZE = "cloze"
"""The metric of the likeliest of all answers that the rows have, each likelihood divided by the answer's characters."""
METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, "classification", percent=True),
    "f1": Metric(partial(f1, of=[1]), "classification", one_class=True),
    "macro_f1": Metric(f1, "classification"),
    "matthews": Metric(matthews, "classification", signed=True),
    "pearson": Metric(correlation, "regression", signed=True),
    "spearman": Metric(partial(correlation, by="spearmanr"), "regression", signed=True),
    "likelihood": Metric(likelihood, "generation", percent=True, reads=("log_likelihood", "tokens"), by_token=True),
    "exact_match": Metric(accuracy, "generation", percent=True),
    "chrf": Metric(chrf, "generation", by_token=True, credits=False, package="sacrebleu"),
    CLOZE: Metric(accuracy, "generation", percent=True, reads=("answer", "response")),
}
"""Own tasks may choose among the metrics that fit; the first of them is the default."""


def decide(predictions: Any, kind: str) -> np.ndarray:
    """Turns a model's outputs into answers: logits (n, classes) into class numbers (n,), values (n, 1) into values (n,).

    Class numbers and values of shape (n,) stay as they are.
    """
    outputs = np.asarray(predictions)
    bad = int(np.sum(~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1))) if len(outputs) else 0
    if bad:
        raise ValueError(f"{bad} of {len(outputs)} predictions are not finite: training has diverged")
    if kind == "regression":
        return outputs.reshape(len(outputs)).astype(np.float64)
    return outputs.argmax(axis=1) if outputs.ndim == 2 else outputs


def sides_of(task: Task, name: str, *sides: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns predicted and true classes as a metric reads them: the task's positive class is 1 to a metric of one class."""
    return tuple(1 - side for side in sides) if METRICS[name].one_class and task.positive == 0 else sides


def compute_metrics(task: Task, predictions: Any, labels: Any) -> dict[str, float]:
    """Computes every metric of `task` x 100, and `score`, which is its primary one; predictions are those of `decide`."""
    decided, answers = decide(predictions, task.kind), np.asarray(labels)
    if not len(decided) or len(decided) != len(answers):
        raise ValueError(f"{task.name}: {len(decided)} predictions for {len(answers)} labels")
    values = {name: 100.0 * METRICS[name].compute(*sides_of(task, name, decided, answers)) for name in task.metrics}
    return check_finite(task, values) | {"score": values[task.primary]}


def check_finite(task: Task, values: dict[str, float]) -> dict[str, float]:
    """Returns the values of a task's metrics. Raises ValueError if one, such as a user's, is no finite number."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{task.name}: the metric {name} is {value}; it must return a finite number (docs/extending.md)")
    return values


def compute_reported(task: Task, outputs: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Computes the metrics of a task's reported splits.

    A single split gives its own metrics. Several splits (MNLI) give the metrics of all rows taken together under the plain
    names, so `score` is the overall score, and the metrics of each split under `<metric><suffix>`. `outputs` holds the
    predictions and the labels of each, by its suffix.
    """
    if len(outputs) == 1:
        return compute_metrics(task, *next(iter(outputs.values())))
    rows = [np.concatenate([np.asarray(pair[side]) for pair in outputs.values()]) for side in (0, 1)]
    values = compute_metrics(task, *rows)
    for suffix, pair in outputs.items():
        split_metrics = compute_metrics(task, *pair)
        values |= {f"{name}{suffix}": split_metrics[name] for name in task.metrics}
    return values
