"""The same work in a process of its own: on the processor to compare with, or where a GPU may be left in a bad state.

in_new_process(function, *arguments)                  the GPUs that this process sees
in_new_process(function, *arguments, hidden=True)     none
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar
from unittest.mock import patch

from orchestrator.worker.gpus import HIDDEN

T = TypeVar("T")


def in_new_process(function: Callable[..., T], *arguments: Any, hidden: bool = False) -> T:
    """What `function`, a module's own, returns there; what it raises is raised here."""
    with (
        patch.dict(os.environ, HIDDEN if hidden else {}),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        return pool.submit(function, *arguments).result()
