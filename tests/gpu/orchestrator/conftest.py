"""Sweeps on a real Ray whose machine has GPUs; without one, on a Ray that declares GPUs which torch cannot use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def ray() -> Any:
    return pytest.importorskip("ray", reason="no ray: pip install -e .")


@pytest.fixture
def cluster(ray: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Starts a machine with two cores and one GPU, the one of the given number, and gives its address."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with ExitStack() as stack:

        def start(gpu: str) -> str:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
            stack.callback(cluster.shutdown)
            stack.callback(ray.shutdown)
            return cluster.address

        yield start
