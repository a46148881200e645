"""The toy suite: deterministic, balanced, without leaks, and not to be solved by the words alone."""

import pytest
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from craft.data_settings import DataSettings
from craft.tasks import SUITES, TASKS
from craft.tasks.metrics import compute_metrics
from craft.tasks.splits import load_splits

TOY = [TASKS[name] for name in SUITES["toy"]]

# The suite is part of what a score means: it may only change knowingly, together with these and the changelog.
FINGERPRINTS = {
    "toy/sentiment": "9c7cd80916ea819c",
    "toy/paraphrase": "55212c36287b47cd",
}


def splits(task):
    return load_splits(task, DataSettings(), protocol="customary")


def columns(split):
    return [name for name in ("text", "text_pair") if name in split.column_names]


@pytest.mark.parametrize("task", TOY, ids=lambda task: task.name)
def test_equal_on_every_machine(task):
    assert splits(task).fingerprint[:16] == FINGERPRINTS[task.name]


@pytest.mark.parametrize("task", TOY, ids=lambda task: task.name)
def test_no_sentence_of_dev_occurs_in_train(task):
    both = splits(task)
    train = {sentence for column in columns(both.train) for sentence in both.train[column]}
    dev = {sentence for column in columns(both.train) for sentence in both.reported[""][column]}
    assert not train & dev
    rows = [tuple(row[column] for column in columns(both.train)) for row in both.train]
    assert len(set(rows)) == len(rows)


# Random guessing has 50: both are far from the 100 that understanding would give.
WORDS_ALONE = {"toy/sentiment": 62, "toy/paraphrase": 60}


@pytest.mark.parametrize("task", TOY, ids=lambda task: task.name)
def test_a_bag_of_words_stays_far_below_the_ceiling(task):
    both = splits(task)
    vectorizers = {column: CountVectorizer().fit(both.train[column][:]) for column in columns(both.train)}

    def bags(split):
        return scipy.sparse.hstack([vectorizer.transform(split[column][:]) for column, vectorizer in vectorizers.items()])

    model = LogisticRegression(max_iter=1000)
    model.fit(bags(both.train), both.train["label"][:])
    dev = both.reported[""]
    assert compute_metrics(task, model.predict(bags(dev)), dev["label"][:])["score"] <= WORDS_ALONE[task.name]
