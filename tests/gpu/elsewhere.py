"""The same work in a process of its own: on the processor to compare with, or where a GPU may be left in a bad state.

in_new_process(function, *arguments)             the GPUs that this process sees
in_new_process(function, *arguments, gpu=0)      a trial's share of a GPU, or none, from before the first import: bitsandbytes,
                                                 which PEFT imports, asks torch for a GPU
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar
from unittest.mock import patch

from orchestrator.worker.share import keep_to_share

T = TypeVar("T")


def in_new_process(function: Callable[..., T], *arguments: Any, gpu: float | None = None) -> T:
    """What `function`, a module's own, returns there; what it raises is raised here."""
    with patch.dict(os.environ), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        if gpu is not None:
            keep_to_share(gpu)
        return pool.submit(function, *arguments).result()
