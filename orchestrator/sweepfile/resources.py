"""`Resources`: the share of a machine that the sweep file asks for each trial.

    resources: {cpu: 4, gpu: 0.5, memory: 12 GiB, heartbeat_minutes: 30, custom: {fast_disk: 1}, accelerator_type: A100}
    resources: {workers: 2, cpu: 4, gpu: 1, fsdp: true}

With several `workers`, as many processes train one trial (`orchestrator.tune.team`), and each of them gets all the other
amounts. `memory` does two things. Ray places no more trials on a machine than its memory holds. And a trial that takes more
than its share fails alone (`orchestrator.worker.host_memory`); without a limit the operating system chooses which process to
end. The limit does not count the GPU's own memory. A share of a GPU below 1 has a fence too (`orchestrator.worker.gpu_memory`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator, model_validator

from craft.settings import Settings
from craft.words import format_bytes, parse_bytes
from orchestrator.sweepfile.mistakes import shown

SMALLEST_MEMORY = 2**28
OWN_NAMES = ("cpu", "gpu", "memory", "object_store_memory")


class Resources(Settings):
    """What one trial gets of a machine. With several `workers`, each worker gets all the other amounts."""

    workers: int = Field(1, ge=1, le=64, description="Processes that train a trial together, each on its share of every batch.")
    fsdp: bool = Field(
        False, description="Split the frozen weights of the base model over the workers (FSDP2), where one cannot hold them."
    )
    cpu: float = Field(1, gt=0, le=1024, description="Cores, and threads, of a worker.")
    gpu: float = Field(
        0,
        ge=0,
        json_schema_extra={"maximum": 1},
        description="One GPU, or a share of one. Several GPUs are several workers. 1/2, 1/3 (0.333), 1/4 ... of a GPU pack "
        "without waste; three trials of 0.3 leave a tenth idle. A trial with 0 sees no GPU.",
    )
    memory: int | None = Field(
        None,
        description="Host memory in bytes, or text such as `12 GiB`; no limit if absent. It limits what a worker takes "
        "beyond an idle process; files of weights count only where they are changed in memory. 256 MiB is the least.",
        json_schema_extra={
            "anyOf": [
                {"type": "integer", "minimum": SMALLEST_MEMORY},
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[A-Za-z]*\s*$"},
                {"type": "null"},
            ]
        },
    )
    heartbeat_minutes: float = Field(
        30,
        ge=0,
        le=7 * 24 * 60,
        description="A trial that makes no step for this many minutes is ended and counts as dead. Before the first step each "
        "decomposition of a weight counts as one; loading the model must fit into this time. 0 waits for ever.",
    )
    custom: dict[str, float] = Field({}, max_length=32, description="Ray's custom resources, by name: `{fast_disk: 1}`.")
    accelerator_type: str | None = Field(None, max_length=60, description="GPU model, as Ray names it: `A100`, `H100`.")

    @field_validator("gpu")
    @classmethod
    def _one_or_less(cls, gpu: float) -> float:
        if gpu > 1:
            workers = math.ceil(gpu)
            raise ValueError(
                f"got {gpu:g}; a process trains on one GPU: a share of one (0.5), or workers: {workers} and gpu: 1"
            )
        return gpu

    @field_validator("memory", mode="before")
    @classmethod
    def _in_bytes(cls, memory: Any) -> int | None:
        if memory is None:
            return None
        amount = parse_bytes(memory)
        if amount is None:
            raise ValueError(f"got {shown(memory)}; bytes, or a number with a unit: 12 GiB, 512 MB")
        if amount < SMALLEST_MEMORY:
            raise ValueError(f"got {shown(memory)}; a trial needs 256 MiB at least (torch alone takes as much)")
        return amount

    @field_validator("custom")
    @classmethod
    def _can_be_asked(cls, custom: dict[str, float]) -> dict[str, float]:
        for name, amount in custom.items():
            if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,63}", name):
                raise ValueError(f"got {shown(name)}; a resource's name: letters, digits, - _ . and :")
            if name.lower() in OWN_NAMES or name.startswith("accelerator_type:"):
                raise ValueError(f"{name} has a key of its own: resources.{name.split(':')[0].lower()}")
            if not 0 < amount <= 1e6:
                raise ValueError(f"got {shown(amount)} of {name}; an amount above 0")
        return custom

    @field_validator("accelerator_type")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ValueError(f"got {shown(name)}; a GPU's name as Ray has it: A100, H100, L4, RTX-4090 ...")
        return name

    @model_validator(mode="after")
    def _workers_have_whole_gpus(self) -> Resources:
        if self.workers > 1 and 0 < self.gpu < 1:
            raise ValueError(f"got workers: {self.workers} with gpu: {self.gpu:g}; workers of one trial need a whole GPU each")
        return self

    @model_validator(mode="after")
    def _several_share_a_model(self) -> Resources:
        if self.fsdp and self.workers == 1:
            raise ValueError("got fsdp: true with workers: 1; a model is split over several workers: give workers: 2 or more")
        return self

    @property
    def asked(self) -> dict[str, float]:
        """The amounts that one worker gets, by Ray's names; amounts of 0 are left out."""
        named = {"CPU": self.cpu, "GPU": self.gpu, "memory": float(self.memory or 0), **self.custom}
        if self.accelerator_type:
            # Ray gives each such machine one unit, which only marks the kind: a sliver of it places a trial there.
            named[f"accelerator_type:{self.accelerator_type}"] = 0.001
        return {name: amount for name, amount in named.items() if amount}

    @property
    def gpus(self) -> float:
        """GPUs that a trial holds with all its workers."""
        return self.workers * self.gpu

    def slots(self, has: Mapping[str, float]) -> int:
        """How many trials fit at once into the amounts `has`, which are given by Ray's names."""
        return self.processes(has) // self.workers

    def slots_on(self, machines: Sequence[Mapping[str, float]]) -> int:
        """How many trials fit at once on `machines`: a process lies on one of them, a split model with all its processes."""
        if self.fsdp:
            return sum(map(self.slots, machines))
        return sum(map(self.processes, machines)) // self.workers

    def processes(self, has: Mapping[str, float]) -> int:
        """How many processes, each a worker of a trial, fit at once into the amounts `has`."""
        return min(self.fitting(name, has) for name in self.asked)

    def fitting(self, name: str, has: Mapping[str, float]) -> int:
        """How many processes one resource of `has` is enough for. A share lies on one GPU: 0.6 fits once on each."""
        if name == "GPU":
            return int(has.get(name, 0)) * times(1, self.gpu)
        return times(has.get(name, 0), self.asked[name])

    def told(self) -> str:
        """The amounts as text: `cpu 4, gpu 0.5, memory 12.0 GiB`."""
        each = ", ".join(told(name, amount) for name, amount in self.asked.items())
        split = ", the model split over them" if self.fsdp else ""
        return each if self.workers == 1 else f"{self.workers} workers of {each}{split}"


def times(has: float, amount: float) -> int:
    """How often `amount` fits into `has`, rounding errors apart."""
    return int(has / amount + 1e-9)


def told(name: str, amount: float) -> str:
    """One of Ray's resources as text: `memory 12.0 GiB`."""
    if name == "memory":
        return f"memory {format_bytes(amount)}"
    if name.startswith("accelerator_type:"):
        return f"a GPU of type {name.partition(':')[2]}"
    return f"{name.lower() if name in ('CPU', 'GPU') else name} {amount:g}"
