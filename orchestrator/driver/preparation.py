"""Prepares what trials share on one machine, once: model files, data, decompositions of stacks and of single weights.

    trials --needs_of--> Needs (plain, small, the same for all machines) --prepare--> files in the machine's caches

A missing model or a data file without a column is found here, where it costs nothing, and not in every trial. Trials find the
prepared files in the caches on disk. No Ray here: on a cluster `orchestrator.tune.preparing` calls `prepare` on each machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from craft.methods import METHODS
from craft.methods.method import BuildContext, refuse_elsewhere
from craft.models.gguf import gguf_digest
from craft.results import Unavailable
from craft.spec import RunSpec
from craft.tasks import find_task
from orchestrator.plan.trial import TrialSpec

if TYPE_CHECKING:
    from torch import nn


MOST_AT_ONCE = 4
"""Weights that are decomposed at the same time: each takes memory for itself, about 1 GB for the largest of an 8B model."""


@dataclass(frozen=True)
class Base:
    """One base model in one precision, and what trials ask of its weights.

    Attributes:
        run: one of the trials' runs; it names model, revision, precision and the kind of head.
        craft: CRAFT's parameters that cover those of all trials: every projection at the largest rank of each mode.
        ranks: projection -> the largest number of singular vectors of each of its weights.
        threads: with how many threads a trial would decompose. LAPACK's last bits depend on it.
        on_gpu: whether the trials' base is on a GPU, where it is decomposed then.
    """

    run: RunSpec
    craft: dict[str, Any] | None
    ranks: dict[str, int]
    threads: int
    on_gpu: bool


@dataclass(frozen=True)
class Needs:
    """What trials share: one run of each task, the base models, the methods by name."""

    tasks: tuple[RunSpec, ...]
    bases: tuple[Base, ...]
    methods: tuple[str, ...]

    @property
    def key(self) -> str:
        """16 hexadecimal digits that are equal for equal needs."""
        runs = [run.model_dump(mode="json") for run in self.tasks]
        bases = [[one.run.model_dump(mode="json"), one.craft, one.ranks, one.threads, one.on_gpu] for one in self.bases]
        return hashlib.sha256(json.dumps([runs, bases, self.methods], sort_keys=True).encode()).hexdigest()[:16]


def needs_of(trials: Sequence[TrialSpec]) -> Needs:
    """What `trials` share. Of two equal models in two precisions each is a base of its own, as their weights differ."""
    by_base: dict[tuple[str, str | None, str], list[TrialSpec]] = {}
    for trial in trials:
        by_base.setdefault((trial.run.model, trial.run.revision, trial.run.training.precision), []).append(trial)
    return Needs(
        tasks=tuple({trial.run.task: trial.run for trial in trials}.values()),
        bases=tuple(_base(some) for some in by_base.values()),
        methods=tuple(dict.fromkeys(trial.run.method for trial in trials)),
    )


def prepare(needs: Needs, cores: int = 1) -> dict[str, str]:
    """Reads every task's data, fetches the models, and decomposes at the largest ranks asked, smaller ones being slices.

    Args:
        cores: so many may be used: on a CPU several weights are decomposed at the same time, each with the threads of a trial.

    Returns:
        The data's fingerprint by task, and the SHA-256 of each model that is a GGUF file, and of the text of `forgetting`, by
        its name.

    Raises:
        ValueError: the model or the data cannot be had, or are wrong, or a method cannot run on this machine.
    """
    from craft.scoring.forgetting import name_of, text_digest
    from craft.tasks.splits import load_splits

    for name in needs.methods:
        refuse_elsewhere(METHODS[name])
    texts = [run.measure.forgetting for run in needs.tasks if run.measure.forgetting is not None]
    digests = {name_of(text): text_digest(text) for text in texts}
    fingerprints = {
        run.task: load_splits(find_task(run.task, run.data), run.data, protocol=run.protocol).fingerprint for run in needs.tasks
    }
    for base in needs.bases:
        _prepare_base(base, cores)
    files = {base.run.model: gguf_digest(base.run.model) for base in needs.bases}
    return fingerprints | digests | {name: digest for name, digest in files.items() if digest is not None}


def _prepare_base(base: Base, cores: int) -> None:
    from craft.models.cached import fetch_weights
    from craft.models.heads import TASK_TYPES
    from craft.models.loading import load_config, load_model, load_tokenizer, resolve_model
    from craft.models.quiet import quiet_libraries

    run, task = base.run, find_task(base.run.task, base.run.data)
    load_config(run.model, task.kind, task.labels, revision=run.revision)
    load_tokenizer(run.model, revision=run.revision)
    try:
        fetched = fetch_weights(resolve_model(run.model, run.revision), run.revision)
    except OSError as error:
        raise Unavailable(f"model {run.model}: its weights cannot be fetched: {' '.join(str(error).split())[:300]}") from error
    if fetched and base.craft is None and not base.ranks:
        return
    kind, device = run.training.precision, "cuda" if base.on_gpu else "cpu"
    model = load_model(run.model, task.kind, task.labels, revision=run.revision, precision=kind, device=device)
    with quiet_libraries():
        _decompose_weights(model, base, cores)
        if base.craft is not None:
            METHODS["craft"].build(
                model, METHODS["craft"].parameters.model_validate(base.craft), BuildContext(TASK_TYPES[task.kind])
            )


def _decompose_weights(model: nn.Module, base: Base, cores: int) -> None:
    """Stores the singular vectors of every weight that a trial's method would ask for."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    import torch

    from craft.factors.svd import default_svd_store
    from craft.factors.ticking import tick
    from craft.tuners.stored_svd import adapted_weights

    wanted: dict[str, tuple[torch.Tensor, int]] = {}
    for projection, rank in base.ranks.items():
        for name, weight in adapted_weights(model, projection).items():
            # A rank above a weight's side is the trial's own mistake, and told there.
            wanted[name] = weight, min(max(rank, wanted.get(name, (weight, 0))[1]), *weight.shape)
    at_once = 1 if base.on_gpu else max(1, min(MOST_AT_ONCE, cores // base.threads))
    before = torch.get_num_threads()
    # Side by side, each with a trial's threads: quicker than one after another with all, and bit for bit what a trial computes.
    with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(base.threads,)) as pool:
        try:
            for done in as_completed([pool.submit(default_svd_store().get, *one, "largest") for one in wanted.values()]):
                done.result()
                tick()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)


def _base(trials: Sequence[TrialSpec]) -> Base:
    """The base that these trials have in common."""
    ranks: dict[str, int] = {}
    cover: dict[str, Any] = {"ranks": [1, 1, 1], "projections": []}
    threads = [max(1, int(one.resources.cpu)) for one in trials if METHODS[one.run.method].singular_vectors]
    for trial in trials:
        asked = trial.run.parameters
        if METHODS[trial.run.method].singular_vectors:
            ranks |= {name: max(asked["rank"], ranks.get(name, 0)) for name in asked["projections"]}
        if trial.run.method in ("craft", "craft_star"):
            cover["ranks"] = [_larger(one, other) for one, other in zip(cover["ranks"], asked["ranks"], strict=True)]
            cover["projections"] += [one for one in asked["projections"] if one not in cover["projections"]]
    return Base(
        run=trials[0].run,
        craft=cover if cover["projections"] else None,
        ranks=ranks,
        threads=min(threads, default=1),
        on_gpu=any(one.resources.gpu > 0 for one in trials),
    )


def _larger(one: int | str, other: int | str) -> int | str:
    return "all" if "all" in (one, other) else max(int(one), int(other))
