"""Metrics against their definitions, written out in numpy, and the conventions where the libraries are undefined."""

import math
import warnings

import numpy as np
import pytest

from craft.tasks import TASKS
from craft.tasks.metrics import METRICS, compute_metrics, compute_reported, is_constant
from craft.tasks.task import Metric


def defined_f1(predictions, labels, positive):
    hits = sum(p == y == positive for p, y in zip(predictions, labels, strict=True))
    misses = sum((p == positive) != (y == positive) for p, y in zip(predictions, labels, strict=True))
    return 2 * hits / (2 * hits + misses) if hits else 0.0


def defined_matthews(predictions, labels):
    """Correlation of the classes as indicator vectors: the definition, without a confusion matrix."""
    classes = np.union1d(predictions, labels)
    x, y = (np.equal.outer(np.asarray(side), classes).astype(float) for side in (predictions, labels))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    spread = np.sum(x * x) * np.sum(y * y)
    return np.sum(x * y) / np.sqrt(spread) if spread else 0.0


def mean_ranks(values):
    """1 + the number of smaller values + half the number of other values that are equal."""
    return [1 + np.sum(values < value) + (np.sum(values == value) - 1) / 2 for value in values]


REFERENCE = {
    "accuracy": lambda predictions, labels: sum(map(np.equal, predictions, labels)) / len(labels),
    "f1": lambda predictions, labels: defined_f1(predictions, labels, 1),
    "macro_f1": lambda predictions, labels: np.mean(
        [defined_f1(predictions, labels, given) for given in {*map(int, predictions), *map(int, labels)}]
    ),
    "matthews": defined_matthews,
    "pearson": lambda predictions, labels: np.corrcoef(predictions, labels)[0, 1],
    "spearman": lambda predictions, labels: np.corrcoef(mean_ranks(predictions), mean_ranks(labels))[0, 1],
}


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("seed", range(8))
def test_equal_to_the_definition_on_random_predictions(name, seed):
    draw = np.random.default_rng(seed)
    n = int(draw.integers(3, 400))
    if name in ("pearson", "spearman"):
        labels = draw.integers(0, 26, n) / 5  # ties, as in STS-B
        predictions = labels + draw.normal(size=n) * draw.uniform(0.01, 10)
    else:
        classes = int(draw.integers(2, 6))
        labels = draw.integers(0, classes, n)
        predictions = np.where(draw.random(n) < 0.5, labels, draw.integers(0, classes, n))
    assert METRICS[name].compute(predictions, labels) == pytest.approx(REFERENCE[name](predictions, labels), abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "f1", "macro_f1", "matthews"])
@pytest.mark.parametrize(
    ("predictions", "labels"),
    [
        ([0, 0, 0, 0], [0, 1, 0, 1]),
        ([1, 1, 1, 1], [0, 1, 1, 1]),
        ([0, 1, 0, 1], [1, 1, 1, 1]),
        ([1, 1], [1, 1]),
        ([0, 0], [0, 0]),
        ([0], [1]),
    ],
)
def test_one_class_only_gives_the_convention_and_no_warning(name, predictions, labels):
    predictions, labels = np.array(predictions), np.array(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METRICS[name].compute(predictions, labels) == pytest.approx(REFERENCE[name](predictions, labels))


@pytest.mark.filterwarnings("error")
def test_stated_conventions_on_degenerate_input():
    constant, varied = np.full(6, 2.7), np.array([0.0, 1, 2, 3, 4, 5])
    for name in ("pearson", "spearman"):
        assert METRICS[name].compute(constant, varied) == 0
        assert METRICS[name].compute(varied, constant) == 0
        assert METRICS[name].compute(np.float32(0.1) * np.ones(1000, dtype=np.float32), np.arange(1000.0)) == 0


def test_pearson_survives_a_large_offset_and_float32_scores():
    draw = np.random.default_rng(0)
    labels = draw.uniform(0, 5, 300)
    scores = (labels + draw.normal(size=300)).astype(np.float32)
    assert METRICS["pearson"].compute(scores + np.float32(1000), labels) == pytest.approx(
        np.corrcoef((scores + np.float32(1000)).astype(np.float64), labels)[0, 1], abs=1e-12
    )


@pytest.mark.parametrize("mean", [2.7, -1e-3, 4e5])
def test_one_value_with_the_rounding_of_float32_is_constant(mean):
    labels = np.linspace(0, 5, 400, dtype=np.float32)
    value = np.float32(mean)
    rounded = (value + np.spacing(value) * np.round(labels)).astype(np.float32)  # five last places that follow the labels
    assert len(set(rounded.tolist())) > 1
    assert is_constant(rounded[:, None])
    assert compute_metrics(TASKS["glue/stsb"], rounded[:, None], labels) == {"pearson": 0, "spearman": 0, "score": 0}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_predictions_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="1 of 2 predictions are not finite"):
        compute_metrics(TASKS["glue/stsb"], [1.0, bad], [1.0, 2.0])
    with pytest.raises(ValueError, match="not finite"):
        compute_metrics(TASKS["glue/cola"], [[0.0, 1.0], [bad, 0.0]], [0, 1])


def test_a_value_of_a_users_metric_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setitem(METRICS, "accuracy", Metric(lambda predictions, labels: math.nan, "classification"))
    with pytest.raises(ValueError, match="the metric accuracy is nan; it must return a finite number"):
        compute_metrics(TASKS["glue/sst2"], np.array([0, 1]), np.array([0, 1]))


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="2 predictions for 3 labels"):
        compute_metrics(TASKS["glue/cola"], [0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="0 predictions"):
        compute_metrics(TASKS["glue/cola"], [], [])


def test_mnli_keeps_matched_mismatched_and_overall_apart():
    task = TASKS["glue/mnli"]
    matched = ([0, 1, 2, 0], [0, 1, 2, 1])  # 3 of 4
    mismatched = ([2, 2], [0, 0])  # 0 of 2
    values = compute_reported(task, {"_matched": matched, "_mismatched": mismatched})
    assert values == {"accuracy": 50.0, "score": 50.0, "accuracy_matched": 75.0, "accuracy_mismatched": 0.0}
