"""A prepared run: its evaluations, its checkpoints, the weights selected so far, and its end.

    evaluation  ->  search scores  ->  best weights kept  ->  checkpoint  ->  report
    leaving     ->  checkpoint of the step  ->  report        on another machine: the evaluation that is due, then the next step
    end         ->  best weights   ->  reported splits, one test after the other  ->  adapter, result
    sizes       ->  the adapter cut to each  ->  trained on  ->  search split, reported splits  ->  its own adapter and result

`craft.trainer.training` prepares it.
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
from torch import Tensor, nn

from craft.factors.ticking import tick
from craft.methods import find_method
from craft.models.gguf import MODEL_DIGEST
from craft.models.quiet import quiet_libraries
from craft.results import (
    PREDICTIONS_FOLDER,
    SIZES_FOLDER,
    TEXT_DIGEST,
    Leave,
    Progress,
    RunFailed,
    RunPrevented,
    RunResult,
    SizeResult,
)
from craft.scoring.forgetting import Forgetting
from craft.scoring.scorer import Scorer
from craft.scoring.texts import Tick
from craft.spec import RECOVERY, RunSpec
from craft.tasks.task import Task
from craft.trainer.adapter_folder import TRAINABLE_FILE, restore_trainable, save_adapter, trainable_state
from craft.trainer.checkpoint import CheckpointCorrupt, verify, write_folder
from craft.trainer.counting import count, optimizer_bytes
from craft.trainer.cutting import Cut, cut_adapter
from craft.trainer.hf_trainer import RunTrainer
from craft.trainer.memory import memory_errors_named
from craft.trainer.meter import Meter
from craft.trainer.pace import Pace
from craft.trainer.process import UNREPEATABLE
from craft.trainer.recovery import recover
from craft.trainer.rescoring import score_model, size_result

BEST_FILE = "best.safetensors"
STATE_FILE = "state.json"
_TRAINERS_FILES = (TRAINABLE_FILE, "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
_KEPT_CHECKPOINTS = 2
CUT_ADAPTER = "cut"
_READ = {
    "data_fingerprint": "the task's data have",
    MODEL_DIGEST: "the model's GGUF file has",
    TEXT_DIGEST: "the text of `forgetting` has",
}


@dataclass
class Best:
    """The evaluation selected so far, with its trainable weights in CPU memory."""

    score: float = float("-inf")
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Tensor] | None = None


@dataclass
class Listener:
    """The callbacks that follow a run. `step` is the last optimizer step and the number of steps."""

    report: Callable[[Progress], None] = lambda _progress: None
    on_step: Callable[[int, int], None] = lambda _step, _total: None
    on_score: Tick = lambda _what, _done, _total: None
    step: tuple[int, int] | None = None
    pace: Pace | None = None

    def stepped(self, step: int, total: int) -> None:
        self.step = step, total
        if self.pace is not None:
            self.pace.stepped(step)
            self.pace.tell()
        self.on_step(step, total)

    def scored(self, what: str, done: int, total: int) -> None:
        """Reports more scored examples of a split."""
        if self.pace is not None:
            self.pace.scored(what, done, total)
            self.pace.tell()
        self.on_score(what, done, total)

    def recovered(self, step: int, total: int) -> None:
        """A step of a cut adapter's recovery is done. Repeats the run's last step, as `answered` does."""
        if self.pace is not None:
            self.pace.recovered(step, total)
            self.pace.tell()
        if self.step is not None:
            self.on_step(*self.step)

    def answered(self, what: str, done: int, total: int) -> None:
        """Like `scored`, for slow scoring such as generation. Repeats the last step, so that a watchdog sees that the run is
        alive; before the first step it ticks."""
        if self.step is not None:
            self.on_step(*self.step)
        else:
            tick()
        self.scored(what, done, total)


@dataclass
class Run:
    """A prepared run: everything the evaluation, the checkpoints and the end of a run need."""

    spec: RunSpec
    task: Task
    model: nn.Module
    scorer: Scorer
    directory: Path
    meter: Meter
    listener: Listener
    facts: dict[str, Any]
    notes: list[str]
    forgetting: Forgetting | None = None
    sizes: Sequence[int] = ()
    best: Best = field(default_factory=Best)
    seconds_before: float = 0.0
    resumed_at: list[int] = field(default_factory=list)
    checkpoint: Path | None = None
    optimizer_bytes: int | None = None
    evaluation_due: bool = False
    trainer: RunTrainer = field(init=False)
    pace: Pace = field(init=False)

    def evaluate(self) -> None:
        """Scores the search split, keeps the weights if they are the ones to select, writes a checkpoint and reports."""
        trainer = self.trainer
        step = trainer.state.global_step
        try:
            with self._scoring():
                metrics = self.scorer.search(self.model)
        except ValueError as error:
            raise RunFailed(f"training diverged by step {step}: {error}") from error
        except Leave:
            self.leave()
            raise
        self.evaluation_due = False
        if self.spec.training.select == "last" or metrics["search_score"] > self.best.score:
            self.best = Best(metrics["search_score"], step, metrics, trainable_state(self.model))
        if trainer.optimizer is not None:
            self.optimizer_bytes = optimizer_bytes(trainer.optimizer)
        points, trainer.points = trainer.points, []
        with self.meter.phase("store"):
            self._write_checkpoint()
            self._report(metrics, points)
        self.pace.evaluated()

    def begins(self) -> None:
        """From here on the run measures its pace."""
        trainer = self.trainer
        self.pace = self.listener.pace = Pace(
            trainer.args.max_steps,
            self.spec.training.batch_size * self.spec.training.gradient_accumulation,
            sorted(trainer.evaluated_at),
            self.scorer.passes,
            cuts=len(self.sizes),
            recovery=math.ceil(RECOVERY * trainer.args.max_steps),
            step=trainer.state.global_step,
            due=self.evaluation_due,
        )

    def leave(self) -> None:
        """Writes a checkpoint of the present step and reports it, with no score: there may be no time for one."""
        state = self.trainer.state
        self.evaluation_due = state.global_step in self.trainer.evaluated_at
        self._write_checkpoint()
        self._report({}, [])

    def _write_checkpoint(self) -> None:
        step = self.trainer.state.global_step
        self.checkpoint = write_folder(self.directory / f"checkpoint-{step}", self._fill)
        for old in _older_checkpoints(self.directory, step):
            shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """Around the scoring of a split: names its memory errors, and leaves no memory of its large batches taken."""
        named = memory_errors_named(f"evaluation batches of {self.spec.training.eval_batch_size} texts", scoring=True)
        with named, self.meter.phase("score"):
            yield
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # trials that share this GPU can have it; the next step needs less

    def _report(self, metrics: dict[str, float], points: list[dict[str, float]]) -> None:
        state = self.trainer.state
        epoch, steps = float(state.epoch or 0.0), self.trainer.args.max_steps
        self.listener.report(Progress(state.global_step, steps, epoch, metrics, points, self.checkpoint))

    def _fill(self, aside: Path) -> None:
        trainer, best = self.trainer, self.best
        if trainer.optimizer is not None:
            trainer.save_state_to(aside)
        elif self.checkpoint is None:  # nothing trains
            save_file(trainable_state(self.model), aside / TRAINABLE_FILE)
        else:  # not trained since the checkpoint that this run was resumed from
            for name in _TRAINERS_FILES:
                if (self.checkpoint / name).is_file():
                    shutil.copy(self.checkpoint / name, aside)
        step = trainer.state.global_step
        if best.weights is not None and best.step != step:  # otherwise they are those of the checkpoint itself
            save_file(best.weights, aside / BEST_FILE)
        selected = {"score": best.score, "step": best.step, "metrics": best.metrics}
        content = {
            "spec": self.spec.model_dump(mode="json"),
            "step": step,
            "epoch": trainer.state.epoch,
            "best": None if best.weights is None else selected,
            "evaluation_due": self.evaluation_due,
            "points": trainer.points,
            "meter": self.meter.state(),
            "optimizer_bytes": self.optimizer_bytes,
            "seconds": self.seconds_before + time.perf_counter(),
            "resumed_at": self.resumed_at,
            "read": self._read,
            "unrepeatable": [note for note in self.notes if note.startswith(UNREPEATABLE)],
        }
        (aside / STATE_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")

    @property
    def _read(self) -> dict[str, str]:
        """What the run has read, by the name of its digest among the facts."""
        return {name: self.facts[name] for name in _READ if name in self.facts}

    def restore(self, checkpoint: Path, content: dict[str, Any]) -> None:
        """Takes over a checkpoint's state; Trainer restores its own part when it starts.

        Raises:
            RunPrevented: the run has read other data, another GGUF file or another text than it did before the checkpoint.
        """
        before, now = content.get("read", {}), self._read
        for name, what in _READ.items():
            if name in before and name in now and before[name] != now[name]:
                digests = f"SHA-256 {before[name][:12]}, now {now[name][:12]}"
                raise RunPrevented(
                    f"{what} changed since checkpoint {checkpoint} was written ({digests}): put back what it was, or delete "
                    "the run's checkpoints to train it anew"
                )
        restore_trainable(self.model, load_file(checkpoint / TRAINABLE_FILE))
        if (best := content["best"]) is not None:
            own = best["step"] == content["step"]
            weights = trainable_state(self.model) if own else load_file(checkpoint / BEST_FILE)
            self.best = Best(best["score"], best["step"], best["metrics"], weights)
        self.evaluation_due, self.trainer.points = content.get("evaluation_due", False), content.get("points", [])
        self.notes += [note for note in content["unrepeatable"] if note not in self.notes]
        self.meter.restore(content["meter"])
        self.optimizer_bytes = content.get("optimizer_bytes")
        self.seconds_before += content["seconds"]
        self.resumed_at = [*content["resumed_at"], content["step"]]
        self.trainer.state.global_step = content["step"]
        self.trainer.state.epoch = content.get("epoch") or 0.0
        self.listener.step = content["step"], self.trainer.args.max_steps
        self.checkpoint = checkpoint
        if (checkpoint / PREDICTIONS_FOLDER).is_dir():
            shutil.copytree(checkpoint / PREDICTIONS_FOLDER, self.directory / PREDICTIONS_FOLDER)

    def _keep(self, scores: dict[str, float]) -> None:
        """Seals the predictions of the tests scored so far into the last checkpoint, and reports it."""
        last, folder = self.checkpoint, self.directory / PREDICTIONS_FOLDER
        assert last is not None, "a run is scored after its last evaluation"

        def fill(aside: Path) -> None:
            shutil.copytree(last, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(PREDICTIONS_FOLDER))
            shutil.copytree(folder, aside / PREDICTIONS_FOLDER)

        self.checkpoint = write_folder(self.directory / f"checkpoint-{self.trainer.state.global_step}", fill)
        self._report(self.best.metrics | scores, [])

    def finish(self) -> RunResult:
        """Scores the reported splits with the selected weights, once, saves them as the adapter, and cuts that to the sizes."""
        assert self.best.weights is not None, "a run ends with an evaluation"
        steps = self.trainer.state.global_step
        if self.best.step != steps:
            restore_trainable(self.model, self.best.weights)
        facts = self.facts | ({"resumed_at": self.resumed_at} if self.resumed_at else {})
        try:
            with self._scoring():
                reported = self.scorer.reported(self.model, self.directory, self._keep)
                forgotten = self.forgetting.metrics(self.model) if self.forgetting else {}
                measured = dict(self.meter.costs())
        except ValueError as error:
            raise RunFailed(f"training diverged: {error}") from error
        metrics = self.best.metrics | reported.metrics | forgotten
        describe = find_method(self.spec.method).describe
        if describe is not None:
            metrics |= describe(self.model)
        notes, facts = [*self.notes, *reported.notes], facts | reported.facts
        if self.optimizer_bytes is not None:
            measured["optimizer_bytes"] = self.optimizer_bytes
        counts = replace(count(self.model), **measured)  # type: ignore[arg-type]
        record = {
            "spec": self.spec.model_dump(mode="json"),
            "kind": self.task.kind,
            "labels": list(self.task.labels),
            "metrics": metrics,
            "counts": counts.known(),
            "best_step": self.best.step,
            "notes": notes,
            "facts": facts,
        }
        with self.meter.phase("store"):
            adapter = save_adapter(self.model, self.directory / "adapter", record)
        seconds = self.seconds_before + time.perf_counter()
        with self.meter.phase("cut"):
            sizes = [self._cut(size) for size in self.sizes]
        return RunResult(metrics, counts, adapter, self.best.step, steps, seconds, notes, facts, sizes, self.meter.phases)

    def _cut(self, size: int) -> SizeResult:
        """The adapter cut to so many parameters, trained on and scored as a second adapter of the model."""
        began, place = time.perf_counter(), self.directory / SIZES_FOLDER / str(size)
        place.mkdir(parents=True)
        folder = place / "adapter"
        spec = cut_adapter(self.directory / "adapter", Cut(parameters=size, recovery=RECOVERY), folder)
        model: Any = self.model
        with quiet_libraries():
            model.load_adapter(str(folder), CUT_ADAPTER, is_trainable=True)
            model.set_adapter(CUT_ADAPTER)
            recover(model, CUT_ADAPTER, folder, spec, self.task, self.scorer, self.meter, self.listener.recovered)
            with self._scoring():
                score_model(folder, place, model, self.scorer, self.forgetting)
            model.set_adapter("default")
            model.delete_adapter(CUT_ADAPTER)
        return size_result(folder, began)


def read_checkpoint(folder: Path, spec: RunSpec) -> dict[str, Any]:
    """Reads the state of the run that a checkpoint holds.

    Raises:
        CheckpointCorrupt: the folder is not what was written.
        RunFailed: the checkpoint belongs to another run.
    """
    verify(folder)
    try:
        content = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        theirs = RunSpec.model_validate(content["spec"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointCorrupt(f"checkpoint {folder} has no readable {STATE_FILE}") from error
    if _without_micro_batch(theirs) != _without_micro_batch(spec):
        raise RunFailed(f"checkpoint {folder} belongs to another run (key {theirs.key}, not {spec.key})")
    return content


def _without_micro_batch(spec: RunSpec) -> dict[str, Any]:
    training = spec.training.model_dump()
    effective_batch = training.pop("batch_size") * training.pop("gradient_accumulation")
    del training["eval_batch_size"]
    return spec.identity() | {"training": training, "effective_batch": effective_batch}


def _older_checkpoints(directory: Path, step: int) -> list[Path]:
    steps = {int(path.name.removeprefix("checkpoint-")): path for path in directory.glob("checkpoint-*")}
    return [steps[known] for known in sorted(steps)[:-_KEPT_CHECKPOINTS] if known != step]
