"""A prepared run while it trains, its evaluations, its checkpoints, the weights selected so far; and its end: `finish`.

evaluation  ->  search scores  ->  best weights kept  ->  checkpoint  ->  report
leaving     ->  checkpoint of the step  ->  report        on another machine: the evaluation that is due, then the next step
end         ->  best weights  ->  reported splits, one test after the other  ->  adapter, result
cuts        ->  the adapter cut to each size  ->  trained on  ->  scored  ->  its own adapter and result
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from craft.models.adapters import save_basis, take_basis
from craft.processes import current
from craft.results import (
    CUTS_FOLDER,
    MODEL_DIGEST,
    PREDICTIONS_FOLDER,
    TEXT_DIGEST,
    Leave,
    OutOfMemory,
    Progress,
    RunFailed,
    RunPrevented,
    RunResult,
    name_memory_errors,
)
from craft.scoring.forgetting import Forgetting
from craft.scoring.predictions import Reported
from craft.scoring.scorer import Scorer
from craft.spec import BUDGET, RECOVERY, RunSpec
from craft.tasks.task import Task
from craft.trainer import cuts
from craft.trainer.adapter_folder import copy_trainable, restore_trainable, save_adapter
from craft.trainer.checkpoint import STATE_FILE, list_checkpoints, write_folder
from craft.trainer.counting import count, optimizer_bytes
from craft.trainer.loop import Loop, epochs_after
from craft.trainer.meter import Meter
from craft.trainer.pace import CUT_STEPS, Pace
from craft.trainer.process import UNREPEATABLE

_BEST_FILE = "best.safetensors"
_KEPT_CHECKPOINTS = 2
_READ = {
    "data_fingerprint": "the task's data have",
    MODEL_DIGEST: "the base model (weights, configuration or tokenizer) has",
    TEXT_DIGEST: "the text of `forgetting` has",
}


@dataclass
class Best:
    """The evaluation selected so far: its metrics and facts, with its trainable weights in CPU memory."""

    score: float = float("-inf")
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    weights: dict[str, Tensor] | None = None


@dataclass
class Run:
    """A prepared run: everything that its evaluations, its checkpoints and its end need.

    `send` and `on_step` are the callbacks of `train_run`. `pace` is there once it trains.
    """

    spec: RunSpec
    task: Task
    model: Any
    scorer: Scorer
    loop: Loop
    directory: Path
    meter: Meter
    facts: dict[str, Any]
    notes: list[str]
    forgetting: Forgetting | None = None
    cuts: Sequence[int] = ()
    best: Best = field(default_factory=Best)
    seconds_before: float = 0.0
    resumed_at: list[int] = field(default_factory=list)
    checkpoint: Path | None = None
    evaluation_due: bool = False
    send: Callable[[Progress], None] = lambda _progress: None
    on_step: Callable[[int, int], None] = lambda _step, _total: None
    pace: Pace | None = None

    def train(self) -> None:
        """Makes the steps that are left, with the evaluations between them."""
        loop, training, passes = self.loop, self.spec.training, self.scorer.passes
        pace = self.pace = Pace(
            loop.total,
            training.batch_size * training.gradient_accumulation,
            loop.evaluated_at,
            {"search": passes["search"]} if self.spec.search_only else passes,
            cuts=len(self.cuts),
            recovery=math.ceil(RECOVERY * loop.total),
            step=loop.step,
            due=self.evaluation_due,
        )
        if self.evaluation_due:
            self._evaluate(pace)
        with self.meter.phase("train"):
            for step in loop.train():
                pace.end_step(step)
                try:
                    self._report_step()
                except Leave:
                    self._leave()  # an evaluation may take longer than the machine stays; the resumed run makes up for it
                    raise
                if step in loop.evaluated_at:
                    self._evaluate(pace)

    def follow(self, work: str, done: int, total: int) -> None:
        """Counts what `craft.watch.watch` reports. Where that takes long, answers in words and a cut's steps, the last step is
        reported again, so that the run can leave there."""
        if total and (self.task.kind == "generation" or work == CUT_STEPS) and (self.loop.step or self.resumed_at):
            self._report_step()
        if total and self.pace is not None:
            self.pace.count(work, done, total)

    def _report_step(self) -> None:
        """Calls `on_step` with the last step. All processes leave there if one has to."""
        current().agree_to_leave(lambda: self.on_step(self.loop.step, self.loop.total))

    def _evaluate(self, pace: Pace) -> None:
        """Scores the search split, keeps the weights if they are the ones to select, writes a checkpoint and reports."""
        loop = self.loop
        loop.read_losses()
        try:
            with self.scoring():
                scores = self.scorer.search(self.model)
                metrics = current().ask_first(lambda: scores)
        except Leave:
            self._leave()
            raise
        except OutOfMemory:
            if current().count == 1:  # the others wait in the evaluation
                self.evaluation_due = True  # in smaller batches, with the steps until here
                self._write_checkpoint()
            raise
        self.evaluation_due = False
        if self.spec.training.select == "last" or metrics["search_score"] > self.best.score:
            self.best = Best(metrics["search_score"], loop.step, metrics, self.scorer.searched, copy_trainable(self.model))
        points, loop.points = loop.points, []
        with self.meter.phase("store"):
            self._write_checkpoint()
            self.report(metrics, points)
        pace.end_evaluation()

    def _leave(self) -> None:
        """Writes a checkpoint of the present step and reports it, with no score: there may be no time for one."""
        self.evaluation_due = self.loop.step in self.loop.evaluated_at
        self._write_checkpoint()
        self.report({})

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Names the errors of scoring inside, and leaves no memory of its large batches taken."""
        named = name_memory_errors(f"evaluation batches of {self.spec.training.eval_batch_size} texts", scoring=True)
        try:
            with named, self.meter.phase("score"):
                yield
        except ValueError as error:
            raise RunFailed(f"scoring after step {self.loop.step} failed: {error}") from error
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # trials that share this GPU can have it; the next step needs less

    def report(self, metrics: dict[str, float], points: Sequence[dict[str, float]] = ()) -> None:
        """Reports `metrics` and the last checkpoint, from the first process."""
        if not current().is_first:
            return
        step, examples = self.loop.step, self.scorer.examples["train_examples"]
        epoch = epochs_after(self.spec.training, examples, step)
        self.send(Progress(step, self.loop.total, epoch, metrics, [*points], self.checkpoint))

    def _write_checkpoint(self) -> None:
        best, step, write = self.best, self.loop.step, self.loop.copy_state()
        if not current().is_first:
            return
        selected = {"score": best.score, "step": best.step, "metrics": best.metrics, "facts": best.facts}
        state = {
            "spec": self.spec.model_dump(mode="json"),
            "step": step,
            "best": None if best.weights is None else selected,
            "evaluation_due": self.evaluation_due,
            "meter": self.meter.state(),
            "seconds": self.seconds_before + time.perf_counter(),
            "resumed_at": self.resumed_at,
            "read": self._digests,
            "unrepeatable": [note for note in self.notes if note.startswith(UNREPEATABLE)],
        }

        def fill(aside: Path) -> None:
            write(aside)
            save_basis(self.model, aside)
            if best.weights is not None and best.step != step:  # otherwise they are those of the checkpoint itself
                save_file(best.weights, aside / _BEST_FILE)
            (aside / STATE_FILE).write_text(json.dumps(state, indent=1), encoding="utf-8")

        self.checkpoint = write_folder(self.directory / f"checkpoint-{step}", fill)
        for folder in list_checkpoints(self.directory)[:-_KEPT_CHECKPOINTS]:
            if folder != self.checkpoint:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _digests(self) -> dict[str, str]:
        """The digests of what the run has read, by their names among the facts."""
        return {name: self.facts[name] for name in _READ if name in self.facts}

    def restore(self, checkpoint: Path, state: dict[str, Any]) -> None:
        """Takes over a checkpoint. Raises RunPrevented if the run has read other data, model or text than before it."""
        earlier_digests, current_digests = state["read"], self._digests
        for name, subject in _READ.items():
            if name in earlier_digests and name in current_digests and earlier_digests[name] != current_digests[name]:
                digests = f"SHA-256 {earlier_digests[name][:12]}, now {current_digests[name][:12]}"
                raise RunPrevented(
                    f"{subject} changed since checkpoint {checkpoint} was written ({digests}): put back what it was, or delete "
                    "the run's checkpoints to train it again from its start"
                )
        try:
            take_basis(self.model, checkpoint)
        except ValueError as error:
            raise RunPrevented(str(error)) from error
        self.loop.restore(checkpoint, state["step"])
        if (best := state["best"]) is not None:
            is_best = best["step"] == state["step"]
            weights = copy_trainable(self.model) if is_best else load_file(checkpoint / _BEST_FILE)
            self.best = Best(best["score"], best["step"], best["metrics"], best["facts"], weights)
        self.evaluation_due, self.checkpoint = state["evaluation_due"], checkpoint
        self.notes += [note for note in state["unrepeatable"] if note not in self.notes]
        self.meter.restore(state["meter"])
        self.seconds_before += state["seconds"]
        self.resumed_at = [*state["resumed_at"], state["step"]]
        if (checkpoint / PREDICTIONS_FOLDER).is_dir():
            shutil.copytree(checkpoint / PREDICTIONS_FOLDER, self.directory / PREDICTIONS_FOLDER)


