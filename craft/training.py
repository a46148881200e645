"""One training run, from a `RunSpec` to a scored adapter on disk: `train_run`.

    model + head -> method -> train ── evaluation every n epochs ──> report(Progress with a checkpoint)
                                              │                        keep the best trainable weights
                                              └── selected weights ──> reported split, once ──> RunResult

Selection sees the search split only. Under the `honest` protocol that split is carved from the training data and the reported
split is scored once, when all is decided; under `customary` both are the public dev set. The same spec gives the same numbers
in any process, warm or fresh, and a run resumed from one of its checkpoints ends where an undisturbed one does, bit for bit.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import craft
from craft.adapters import TRAINABLE_FILE, restore_trainable, save_adapter, trainable_state
from craft.checkpoint import CheckpointCorrupt, newest_valid, verify, write_folder
from craft.encoding import Collator, EncodedSplits, encode, longest_input
from craft.evaluation import LOSSES, collapse_note, predict, reported_metrics, search_metrics
from craft.loop import RunTrainer, total_steps
from craft.measure import Meter, count, optimizer_bytes
from craft.methods import BuildContext, find_method
from craft.models import TASK_TYPES, load_model, load_tokenizer, quiet_libraries
from craft.parallel import Team
from craft.process import OutOfMemory, memory_errors_named, own_process_state
from craft.results import Progress, RunFailed, RunResult
from craft.spec import RunSpec, TrainingSettings
from craft.tasks import Task, find_task
from craft.tasks.splits import load_splits

__all__ = ["CheckpointCorrupt", "OutOfMemory", "StopRun", "join_run", "newest_valid", "smaller_micro_batch", "train_run"]

BEST_FILE = "best.safetensors"
RUN_FILE = "run.json"
PREDICTIONS_FILE = "predictions.safetensors"
_KEPT_CHECKPOINTS = 2


class StopRun(Exception):
    """Raised by `report` to end a run early; it passes through `train_run`, and the last checkpoint stays."""


def train_run(
    spec: RunSpec,
    directory: Path,
    *,
    report: Callable[[Progress], None] = lambda _progress: None,
    resume_from: Path | None = None,
    on_step: Callable[[int, int], None] = lambda _step, _total: None,
    team: Team | None = None,
) -> RunResult:
    """Trains, scores and saves one run.

    Writes `directory/adapter` (see `craft.adapters`), `directory/predictions.safetensors` (the outputs behind the score) and,
    at every evaluation, `directory/checkpoint-STEP`, of which the newest two stay.

    Args:
        spec: the run.
        directory: made if it is not there.
        report: called after every evaluation on the search split, the last included.
        resume_from: a checkpoint of the same run, perhaps from another machine. Its micro-batch may differ, its effective
            batch may not.
        on_step: called after every optimizer step with its number and that of the last.
        team: the other processes that train this run too, by `join_run`; this one is its rank 0.

    Raises:
        RunFailed: the run cannot succeed: the loss is not finite, the model lacks a projection, the data are wrong, or the
            checkpoint is another run's. The message is the reason.
        OutOfMemory: host or GPU memory ran out.
        CheckpointCorrupt: `resume_from` is not what was written.
        MemberLost: another process of the team is gone.
        StopRun: whatever `report` raised.
    """
    with _guarded(spec):
        return _trained(spec, directory, report, resume_from, on_step, team).finish()


def join_run(spec: RunSpec, directory: Path, team: Team, *, resume_from: Path | None = None) -> None:
    """Trains the run of `team`'s rank 0 with it, as another of its ranks; nothing is scored, reported or kept here.

    Raises:
        RunFailed, OutOfMemory, CheckpointCorrupt, MemberLost: as in `train_run`.
    """
    with _guarded(spec):
        _trained(spec, directory, lambda _progress: None, resume_from, lambda _step, _total: None, team)


@contextmanager
def _guarded(spec: RunSpec) -> Iterator[None]:
    micro_batch = f"micro-batches of {spec.training.batch_size} x {spec.training.max_length} tokens"
    with own_process_state(), memory_errors_named(micro_batch), quiet_libraries():
        yield


def _trained(
    spec: RunSpec,
    directory: Path,
    report: Callable[[Progress], None],
    resume_from: Path | None,
    on_step: Callable[[int, int], None],
    team: Team | None,
) -> _Run:
    began = time.perf_counter()
    meter = Meter()
    resumed = None if resume_from is None else _read_checkpoint(resume_from, spec)
    try:
        run = _prepare(spec, directory, meter, report, on_step, team)
    except ValueError as error:
        raise RunFailed(str(error)) from error
    run.seconds_before = -began
    if resumed is not None and resume_from is not None:
        run.restore(resume_from, resumed)
    if team is not None:
        team.align(list(run.model.parameters()))
    if resumed is None or resumed["step"] < run.trainer.args.max_steps:
        run.trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
    return run


def smaller_micro_batch(training: TrainingSettings) -> TrainingSettings | None:
    """The same effective batch from micro-batches of half the size; None where a micro-batch is odd and cannot be halved."""
    if training.batch_size % 2:
        return None
    halved = {"batch_size": training.batch_size // 2, "gradient_accumulation": training.gradient_accumulation * 2}
    return training.model_copy(update=halved | {"eval_batch_size": max(1, training.eval_batch_size // 2)})


@dataclass
class _Best:
    """The evaluation that selection would take so far, with its trainable weights in CPU memory."""

    score: float = float("-inf")
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] | None = None


@dataclass
class _Run:
    """A prepared run: everything the evaluation, the checkpoints and the end of a run need."""

    spec: RunSpec
    task: Task
    model: nn.Module
    data: EncodedSplits
    collator: Collator
    directory: Path
    meter: Meter
    report: Callable[[Progress], None]
    facts: dict[str, Any]
    notes: list[str]
    team: Team | None = None
    best: _Best = field(default_factory=_Best)
    seconds_before: float = 0.0
    resumed_at: list[int] = field(default_factory=list)
    trainer: RunTrainer = field(init=False)

    def evaluate(self, trainer: RunTrainer) -> None:
        """Scores the search split, keeps the weights if they are the ones to select, writes a checkpoint and reports.

        In a team rank 0 does, and the others wait for it.
        """
        if self.team is None or self.team.rank == 0:
            self._evaluate(trainer)
        if self.team is not None:
            self.team.align(list(self.model.parameters()))

    def _evaluate(self, trainer: RunTrainer) -> None:
        step = trainer.state.global_step
        outputs = predict(self.model, self.data.search, self.collator, self.spec.training.eval_batch_size)
        try:
            metrics = search_metrics(self.task, outputs, self.data.search.labels)
        except ValueError as error:
            raise RunFailed(f"training diverged by step {step}: {error}") from error
        if self.spec.training.select == "last" or metrics["search_score"] > self.best.score:
            self.best = _Best(metrics["search_score"], step, metrics, trainable_state(self.model))
        checkpoint = write_folder(self.directory / f"checkpoint-{step}", lambda aside: self._fill(aside, trainer))
        for old in _older_checkpoints(self.directory, step):
            shutil.rmtree(old, ignore_errors=True)
        points, trainer.points = trainer.points, []
        self.report(Progress(step, trainer.state.max_steps, float(trainer.state.epoch or 0.0), metrics, points, checkpoint))

    def _fill(self, aside: Path, trainer: RunTrainer) -> None:
        trainer.save_state_to(aside)
        best = self.best
        if best.weights is not None and best.step != trainer.state.global_step:
            save_file(best.weights, aside / BEST_FILE)
        content = {
            "spec": self.spec.model_dump(mode="json"),
            "step": trainer.state.global_step,
            "best": {"score": best.score, "step": best.step, "metrics": best.metrics},
            "meter": self.meter.state(),
            "seconds": self.seconds_before + time.perf_counter(),
            "resumed_at": self.resumed_at,
        }
        (aside / RUN_FILE).write_text(json.dumps(content, indent=1))

    def restore(self, checkpoint: Path, content: dict[str, Any]) -> None:
        """Takes over what a checkpoint knows; Trainer restores its own part when it starts."""
        restore_trainable(self.model, load_file(checkpoint / TRAINABLE_FILE))
        best = content["best"]
        file = BEST_FILE if best["step"] != content["step"] else TRAINABLE_FILE
        self.best = _Best(best["score"], best["step"], best["metrics"], load_file(checkpoint / file))
        self.meter.restore(content["meter"])
        self.seconds_before += content["seconds"]
        self.resumed_at = [*content["resumed_at"], content["step"]]
        self.trainer.state.global_step = content["step"]

    def finish(self) -> RunResult:
        """Scores the reported split with the selected weights, once, and saves them as the adapter."""
        best, spec = self.best, self.spec
        assert best.weights is not None, "a run ends with an evaluation"
        steps = self.trainer.state.global_step
        if best.step != steps:
            restore_trainable(self.model, best.weights)
        outputs = {
            suffix: predict(self.model, split, self.collator, spec.training.eval_batch_size)
            for suffix, split in self.data.reported.items()
        }
        metrics = best.metrics | reported_metrics(self.task, outputs, self.data.reported)
        describe = find_method(spec.method).describe
        if describe is not None:
            metrics |= describe(self.model)
        note = collapse_note(self.task, outputs)
        notes = [*self.notes, note] if note else self.notes
        measured = dict(self.meter.costs())
        if self.trainer.optimizer is not None:
            measured["optimizer_bytes"] = optimizer_bytes(self.trainer.optimizer)
        counts = replace(count(self.model), **measured)  # type: ignore[arg-type]
        facts = self.facts | ({"resumed_at": self.resumed_at} if self.resumed_at else {})
        record = {
            "spec": spec.model_dump(mode="json"),
            "kind": self.task.kind,
            "labels": list(self.task.labels),
            "metrics": metrics,
            "counts": counts.known(),
            "best_step": best.step,
            "notes": notes,
            "facts": facts,
        }
        adapter = save_adapter(self.model, self.directory / "adapter", record)
        _save_predictions(self.directory / PREDICTIONS_FILE, outputs, self.data)
        seconds = self.seconds_before + time.perf_counter()
        return RunResult(metrics, counts, adapter, best.step, steps, seconds, notes, facts)


def _prepare(
    spec: RunSpec,
    directory: Path,
    meter: Meter,
    report: Callable[[Progress], None],
    on_step: Callable[[int, int], None],
    team: Team | None,
) -> _Run:
    """Loads data and model and puts the method on. Raises ValueError for whatever the user must change."""
    task, training = find_task(spec.task, spec.data), spec.training
    method = find_method(spec.method)
    if method.requires == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"method {spec.method} runs on a CUDA GPU only, and there is none here")
    if task.kind not in LOSSES:
        raise ValueError(f"task {task.name} is of the kind {task.kind!r}; runs train a head for: {', '.join(LOSSES)}")
    splits = load_splits(
        task,
        spec.data,
        protocol=spec.protocol,
        train_examples=training.train_examples,
        eval_examples=training.eval_examples,
    )
    tokenizer = load_tokenizer(spec.model, revision=spec.revision)
    base = load_model(
        spec.model,
        task.kind,
        task.labels,
        revision=spec.revision,
        dtype=training.dtype,
        seed=spec.seed,
        pad_token_id=tokenizer.pad_token_id,
    )
    cut = (spec.protocol, spec.data.search_fraction, training.train_examples, training.eval_examples)
    length = longest_input(training.max_length, tokenizer, base.config)
    data = encode(splits, task, tokenizer, length, key=(spec.model, spec.revision, *cut))
    missing = getattr(base, "craft_missing_weights", [])
    notes = [f"not in the checkpoint, frozen as initialized from the seed: {', '.join(missing)}"] if missing else []
    if training.gradient_checkpointing:
        enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    transformers.set_seed(spec.seed)
    context = BuildContext(TASK_TYPES[task.kind], seed=spec.seed, total_steps=total_steps(training, len(data.train)))
    parameters = method.parameters.model_validate(spec.parameters)
    model = method.build(base, parameters, context)
    for config in getattr(model, "peft_config", {}).values():
        config.revision = spec.revision
    collator = Collator(int(tokenizer.pad_token_id))
    facts = _facts(spec, splits.fingerprint, data) | ({"workers": team.size} if team else {})
    run = _Run(spec, task, model, data, collator, directory, meter, report, facts, notes, team)

    def make_optimizer(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if method.optimizer is None:
            return torch.optim.AdamW(groups)
        return method.optimizer(model, groups, parameters, context)

    run.trainer = RunTrainer(
        model,
        data.train,
        collator,
        kind=task.kind,
        training=training,
        seed=spec.seed,
        directory=directory,
        meter=meter,
        evaluation=run.evaluate,
        on_step=on_step,
        make_optimizer=make_optimizer,
        team=team,
    )
    return run


def _facts(spec: RunSpec, fingerprint: str, data: EncodedSplits) -> dict[str, Any]:
    return {
        "protocol": spec.protocol,
        "data_fingerprint": fingerprint,
        "train_examples": len(data.train),
        "search_examples": len(data.search),
        "reported_examples": sum(len(split) for split in data.reported.values()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine() + " CPU",
        "versions": {
            "craft": craft.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        },
    }


def _read_checkpoint(folder: Path, spec: RunSpec) -> dict[str, Any]:
    verify(folder)
    try:
        content = json.loads((folder / RUN_FILE).read_text())
        theirs = RunSpec.model_validate(content["spec"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointCorrupt(f"checkpoint {folder} has no readable {RUN_FILE}") from error
    if _without_micro_batch(theirs) != _without_micro_batch(spec):
        raise RunFailed(f"checkpoint {folder} belongs to another run (key {theirs.key}, not {spec.key})")
    return content


def _without_micro_batch(spec: RunSpec) -> dict[str, Any]:
    content = spec.model_dump(mode="json")
    training = content["training"]
    training["effective_batch"] = training.pop("batch_size") * training.pop("gradient_accumulation")
    del training["eval_batch_size"]
    return content


def _older_checkpoints(directory: Path, step: int) -> list[Path]:
    steps = {int(path.name.removeprefix("checkpoint-")): path for path in directory.glob("checkpoint-*")}
    return [steps[known] for known in sorted(steps)[:-_KEPT_CHECKPOINTS] if known != step]


def _save_predictions(file: Path, outputs: dict[str, np.ndarray], data: EncodedSplits) -> None:
    tensors = {f"outputs{suffix}": torch.from_numpy(values) for suffix, values in outputs.items()}
    labels = {f"labels{suffix}": torch.from_numpy(split.labels) for suffix, split in data.reported.items()}
    save_file(tensors | labels, file)
