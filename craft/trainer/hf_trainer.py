"""HF `Trainer` as one run needs it: two learning rates, one explicit loss, evaluation at chosen steps, safe checkpoints.

`RunTrainer` keeps Trainer's loop, data order, schedule and resume, and replaces the parts that cost time or hide errors:

- the loss is summed over the examples (or the tokens that a language model learns) of a whole optimizer step and divided by
  their number, so that a step does not depend on how it is cut into micro-batches;
- a loss that is not finite ends the run, and the message names its step, where Trainer would log a made-up average. On a
  CPU the run ends in that step. On a GPU reading a loss makes the host wait, so losses are read when Trainer logs (about a
  hundred times a run), before every evaluation and before every checkpoint: no score and no file comes from broken weights;
- checkpoints hold the parameters that train, by name, whatever the method; Trainer's own files hold the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from craft.models.heads import head_names, is_head
from craft.results import Leave, RunFailed
from craft.scoring.encoding import Collator, TrainingCollator
from craft.scoring.head_scorer import LOSSES
from craft.scoring.positions import chooses_on, loss_at
from craft.scoring.scorer import Scorer
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks.prompts import IGNORED
from craft.tasks.task import Kind, Task
from craft.trainer.adapter_folder import TRAINABLE_FILE, restore_trainable, trainable_state
from craft.trainer.meter import Meter
from craft.trainer.steps import evaluation_steps, make_schedule, total_steps

_POINTS = 100
_MOST_UNREAD = 1000


class PreparedRun(Protocol):
    """What the trainer reads and calls of a run (`craft.trainer.run.Run`)."""

    spec: RunSpec
    task: Task
    model: nn.Module
    scorer: Scorer
    directory: Path
    meter: Meter
    listener: Any

    def evaluate(self) -> None: ...

    def leave(self) -> None: ...


class RunTrainer(Trainer):
    """Trainer for one run. `points` collects `train_loss` and `learning_rate` between two evaluations.

    `reads_freely` says whether the host may read a loss without waiting for the device; where it may not, a step reads nothing.
    """

    def __init__(
        self,
        run: PreparedRun,
        collator: Collator,
        make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        starts: dict[nn.Parameter, torch.Tensor] | None,
    ) -> None:
        """
        Args:
            starts: weights that weight decay pulls to these values, and not to zeros.
        """
        training, kind = run.spec.training, run.task.kind
        split: Any = run.scorer.train  # with a length, and with the `lengths` of its examples
        self.run, self.training, self.meter, self.make_optimizer = run, training, run.meter, make_optimizer
        self.leaving: Leave | None = None
        self._starts = starts or {}
        self.evaluated_at = frozenset(evaluation_steps(training, len(split)))
        self.points: list[dict[str, float]] = []
        self._tokens = 0
        self._unread: list[tuple[int, torch.Tensor]] = []
        self._lengths = split.lengths
        super().__init__(
            model=run.model,
            args=_arguments(training, total_steps(training, len(split)), run.spec.seed, run.directory),
            train_dataset=split,
            compute_loss_func=_Loss(kind),
            callbacks=[_EvaluateAt(self)],
        )
        self.remove_callback(PrinterCallback)
        self.reads_freely = self.args.device.type != "cuda"
        chooses = kind == "generation" and chooses_on(run.model, self.args.device)
        self.data_collator = TrainingCollator(collator, chooses, omits_masks=not self.reads_freely)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW or the method's own optimizer. The adapter's group comes first: Trainer logs the first learning rate."""
        if self.optimizer is None:
            trained = self.run.model
            heads = head_names(trained)
            decays = set(self.get_decay_parameter_names(trained))
            rates = {False: self.training.learning_rate, True: self.training.head_learning_rate or self.training.learning_rate}
            groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
            for name, weight in trained.named_parameters():
                if weight.requires_grad:
                    groups.setdefault((is_head(name, heads), name not in decays), []).append(weight)
            self.optimizer = self.make_optimizer(
                [
                    {"params": weights, "lr": rates[head], "weight_decay": 0.0 if fixed else self.training.weight_decay}
                    for (head, fixed), weights in sorted(groups.items(), key=lambda item: item[0])
                ]
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        if self.lr_scheduler is None:
            scheduled: Any = optimizer or self.optimizer
            self.lr_scheduler = make_schedule(self.training, scheduled, num_training_steps)  # type: ignore[assignment]
        return self.lr_scheduler

    @torch.no_grad()
    def move_starts(self, sign: int) -> None:
        """Before the optimizer's step (-1) it takes the starts off the weights, so that weight decay pulls their difference to
        zero; after it (1) it puts them back."""
        for weight, start in self._starts.items():
            weight.add_(start, alpha=sign)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        self._tokens += inputs.pop("tokens")
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._unread.append((self.state.global_step + 1, loss))
        if self.reads_freely or len(self._unread) >= _MOST_UNREAD:
            self.read_losses()
        return loss

    def read_losses(self) -> None:
        """Reads the losses since the last reading. Raises RunFailed at the first that is not finite."""
        unread, self._unread = self._unread, []
        losses = torch.stack([loss for _, loss in unread]).tolist() if unread else []
        for (step, _), loss in zip(unread, losses, strict=True):
            if not math.isfinite(loss):
                raise RunFailed(
                    f"training diverged: the loss is {loss} at step {step} of {self.state.max_steps}. "
                    f"A smaller learning rate may help (it is {self.training.learning_rate:g})"
                )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if "places" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels, places = inputs.pop("labels"), inputs.pop("places")
        return loss_at(model, inputs, labels, places) / num_items_in_batch

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if not self.training.group_by_length:
            return super()._get_train_sampler(train_dataset)
        return LengthGrouped(self._lengths, self.training.batch_size * self.training.gradient_accumulation, self.args.seed)

    def take_tokens(self) -> int:
        """Non-padding tokens trained on since the last call."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def evaluate(self, *_args: Any, **_kwargs: Any) -> dict[str, float]:
        self.control.should_evaluate = False
        self.read_losses()
        self.run.evaluate()
        return {}

    def _save_checkpoint(self, *_args: Any, **_kwargs: Any) -> None:
        # Trainer comes here only after a step that asked the run to leave, and has logged the step by then.
        assert self.leaving is not None
        self.run.leave()
        raise self.leaving

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.control.should_log = False
        self.read_losses()
        self.meter.read()
        if "loss" in logs:
            point = {"step": self.state.global_step, "train_loss": logs["loss"], "learning_rate": logs["learning_rate"]}
            self.points.append(point)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        # Trainer would walk over every parameter at every micro-batch for a number that nobody reads.
        return 0

    def save_state_to(self, folder: Path) -> None:
        """Writes what `train(resume_from_checkpoint=folder)` needs to continue as if it had not been interrupted."""
        self.read_losses()
        save_file(trainable_state(self.run.model), folder / TRAINABLE_FILE)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_rng_state(str(folder))
        self.state.save_to_json(str(folder / TRAINER_STATE_NAME))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        restore_trainable(self.run.model, load_file(Path(resume_from_checkpoint) / TRAINABLE_FILE))


class LengthGrouped(Sampler[int]):
    """Every example once an epoch, in optimizer steps of examples of about equal length; another order every epoch.

    Windows of fifty steps are drawn at random and sorted by length, and their steps shuffled, the longest of all first: a step
    that is too large for memory fails at once.
    """

    def __init__(self, lengths: np.ndarray, step: int, seed: int) -> None:
        self._lengths, self._step, self._seed, self._epoch = lengths, step, seed, 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        draw = np.random.default_rng([self._seed, self._epoch])
        order, window = draw.permutation(len(self)), 50 * self._step
        steps = []
        for begin in range(0, len(order), window):
            part = order[begin : begin + window]
            part = part[np.argsort(-self._lengths[part], kind="stable")]
            steps += [part[at : at + self._step] for at in range(0, len(part), self._step)]
        # A smaller last step stays last, so that the others keep their size.
        last = steps.pop() if len(steps[-1]) < self._step else None
        steps = [steps[at] for at in draw.permutation(len(steps))]
        if steps:
            longest = max(range(len(steps)), key=lambda at: self._lengths[steps[at]].max())
            steps[0], steps[longest] = steps[longest], steps[0]
        return iter([int(at) for step in [*steps, *([] if last is None else [last])] for at in step])


class _Loss:
    """Mean over all examples of the optimizer step, of which this micro-batch is a part."""

    def __init__(self, kind: Kind) -> None:
        self.summed = LOSSES[kind]

    def __call__(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        items = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return self.summed(outputs.logits, labels) / items


class _EvaluateAt(TrainerCallback):
    """Times every step and asks for an evaluation after the chosen ones."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self.trainer.meter.step_begins()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self.trainer.move_starts(-1)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self.trainer.move_starts(1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self.trainer.meter.step_ends(self.trainer.take_tokens())
        try:
            self.trainer.run.listener.stepped(state.global_step, state.max_steps)
        except Leave as why:
            # An evaluation may take longer than the machine stays; the resumed run makes up for it.
            self.trainer.leaving, control.should_save = why, True
            return
        control.should_evaluate = state.global_step in self.trainer.evaluated_at


def _arguments(training: TrainingSettings, steps: int, seed: int, directory: Path) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(directory),
        max_steps=steps,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation,
        learning_rate=training.learning_rate,
        max_grad_norm=training.max_grad_norm,
        seed=seed,
        logging_steps=max(1, steps // _POINTS),
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        accelerator_config={"non_blocking": torch.cuda.is_available()},
        log_level="error",
    )
    # One process trains on one device, never on several by DataParallel's threads.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments
