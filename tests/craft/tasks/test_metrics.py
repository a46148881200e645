"""Metrics against values computed by hand, and the conventions where the libraries are undefined."""

import math

import numpy as np
import pytest

from craft.tasks import TASKS
from craft.tasks.metrics import METRICS, compute_metrics, compute_reported, is_constant
from craft.tasks.task import Metric


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predictions", "labels", "values"),
    [
        ([0, 0, 0, 1, 2, 2], [0, 0, 1, 1, 1, 2], (2 / 3, 1 / 2, (4 / 5 + 1 / 2 + 2 / 3) / 3, 13 / 22)),
        ([1, 0, 1, 1], [1, 1, 0, 1], (1 / 2, 2 / 3, 1 / 3, -1 / 3)),
        # One side, or both, have one class only.
        ([0, 0, 0, 0], [0, 1, 0, 1], (1 / 2, 0, 1 / 3, 0)),
        ([1, 1, 1, 1], [0, 1, 1, 1], (3 / 4, 6 / 7, 3 / 7, 0)),
        ([0, 1, 0, 1], [1, 1, 1, 1], (1 / 2, 2 / 3, 1 / 3, 0)),
        ([1, 1], [1, 1], (1, 1, 1, 0)),
        ([0, 0], [0, 0], (1, 0, 1, 0)),
        ([0], [1], (0, 0, 0, 0)),
    ],
)
def test_classes_have_the_values_that_are_computed_by_hand(predictions, labels, values):
    names = ("accuracy", "f1", "macro_f1", "matthews")
    assert [METRICS[name].compute(np.array(predictions), np.array(labels)) for name in names] == pytest.approx(values)


def test_correlations_are_those_of_the_values_and_of_their_mean_ranks():
    predictions, labels = np.array([1.0, 2, 2, 8]), np.arange(4)
    assert METRICS["pearson"].compute(predictions, labels) == pytest.approx(10.5 / 153.75**0.5)
    assert METRICS["spearman"].compute(predictions, labels) == pytest.approx(0.9**0.5)


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
