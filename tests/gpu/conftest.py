"""What the checks share; a check computes on `device`, and one with the mark `gpus(count)` needs real GPUs."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import torch

from orchestrator.worker.share import HIDDEN, keep_to_share
from tests.craft.conftest import own_factor_store, tiny_llama, tiny_model, tiny_spec

__all__ = ["own_factor_store", "tiny_llama", "tiny_model", "tiny_spec"]

Figure = Callable[[str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    places = ["cuda", "pretended", "cpu"]
    parser.addoption("--device", choices=places, default="cuda", help="the others try the checks' logic without a GPU")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpus(count): a check that needs so many real GPUs")
    place = config.getoption("--device", default="cuda")
    if place != "cuda":
        os.environ.update(HIDDEN)
    if place == "pretended":
        importlib.import_module("tests.craft.pretended_gpu.gpu")  # before the first backward pass


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("gpu")


@pytest.fixture(autouse=True)
def room(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips a check that this machine cannot run, with the reason."""
    place = request.config.getoption("--device", default="cuda")
    mark = request.node.get_closest_marker("gpus")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if mark and count < mark.args[0]:
        pytest.skip(f"needs {mark.args[0]} GPU{'s' if mark.args[0] > 1 else ''}, {count} here")
    if not mark and not count and place == "cuda":
        pytest.skip("no GPU that torch can use")
    if place == "pretended":
        from tests.craft.pretended_gpu.gpu import pretended

        with pretended():
            yield
    else:
        yield


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device("cpu" if request.config.getoption("--device", default="cuda") == "cpu" else "cuda")


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Reports a figure of the check, which is shown at the end."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "figure" and report.when == "call":
                terminalreporter.line(f"{report.nodeid.partition('::')[2]}: {value}")


@pytest.fixture
def bitsandbytes() -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("no bitsandbytes: pip install -e '.[gpu]'")


T = TypeVar("T")


def in_new_process(function: Callable[..., T], *arguments: Any, gpu: float | None = None) -> T:
    """What `function`, a module's own, returns there; what it raises is raised here.

    With `gpu` a process with such a share, or none, from before the first import: bitsandbytes, which PEFT imports, asks torch
    for a GPU.
    """
    with patch.dict(os.environ), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        if gpu is not None:
            keep_to_share(gpu)
        return pool.submit(function, *arguments).result()
