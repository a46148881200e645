"""A real SQLite tracking store for each test, copied from one that MLflow made once: making it takes seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dashboards.store import Store
from tests.dashboards.synthetic import FakeRun, write_sweep


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store_uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def store_at(store_uri: str) -> Callable[[str, Iterable[FakeRun]], Store]:
    def make(name: str, runs: Iterable[FakeRun]) -> Store:
        write_sweep(MlflowClient(store_uri), name, runs)
        return Store(store_uri)

    return make
