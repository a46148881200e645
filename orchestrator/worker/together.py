"""A trial in several processes, on the side of the worker: `together` in the first one, `follow_first` in each other one.

heartbeat_minutes h    a process that hangs is ended after h; the others wait for it for 0.8 h, so that the first says why
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from craft.factors.ticking import ticking
from craft.results import Leave
from orchestrator.plan.gpu_shares import Gpu
from orchestrator.plan.trial import PlannedTrial, Train
from orchestrator.plan.ways import choose_way
from orchestrator.worker.surroundings import WorkerSettings, guarded

if TYPE_CHECKING:
    from craft.trainer.together import Part

_WAIT = 0.8
_WITHOUT_HEARTBEAT = 7 * 24 * 3600.0


def train_of(settings: WorkerSettings) -> Train:
    """Returns what runs a training: `craft.trainer.training.train_run` if the settings have no stand-in."""
    if settings.train is not None:
        return settings.train
    from craft.trainer.training import train_run

    return train_run


def together(trial: PlannedTrial, settings: WorkerSettings, gpu: Gpu | None) -> Train:
    """Returns what runs the training of a trial whose first process this is.

    Args:
        gpu: the GPU of this process, whose memory decides how the processes share the work.
    """
    from craft.trainer.together import train_together

    assert settings.crew is not None
    way = choose_way(trial.run, trial.resources, gpu.bytes).way if gpu else trial.resources.parallel or "replicate"
    seconds = _WAIT * settings.heartbeat_seconds if settings.heartbeat_seconds else _WITHOUT_HEARTBEAT
    return train_together(train_of(settings), settings.crew, way, seconds)


def follow_first(key: str, part: Part, settings: WorkerSettings, must_leave: Callable[[], str | None]) -> None:
    """Trains a trial with the process that has begun it. An error is left for that process, too."""
    from craft.processes import leave_cause
    from craft.trainer.together import follow

    store = part.meeting.open_store()
    try:
        with guarded(settings, process_name(key, part.rank)) as (scratch, heartbeat):
            settings.require_gpu()

            def on_step(_step: int, _total: int) -> None:
                heartbeat.beat()
                if why := must_leave():
                    raise Leave(why)

            heartbeat.beat()
            with ticking(heartbeat.beat), settings.surrounded(part.run):
                follow(part, train_of(settings), scratch / "run", on_step, store)
    except Exception as error:
        leave_cause(store, part.rank, error)
        raise


def process_name(key: str, rank: int) -> str:
    """Returns the name of a process's scratch folder."""
    return f"{key}.{rank}" if rank else key
