"""This machine: how many trainings it runs at once, the batch that fits, and the seconds of a step."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.words import format_bytes
from orchestrator.plan.gpu_shares import CONTEXT_BYTES, usable_gpus
from orchestrator.record.manifest import cores

if TYPE_CHECKING:
    from craft.trainer.probe import Speed

PROCESS_BYTES = 2**30
"""Host memory of a training beside its tensors: Python and its libraries."""
MOST_AT_ONCE = 8
"""More trainings than this at once leave cores idle at the end of a sweep."""
PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class Machine:
    """What trainings get of the machine, and how fast they are.

    Attributes:
        training: settings of a training that fits.
        cpu: cores of a training.
        gpu: 1 where trainings have a GPU each.
        memory: bytes of a training step, estimated.
    """

    training: TrainingSettings
    cpu: int
    gpu: int
    at_once: int
    memory: int
    speed: Speed

    @property
    def batch(self) -> int:
        """Rows of an optimizer step."""
        return self.training.batch_size * self.training.gradient_accumulation


def measure_machine(run: RunSpec) -> Machine:
    """Fits a run to the machine and times a few of its steps. Raises ValueError if it does not fit or cannot be trained."""
    from craft.results import RunFailed
    from craft.trainer.counting import estimated_memory
    from craft.trainer.memory import OutOfMemory, shrink_batches
    from craft.trainer.probe import device_memory, measure_speed

    _fetch(run)
    gpus, memory = usable_gpus(), device_memory()
    room = memory - (CONTEXT_BYTES if gpus else PROCESS_BYTES)
    training = run.training.model_copy(update={"precision": "bf16-mixed"} if gpus else {})
    while estimated_memory(run.model_copy(update={"training": training})) > room:
        smaller = shrink_batches(training)
        if smaller is None and training.gradient_checkpointing:
            raise ValueError(f"model {run.model}: a step of one row needs more than the {format_bytes(room)} of this machine")
        training = smaller or training.model_copy(update={"gradient_checkpointing": True})
    run = run.model_copy(update={"training": training})
    step = estimated_memory(run)
    fit = len(gpus) if gpus else memory // (step + PROCESS_BYTES)
    cpu = max(1, cores() // max(1, min(MOST_AT_ONCE, fit)))
    try:
        speed = measure_speed(run, PROBE_SECONDS, cpu)
    except (RunFailed, OutOfMemory) as error:
        raise ValueError(str(error)) from error
    if speed is None:
        raise ValueError(
            f"model {run.model}: no step could be timed: its weights are not on this machine, or a step takes minutes"
        )
    return Machine(training, cpu, int(bool(gpus)), len(gpus) or cores() // cpu, step, speed)


def _fetch(run: RunSpec) -> None:
    """Brings the weights to this machine, as the sweep would."""
    from craft.models.cached import fetch_weights
    from craft.models.loading import resolve_model

    with suppress(OSError, ValueError):  # what is missing is named by the probe
        fetch_weights(resolve_model(run.model, run.revision), run.revision)
