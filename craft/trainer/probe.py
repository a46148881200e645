"""A few real steps of a run, timed: what a machine needs for a start, a step and a scored example.

start      from nothing to the first step: weights, tokens of a few examples, the task head's fit on them
step       an optimizer step, with its micro-batches
example    an example that is scored; where scoring was not reached, a third of an example in training
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from craft.models.files import is_gguf, resolve_model, weights_on_disk
from craft.results import Leave
from craft.spec import RunSpec
from craft.trainer.counting import estimated_memory
from craft.trainer.pace import FORWARD
from craft.trainer.training import train_run
from craft.watch import watching

STEPS = 14
"""So many steps are timed; the first two are not, since libraries choose their kernels there."""
WARM = 2
BATCHES = 2
"""So many evaluation batches of each split are scored."""
CGROUPS = Path("/sys/fs/cgroup")
LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""The file of a group's limit, by its controllers: of version 2 of cgroups, and of version 1."""


class Speed(NamedTuple):
    """Seconds of a training's start, of an optimizer step, and of an example that is scored."""

    start: float
    step: float
    example: float


def measure_speed(spec: RunSpec, seconds: float, threads: int = 1) -> Speed | None:
    """Trains LoRA for a few steps on the model and data of `spec`, and leaves after so many seconds.

    Returns None if the weights are not on this disk, do not fit into its memory, or make no three steps in time. Raises what
    a run raises.
    """
    spec = _short(spec)
    stored = is_gguf(spec.model) or weights_on_disk(resolve_model(spec.model, spec.revision), spec.revision)
    if not stored or estimated_memory(spec) > device_memory():
        return None
    began, ends = time.perf_counter(), list[float]()

    def end_step(step: int, _total: int) -> None:
        if step > len(ends):  # scoring in words repeats the last step
            ends.append(time.perf_counter())
        if ends[-1] - began > (seconds if len(ends) > WARM else 2 * seconds):
            raise Leave("the time of the probe is over")

    def follow(_work: str, _done: int, _total: int) -> None:
        if time.perf_counter() - began > 2 * seconds:
            raise Leave("the time of the probe is over")

    earlier_threads, scoring = torch.get_num_threads(), 0.0
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder, watching(follow):
            result = train_run(spec, Path(folder), on_step=end_step)
        scoring = result.phases["score"] / (result.facts["search_examples"] + result.facts["reported_examples"])
    except Leave:
        pass
    finally:
        torch.set_num_threads(earlier_threads)
    if len(ends) <= WARM:
        return None
    steps = [end - start for start, end in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
    step, batch = statistics.fmean(steps), spec.training.batch_size * spec.training.gradient_accumulation
    return Speed(max(0.0, ends[0] - began - step), step, scoring or FORWARD * step / batch)


def device_memory() -> int:
    """Returns the bytes of the smallest GPU, or else of this machine."""
    if torch.cuda.is_available():
        return min(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))
    return machine_memory()


def machine_memory() -> int:
    """Returns the bytes of memory that this machine has, or that a container or a job leaves this process."""
    most, groups = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), list[str]()
    with suppress(OSError):  # no Linux
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for _, controllers, path in (line.split(":", 2) for line in groups):
        if limit := LIMITS.get(controllers):
            group = CGROUPS / controllers / path.lstrip("/")
            for folder in (group, *group.parents):  # a container sees its own group as the root
                with suppress(OSError, ValueError):  # no such file, or "max"
                    most = min(most, int((folder / limit).read_text(encoding="utf-8")))
    return most


def _short(spec: RunSpec) -> RunSpec:
    training = spec.training
    scored = BATCHES * training.eval_batch_size
    changes = {
        "max_steps": STEPS,
        "train_examples": STEPS * training.batch_size * training.gradient_accumulation,
        "eval_examples": scored,
        "search_examples": scored,
        "evaluate_every": "end",
    }
    # LoRA needs no decomposition, trains on tasks without a head, too, and its step takes about as long as CRAFT's.
    base = spec.model_dump(exclude={"warm_start", "cut_from", "measure", "search_only"}) | {"method": "lora", "parameters": {}}
    return RunSpec.model_validate(base | {"training": training.model_dump() | changes})
