"""Prepares what trials share on one machine, once: model files, data, decompositions of stacks and of single weights.

    trials --needs_of--> Needs (plain, small, the same for all machines) --prepare--> files in the machine's caches

A missing model or a data file without a column is found here, where it costs nothing, and not in every trial. Trials find the
prepared files in the caches on disk. On a cluster each machine's first trial fetches and decomposes what is not there yet,
under the locks of the caches, and each trial compares its data with the driver's (`Shared`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from craft.methods import METHODS
from craft.methods.method import BuildContext, refuse_elsewhere
from craft.results import Unavailable
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.plan.trial import PlannedTrial


@dataclass(frozen=True)
class Base:
    """One base model in one precision, and what trials ask of its weights.

    Attributes:
        run: one of the trials' runs; it names model, revision, precision and the kind of head.
        craft: CRAFT's parameters that cover those of all trials: every projection at the largest rank of each mode.
        on_gpu: whether the trials' base is on a GPU, where they decompose it.
    """

    run: RunSpec
    craft: dict[str, Any] | None
    on_gpu: bool


@dataclass(frozen=True)
class Needs:
    """What trials share: one run of each task, the base models, the methods by name."""

    tasks: tuple[RunSpec, ...]
    bases: tuple[Base, ...]
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Shared:
    """What workers know of the preparation.

    Attributes:
        elsewhere: whether trials run on other machines, whose data may be different.
    """

    fingerprints: Mapping[str, str]
    elsewhere: bool

    @contextmanager
    def there(self, run: RunSpec) -> Iterator[None]:
        """Keeps the code inside from asking the hub for a model that is on this machine's disk."""
        from craft.models.files import model_digest, offline, resolve_model, weights_on_disk

        here = {run.model: model_digest(run.model, run.revision)}
        if self.elsewhere:
            data = RunSpec(model="", task=run.task, method="head", data=run.data, protocol=run.protocol).model_dump_json()
            here[run.task] = _fingerprint_here(data)
        for name, digest in here.items():
            if digest is not None and self.fingerprints.get(name, digest) != digest:
                raise Unavailable(
                    f"{socket.gethostname()} has other data of {name} than the sweep ({digest[:12]} here, "
                    f"{self.fingerprints[name][:12]} there): put the same files on all machines, and leave them as they are"
                )
        with offline() if weights_on_disk(resolve_model(run.model, run.revision), run.revision) else nullcontext():
            yield


def _fingerprint(run: RunSpec) -> str:
    from craft.tasks.splits import load_splits

    return load_splits(find_task(run.task, run.data), run.data, protocol=run.protocol).fingerprint


@cache
def _fingerprint_here(run: str) -> str:
    """Returns the fingerprint of a run's data; a worker reads the same data once for all its trials."""
    return _fingerprint(RunSpec.model_validate_json(run))


def needs_of(trials: Sequence[PlannedTrial]) -> Needs:
    """Returns what `trials` share. A model in two precisions is two bases, because the weights differ."""
    by_base: dict[tuple[str, str | None, str], list[PlannedTrial]] = {}
    for trial in trials:
        by_base.setdefault((trial.run.model, trial.run.revision, trial.run.training.precision), []).append(trial)
    return Needs(
        tasks=tuple({trial.run.task: trial.run for trial in trials}.values()),
        bases=tuple(_base(some) for some in by_base.values()),
        methods=tuple(dict.fromkeys(trial.run.method for trial in trials)),
    )


def prepare(needs: Needs, *, elsewhere: bool = False) -> dict[str, str]:
    """Reads every task's data, fetches the models, and decomposes at the largest ranks asked, smaller ones being slices.

    Trials with a GPU decompose on it themselves: the driver must not hold one.

    Args:
        elsewhere: trials run on other machines: only the data and the model's configuration and tokenizer are looked at here.

    Returns:
        The data's fingerprint by task, and the SHA-256 of each model on this machine, and of the text of `forgetting`, by its
        name.
    """
    from craft.models.files import model_digest
    from craft.models.loading import load_tokenizer
    from craft.scoring.forgetting import text_digest
    from craft.tasks.custom import check_texts

    for name in () if elsewhere else needs.methods:
        refuse_elsewhere(METHODS[name])
    texts = [run.measure.forgetting for run in needs.tasks if run.measure.forgetting is not None]
    digests = {text.name: text_digest(text) for text in texts}
    fingerprints = {run.task: _fingerprint(run) for run in needs.tasks}
    for run in needs.tasks:
        if run.task.startswith("custom/"):
            own = run.data.custom[run.task.removeprefix("custom/")]
            check_texts(own, load_tokenizer(run.model, revision=run.revision), run.data.generation)
    for base in needs.bases:
        _prepare_base(base, elsewhere)
    models = {base.run.model: model_digest(base.run.model, base.run.revision) for base in needs.bases}
    return fingerprints | digests | {name: digest for name, digest in models.items() if digest is not None}


def _prepare_base(base: Base, elsewhere: bool) -> None:
    from craft.models import quiet_libraries
    from craft.models.files import fetch_weights, resolve_model
    from craft.models.heads import TASK_TYPES
    from craft.models.loading import load_config, load_model, load_tokenizer

    run, task = base.run, find_task(base.run.task, base.run.data)
    # Trials with another method may have the same base: as it is stored, whatever the method of this run is.
    described = replace(run.base(task.kind, task.labels), master_weights=False, quantization=None)
    load_config(described)
    load_tokenizer(run.model, revision=run.revision)
    if elsewhere:
        return
    try:
        fetched = fetch_weights(resolve_model(run.model, run.revision), run.revision)
    except OSError as error:
        raise Unavailable(f"model {run.model}: its weights cannot be fetched: {' '.join(str(error).split())[:300]}") from error
    if fetched and (base.on_gpu or base.craft is None):
        return
    model = load_model(described)
    if base.on_gpu or base.craft is None:
        return
    with quiet_libraries():
        METHODS["craft"].build(
            model, METHODS["craft"].parameters.model_validate(base.craft), BuildContext(TASK_TYPES[task.kind])
        )


def _base(trials: Sequence[PlannedTrial]) -> Base:
    cover: dict[str, Any] = {"ranks": [1, 1, 1], "projections": []}
    for trial in trials:
        parameters = trial.run.parameters
        if trial.run.method in ("craft", "craft_star"):
            cover["ranks"] = [_larger(rank, other) for rank, other in zip(cover["ranks"], parameters["ranks"], strict=True)]
            cover["projections"] += [name for name in parameters["projections"] if name not in cover["projections"]]
    gpu = any(trial.resources.gpu > 0 for trial in trials)
    return Base(trials[0].run, cover if cover["projections"] else None, gpu)


def _larger(rank: int | str, other: int | str) -> int | str:
    return "all" if "all" in (rank, other) else max(int(rank), int(other))