def finish(run: Run) -> RunResult:
    """Scores the reported splits with the selected weights, once, unless the run only helps to choose; saves the weights as the
    adapter, and cuts that."""
    best, steps = run.best, run.loop.step
    assert best.weights is not None, "a run ends with an evaluation"
    if best.step != steps:
        restore_trainable(run.model, best.weights)
    reported, forgotten = Reported({}, [], {}), dict[str, float]()
    with run.scoring():
        if not run.spec.search_only:
            reported = run.scorer.reported(run.model, run.directory, lambda scores: _keep_predictions(run, scores))
            forgotten = run.forgetting.metrics(run.model) if run.forgetting else {}
        costs = run.meter.costs()
    metrics = best.metrics | reported.metrics | forgotten
    describe = run.spec.row.describe
    if describe is not None:
        metrics |= describe(run.model)
    notes, facts = [*run.notes, *reported.notes], run.facts | best.facts | reported.facts
    facts |= {"resumed_at": run.resumed_at} if run.resumed_at else {}
    if run.loop.optimizer is not None:
        costs["optimizer_bytes"] = optimizer_bytes(run.loop.optimizer)
    counts = replace(count(run.model), **costs)  # type: ignore[arg-type]
    record = {
        "spec": run.spec.model_dump(mode="json"),
        "kind": run.task.kind,
        "labels": list(run.task.labels),
        "metrics": metrics,
        "counts": counts.known(),
        "best_step": best.step,
        "notes": notes,
        "facts": facts,
    }
    with run.meter.phase("store"):
        adapter = save_adapter(run.model, run.directory / "adapter", record)
    seconds = run.seconds_before + time.perf_counter()
    with run.meter.phase("cut"):
        smaller = [_cut(run, size) for size in run.cuts]
    return RunResult(metrics, counts, adapter, best.step, steps, seconds, notes, facts, smaller, run.meter.phases)


