"""`Resources`: the share of a machine that the sweep file asks for each trial.

    resources: {cpu: 4, gpu: 0.5, memory: 12 GiB, heartbeat_minutes: 30, custom: {fast_disk: 1}}

A trial with several GPUs has a process for each, and `cpu`, `memory` and `custom` are those of each process. `memory` does two
things. Ray places no more trials on a machine than its memory holds. And a trial
that takes more than its share fails alone (`orchestrator.worker.share`); without a limit the operating system chooses
which process to end. The limit does not count the GPU's own memory. A share of a GPU below 1 limits memory on the GPU, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from craft.settings import Settings, Way
from craft.words import format_bytes, parse_bytes
from orchestrator.sweepfile.mistakes import shown

LEAST = 0.0001
"""Ray counts a resource in such steps."""
SMALLEST_MEMORY = 2**28
OWN_NAMES = ("cpu", "gpu", "memory", "object_store_memory")


class Resources(Settings):
    """What one trial gets: `gpu` in all, the other amounts for each of its processes, all on one machine."""

    cpu: float = Field(1, ge=LEAST, le=1024, description="Cores of each process of a trial.")
    gpu: float = Field(
        0,
        ge=0,
        le=1024,
        description="A share of one GPU, or a number of GPUs. A trial with 0 sees no GPU.",
    )
    processes: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Processes of a trial. One for each whole GPU; without GPUs 1, if not given.",
    )
    parallel: Way | None = Field(
        None,
        description="How processes share the work ([cluster.md](cluster.md#a-trial-on-several-gpus)).",
    )
    memory: int | None = Field(
        None,
        description="Host memory, such as `12 GiB`; else no limit. An idle process is not "
        "counted, and mapped files of weights only where they are changed in memory. At least 256 MiB.",
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
        description="Minutes without a step until a trial is tried again. 0 waits for ever.",
    )
    custom: dict[str, float] = Field(
        {},
        max_length=32,
        description="Ray's custom resources, as in `{fast_disk: 1}`. A GPU's model is `{'accelerator_type:A100': 0.001}`.",
    )

    @field_validator("gpu")
    @classmethod
    def _check_gpu(cls, gpu: float) -> float:
        if 0 < gpu < LEAST or (gpu > 1 and gpu != int(gpu)):
            raise ValueError(f"got {gpu:g}; a trial has a share of one GPU (0.5; at least {LEAST}) or whole GPUs (2)")
        return gpu

    @property
    def contradiction(self) -> str:
        """What does not go together; empty if all does. A block's part alone may contradict itself: the file has the rest."""
        if self.processes is not None and self.gpu and self.processes != max(1, self.gpu):
            return (
                f"processes: {self.processes} with gpu: {self.gpu:g}; each process has one whole GPU, so leave processes out, "
                "or give gpu: 0 to train without GPUs"
            )
        if self.count == 1 and self.parallel:
            return "parallel is for several processes, and the trial has one; give gpu: 2 or more, or parallel: null"
        if self.parallel == "layers" and not self.gpu:
            return "parallel: layers puts the layers on GPUs, and the trial has none; give gpu: 2 or more"
        return ""

    @field_validator("memory", mode="before")
    @classmethod
    def _read_memory(cls, memory: Any) -> int | None:
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
    def _check_custom(cls, custom: dict[str, float]) -> dict[str, float]:
        for name, amount in custom.items():
            if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,63}", name):
                raise ValueError(f"got {shown(name)}; a resource's name: letters, digits, - _ . and :")
            if name.lower() in OWN_NAMES:
                raise ValueError(f"{name} has a key of its own: resources.{name.lower()}")
            if not LEAST <= amount <= 1e6:
                raise ValueError(f"got {shown(amount)} of {name}; an amount of {LEAST} at least")
        return custom

    @property
    def count(self) -> int:
        """The number of the trial's processes, each of which has a GPU of its own or none."""
        return self.processes or max(1, int(self.gpu))

    @property
    def asked(self) -> dict[str, float]:
        """The amounts of each process by Ray's names; amounts of 0 are left out."""
        named = {"CPU": self.cpu, "GPU": self.gpu / self.count, "memory": float(self.memory or 0), **self.custom}
        return {name: amount for name, amount in named.items() if amount}

    def slots(self, *machines: Mapping[str, float]) -> int:
        """Returns how many trials fit at once into the amounts of machines, by Ray's names."""
        fitting = [min(self.fitting(name, machine) for name in self.asked) for machine in machines]
        return sum(fit // self.count for fit in fitting)

    def fitting(self, name: str, has: Mapping[str, float]) -> int:
        """Returns how many processes one resource of `has` is enough for. A share is of one GPU: 0.6 fits once on each."""
        if name == "GPU":
            return int(has.get(name, 0)) * times(1, self.asked[name])
        return times(has.get(name, 0), self.asked[name])

    def describe(self) -> str:
        """Returns the amounts as text: `cpu 4, gpu 0.5, memory 12.0 GiB`, or `2 processes, each with cpu 4, gpu 1`."""
        amounts = ", ".join(words_of(name, amount) for name, amount in self.asked.items())
        return amounts if self.count == 1 else f"{self.count} processes, each with {amounts}"


def times(has: float, amount: float) -> int:
    """Returns how often `amount` fits into `has`, but for rounding errors."""
    return int(has / amount + 1e-9)


def words_of(name: str, amount: float) -> str:
    """Returns one of Ray's resources as text: `memory 12.0 GiB`."""
    if name == "memory":
        return f"memory {format_bytes(amount)}"
    return f"{name.lower() if name in ('CPU', 'GPU') else name} {amount:g}"
