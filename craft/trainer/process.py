"""A run in a process that it shares with others: the same process state at every start.

Nothing that decides a run's numbers may be left over from the run before (default dtype, deterministic algorithms, random
states, environment variables set by libraries). Nor may a launcher decide them (`accelerate launch`, `torchrun`, `mpirun`).
"""

from __future__ import annotations

import gc
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from craft.settings import CUBLAS_WORKSPACE

T = TypeVar("T")
UNREPEATABLE = "not repeatable bit for bit"
_REFUSAL = re.compile(r"(.*?) does not have a deterministic implementation|not deterministic because it uses (CuBLAS)")

LAUNCHERS = re.compile(
    # Number of processes, their order and their wrappers: accelerate, torch.distributed, DeepSpeed, MPI, Kubeflow.
    r"(ACCELERATE|FSDP|DEEPSPEED|MEGATRON_LM|PARALLELISM_CONFIG|TORCHELASTIC|PMI|OMPI|MV2|KUBEFLOW)_\w+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|CROSS_(RANK|SIZE)|NODE_RANK|MASTER_(ADDR|PORT)|FORK_LAUNCHED"
    # Number formats of float32 products: cuBLAS, torch, oneDNN.
    r"|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE"
)
"""Names of environment variables that would change a run which its settings describe completely."""


@contextmanager
def isolate_process(*, tf32: bool = False) -> Iterator[None]:
    """Gives the block the same process state everywhere, and restores the caller's state after it.

    With `tf32` a CUDA GPU may round the factors of float32 products.
    """
    environment = dict(os.environ)
    default = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    products = torch.backends.cuda.matmul.fp32_precision
    autocast = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}
    for name in filter(LAUNCHERS.fullmatch, environment):
        del os.environ[name]
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    _set_autocast(dict.fromkeys(autocast, False))
    if torch.cuda.is_available():
        os.environ.setdefault(*CUBLAS_WORKSPACE)
        # With `warn_only` attention's backward would still sum in any order.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    states = read_random_states()
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.set_default_dtype(default)
        torch.backends.cuda.matmul.fp32_precision = products
        _set_autocast(autocast)
        set_random_states(states)
        for name in os.environ.keys() | environment.keys():  # other threads read it meanwhile
            if name not in environment:
                del os.environ[name]
            elif os.environ.get(name) != environment[name]:
                os.environ[name] = environment[name]


def read_random_states() -> dict[str, Any]:
    """Returns the states of all random number generators, as plain data and tensors."""
    numbers: Any = np.random.get_state()
    keys = numbers[1].tolist()  # a list, because torch loads no arrays of numpy
    states = {"python": random.getstate(), "numpy": (numbers[0], keys, *numbers[2:]), "torch": torch.random.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what `read_random_states` returned, on this machine or another."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def run_repeatably(work: Callable[[list[str]], T]) -> T:
    """Returns what `work` returns, computed by deterministic operations only, inside `isolate_process`.

    `work` gets the notes for its record. Where a GPU has no deterministic form of an operation, `work` is called again with a
    note that names the operation, and may use every one.
    """
    try:
        return work([])
    except RuntimeError as error:
        refusal = _REFUSAL.search(str(error))
        if refusal is None:
            raise
        operation = refusal[1] or refusal[2]
    gc.collect()  # the first model is in the error's frames and in cycles
    torch.cuda.empty_cache()
    torch.use_deterministic_algorithms(True, warn_only=True)
    return work([f"{UNREPEATABLE}: {operation} has no deterministic form here"])


def _set_autocast(states: Mapping[str, bool]) -> None:
    for kind, on in states.items():
        torch.set_autocast_enabled(kind, on)