def _keep_predictions(run: Run, scores: dict[str, float]) -> None:
    """Seals the predictions of the tests scored so far into the last checkpoint, and reports it."""
    last = run.checkpoint
    if not current().is_first:
        return
    assert last is not None, "a run is scored after its last evaluation"

    def fill(aside: Path) -> None:
        shutil.copytree(last, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(PREDICTIONS_FOLDER))
        shutil.copytree(run.directory / PREDICTIONS_FOLDER, aside / PREDICTIONS_FOLDER)

    run.checkpoint = write_folder(run.directory / last.name, fill)
    run.report(run.best.metrics | scores)


def _cut(run: Run, size: int) -> RunResult | RunFailed:
    """Cuts the adapter to `size` parameters, trains it on and scores it, as a second adapter of the model.

    Returns why the cut failed if it did: that says nothing against the adapter and its other sizes.
    """
    began, place, adapter = time.perf_counter(), run.directory / CUTS_FOLDER / str(size), run.directory / "adapter"
    place.mkdir(parents=True)
    smaller = current().ask_first(lambda: cuts.cut(adapter, f"{BUDGET}{size}", RECOVERY))
    try:
        with cuts.attached(run.model, smaller.tensors, smaller.config):
            cuts.recover(run.model, smaller.run, smaller.tensors, run.task, run.scorer, run.meter)
            with run.scoring():
                cuts.score(smaller, run.model, run.scorer, place, run.forgetting)
    except RunPrevented:
        raise
    except RunFailed as error:
        if current().count > 1:
            raise
        return error
    if current().is_first:
        cuts.write(smaller, adapter, place / "adapter")
    return smaller.result(place / "adapter", began)
