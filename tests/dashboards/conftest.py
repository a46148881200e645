"""Sweeps in a tracking store of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from mlflow import MlflowClient

from dashboards.store import Store
from tests.dashboards.synthetic import FakeRun, write_sweep


@pytest.fixture
def store_at(uri: str) -> Callable[[str, Iterable[FakeRun]], Store]:
    def make(name: str, runs: Iterable[FakeRun]) -> Store:
        write_sweep(MlflowClient(uri), name, runs)
        return Store(uri)

    return make
