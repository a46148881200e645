"""Sweeps in a tracking store of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dashboards.store import Store
from tests.dashboards.synthetic import FakeRun, StoreAt, events_of, send


@pytest.fixture
def store_at(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreAt:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))

    def make(name: str, runs: Sequence[FakeRun]) -> Store:
        send(uri, tmp_path / name, *events_of(name, runs))
        return Store(uri)

    return make
