"""Sweeps in a tracking store of the test's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dashboards.store import Store
from tests.dashboards.synthetic import FakeRun, StoreAt, events_of, write_sweep


@pytest.fixture
def store_at(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreAt:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))

    def make(name: str, runs: Iterable[FakeRun]) -> Store:
        write_sweep(MlflowClient(uri), name, events_of(name, runs), tmp_path / name)
        return Store(uri)

    return make
