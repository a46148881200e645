"""Prepares what trials share on one machine, once: model files and data.

A missing model or a data file without a column is found here, where it costs nothing, and not in every trial. Trials find the
prepared files in the caches on disk. The first trial that needs a decomposition makes it, under the lock of its cache; on a
cluster each machine's first trial also fetches what is not there yet, and each trial compares its data with the driver's
(`Shared`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from craft.methods import METHODS
from craft.methods.method import refuse_elsewhere
from craft.results import Unavailable
from craft.spec import RunSpec
from orchestrator.plan.trial import PlannedTrial


@dataclass(frozen=True)
class Shared:
    """What workers know of the preparation: the fingerprints of data and model."""

    fingerprints: Mapping[str, str]

    @contextmanager
    def checked(self, run: RunSpec) -> Iterator[None]:
        """Refuses data or a model that the sweep does not have; keeps the code inside from asking the hub for a model that is
        on this machine's disk."""
        from craft.models.files import model_digest, offline, resolve_model, weights_on_disk
        from craft.tasks.splits import load_raw

        here = {
            run.model: model_digest(run.model, run.revision),
            run.task: load_raw(run.task_row, run.data).fingerprint,
        }
        for name, digest in here.items():
            if digest is not None and self.fingerprints.get(name, digest) != digest:
                raise Unavailable(
                    f"{socket.gethostname()} has other files of {name} than the sweep ({digest[:12]} here, "
                    f"{self.fingerprints[name][:12]} there): put the same files on all machines, and leave them as they are"
                )
        with offline() if weights_on_disk(resolve_model(run.model, run.revision), run.revision) else nullcontext():
            yield


def prepare(trials: Sequence[PlannedTrial], *, elsewhere: bool = False) -> dict[str, str]:
    """Reads every task's data and fetches the models, each once. Raises ValueError for what is missing or wrong.

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
    from craft.tasks.splits import load_splits

    runs = [trial.run for trial in trials]
    tasks = {run.task: run for run in runs}.values()
    bases = {(run.model, run.revision, run.training.precision): run for run in runs}.values()
    for name in () if elsewhere else dict.fromkeys(run.method for run in runs):
        refuse_elsewhere(METHODS[name])
    texts = [run.measure.forgetting for run in tasks if run.measure.forgetting is not None]
    digests = {text.name: text_digest(text) for text in texts}
    fingerprints = {run.task: load_splits(run.task_row, run.data, protocol=run.protocol).fingerprint for run in tasks}
    for run in tasks:
        if run.task.startswith("custom/"):
            own = run.data.custom[run.task.removeprefix("custom/")]
            check_texts(own, load_tokenizer(run.model, revision=run.revision), run.data.generation)
    for run in bases:
        _prepare_base(run, elsewhere)
    models = {run.model: model_digest(run.model, run.revision) for run in bases}
    return fingerprints | digests | {name: digest for name, digest in models.items() if digest is not None}


def _prepare_base(run: RunSpec, elsewhere: bool) -> None:
    from craft.models.files import fetch_weights, resolve_model
    from craft.models.loading import load_config, load_model, load_tokenizer

    task = run.task_row
    # Trials with another method may have the same base: as it is stored, whatever the method of this run is.
    described = replace(run.base(task.kind, task.labels), master_weights=False, quantization=None)
    load_config(described)
    load_tokenizer(run.model, revision=run.revision)
    if elsewhere:
        return
    try:
        if not fetch_weights(resolve_model(run.model, run.revision), run.revision):
            load_model(described)
    except OSError as error:
        raise Unavailable(f"model {run.model}: its weights cannot be fetched: {' '.join(str(error).split())[:300]}") from error
