"""What a training run reports while it trains and when it has ended, as plain data. No torch.

search_score, search_<metric>   x 100 on the split that selection may see; search_loss
train_loss, learning_rate       the mean since the last logged step; the adapter's rate there
score, <metric>                 x 100 on the reported split; accuracy_<test>, answered: of answers in words
energy_kept                     CRAFT: share of the stacked weights' squared norm that the ranks keep
forgetting                      text_loss_after - text_loss_before (`craft.scoring.forgetting`)
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

PREDICTIONS_FOLDER = "predictions"
"""The folder next to a run's adapter with the answer to each reported row (`craft.scoring.predictions`)."""

RUN_FILE = "run.json"
"""The record of its run in an adapter's folder."""

CUTS_FOLDER = "cuts"
"""Folder next to a run's adapter with a folder for each adapter that was cut from it, named by its number of parameters."""

METRIC, POSITIVE = "metric", "positive"
"""Facts of a run: the name of the task's primary metric, which x 100 is the score; the class that it is about, if any."""
EXAMPLES, SEARCHED = "reported_examples", "search_examples"
"""Facts of a run: the numbers of examples of the reported splits and of the search split."""


def name_score(facts: Mapping[str, Any]) -> str:
    """Returns what a run's score is, as in `f1 of spam`."""
    return " of ".join(str(facts[name]) for name in (METRIC, POSITIVE) if facts.get(name) is not None)


TEXT, TEXT_DIGEST = "forgetting_text", "forgetting_text_sha256"
"""Facts of a run that measures forgetting: the name of the text and its SHA-256."""
MODEL_DIGEST = "model_sha256"
"""Fact of a run: the SHA-256 of its base model's files (`craft.models.files`)."""


@dataclass(frozen=True)
class Counts:
    """What a method costs, counted from the model that trains. Fields that are only known after training are None before it.

    `trainable_parameters` are those that train outside the head, the adapter's or a whole model's.
    """

    trainable_parameters: int
    head_parameters: int
    total_parameters: int
    adapter_bytes: int
    optimizer_bytes: int | None = None
    peak_memory_bytes: int | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None

    def known(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def cut_to(self, size: int) -> Counts:
        """Computes the counts before training of an adapter cut to at most `size` parameters."""
        total = self.total_parameters - self.trainable_parameters + size
        return Counts(size, self.head_parameters, total, self.adapter_bytes)


@dataclass(frozen=True)
class Outlook:
    """How far a run is: what it does (`step 120/300`, `scoring 300/872 (search)`), the share of its whole work that is done,
    scoring included, and the seconds left once a pace is known."""

    phase: str
    share: float
    seconds_left: float | None


@dataclass(frozen=True)
class Progress:
    """One evaluation of a running run; without `metrics`, only the checkpoint of a run that leaves its machine (`Leave`).

    `metrics` belong to `step`; `points` are the training points since the last report, each with its own `step`;
    `checkpoint` is a folder from which the run can be resumed (adapter, head, optimizer; never the frozen base).
    """

    step: int
    total_steps: int
    epoch: float
    metrics: dict[str, float]
    points: list[dict[str, float]] = field(default_factory=list)
    checkpoint: Path | None = None


@dataclass(frozen=True)
class RunResult:
    """A finished run: `metrics` hold `score` and its companions on the reported split; `adapter` is a folder that PEFT loads.

    `notes` are things a reader must know (`collapsed to one class`); `facts` are strings such as data fingerprints. `cuts` are
    the smaller adapters that were cut from it, in the order in which they were asked for, or why one failed; their `seconds`
    are those of cutting, training on and scoring. `phases` say what the last process spent its time on (`craft.trainer.meter`).
    """

    metrics: dict[str, float]
    counts: Counts
    adapter: Path
    best_step: int
    steps: int
    seconds: float
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    cuts: list[RunResult | RunFailed] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)


Train: TypeAlias = Callable[..., RunResult]
"""Trains as `craft.trainer.training.train_run` does, and takes what that takes."""


class Unavailable(ValueError):
    """A run needs something that is not here now: a model's files, data, a device, a package. Elsewhere or later it may be."""


class ModelUnavailable(Unavailable):
    """A model or a part of it is not available here."""


class ModelUnsuited(ValueError):
    """The model is here, and cannot do what the run asks of it."""


class Leave(Exception):
    """What `on_step` raises to end a run early without loss: the run first writes and reports a checkpoint of the very step."""


class RunFailed(RuntimeError):
    """The run would fail again if it were repeated (NaN loss, a rank above a dimension)."""


class RunPrevented(RunFailed):
    """The run itself is in order, but something that it needs is `Unavailable`: another machine or a later try may do."""


_WORDS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad alloc",
    "status alloc failed",
    "nvml success",
)
"""Words of torch, the system, cuBLAS and cuDNN for memory that ran out; `nvml success` is torch's on MIG slices."""


class OutOfMemory(MemoryError):
    """The host or the GPU has no memory left for this run; `TrainingSettings.in_smaller_batches` may make it fit.

    `scoring`: memory ran out in an evaluation, so smaller batches there are enough.
    """

    scoring = False


@contextmanager
def name_memory_errors(purpose: str, *, scoring: bool = False) -> Iterator[None]:
    """Turns the several ways to run out of memory into `OutOfMemory`."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        named = OutOfMemory(f"out of memory with {purpose}: {' '.join(str(error).split())[:200]}")
        named.scoring = scoring
        raise named from error


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether host or GPU memory ran out, by the words of torch, Python or the system."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(word in str(error).lower().replace("_", " ") for word in _WORDS))
    )
