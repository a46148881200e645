"""The optimizer steps of a training: `Loop.train` makes one after the other and yields the number of each.

    micro-batches  ->  loss summed / items of the step  ->  gradients  ->  clipped  ->  weights  ->  logged  ->  yield

A step does not depend on how it is cut into micro-batches. Between two steps the caller may score, write a checkpoint or leave,
and no later step changes: the order of examples depends on seed and epoch alone. On a CPU a loss that is not finite ends the
run in its step; on a GPU, where reading makes the host wait, losses are read 100 times a run, and before scores and files.

The functions read the settings: how many steps there are, which examples and which learning rate each has, which weights the
optimizer moves, at which peak rate, with how much weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import get_parameter_names

from craft.methods.method import BuildContext
from craft.models.compute import adamw, compute_device
from craft.models.loading import TASK_TYPES, trained_weights
from craft.processes import Group, current, is_part
from craft.results import RunFailed
from craft.scoring.encoding import Collator
from craft.scoring.passes import can_choose, token_loss
from craft.scoring.scorer import LOSSES
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks.prompts import IGNORED
from craft.tasks.task import Kind
from craft.trainer.adapter_folder import TRAINABLE_FILE, copy_trainable, restore_trainable
from craft.trainer.meter import Meter
from craft.trainer.process import read_random_states, set_random_states

_STATE_FILE, _POINTS = "loop.pt", 100


class Loop:
    """The steps of one training.

    Attributes:
        total: how many there are in all; 0 where nothing trains.
        evaluated_at: the steps after which the search split is to be scored.
        points: `train_loss` and `learning_rate` of the logged steps; the caller reports them and empties the list.
    """

    def __init__(
        self,
        spec: RunSpec,
        kind: Kind,
        model: Any,
        split: Any,
        meter: Meter,
        *,
        starts: Mapping[nn.Parameter, torch.Tensor] | None = None,
        hold: Callable[[], None] = lambda: None,
    ) -> None:
        """Seeds the process. `split` holds encoded training examples, with the `lengths` of them all.

        Weight decay pulls the weights in `starts` to these values, and not to zeros. `hold` follows every change of weights.
        """
        self._group = current()
        transformers.set_seed(spec.seed + self._group.rank)  # each process drops out other numbers
        self.model, self.kind, self.training, self.seed, self.meter = model, kind, spec.training, spec.seed, meter
        self._split, self._hold = split, hold
        self._device = compute_device()
        self._reads_freely = self._device.type != "cuda"  # where the host would wait for the device, a step reads nothing
        if spec.row.quantization is None:  # a quantized base cannot be moved
            model.to(self._device)
        # Where the base is put into parts, the weights were on the CPU when their starts were copied.
        self._starts = {weight: start.to(weight.device) for weight, start in (starts or {}).items()}
        model.config.use_cache = False
        chooses = kind == "generation" and can_choose(model)
        self._collate = Collator(int(model.config.pad_token_id), chooses, omits_masks=not self._reads_freely)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.step, self.total = 0, total_steps(self.training, len(split)) if self._weights else 0
        self.evaluated_at = evaluation_steps(self.training, len(split)) if self._weights else [0]
        self.optimizer = make_optimizer(spec, model, kind, self.total) if self._weights else None
        self._peak_rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer else []
        self.points: list[dict[str, float]] = []
        self._unread: list[tuple[int, torch.Tensor]] = []
        self._loss, self._logged = np.float32(0), 0  # the sum of the losses after the step that was logged last

    def train(self) -> Iterator[int]:
        """Makes the steps that are left, and yields the number of each after it. Raises RunFailed as `read_losses` does."""
        while self.step < self.total:
            for batches, share, tokens in self._read_epoch():
                with self.meter.step(tokens):
                    self._add_gradients(batches, share)
                    self._change_weights()
                if self.step % max(1, self.total // _POINTS) == 0:
                    self._log()
                yield self.step
                if self.step == self.total:
                    break
        self.read_losses()

    def _read_epoch(self) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
        """Yields the micro-batches of each step that is left of this epoch, on the device.

        With them come the number of those that count, since every process has equally many, and the tokens of the whole step.
        """
        size, lengths = self.training.batch_size, self._split.lengths
        epoch, done = divmod(self.step, steps_per_epoch(self.training, len(self._split)))
        order, effective = order_examples(self.training, lengths, self.seed, epoch), size * self.training.gradient_accumulation
        steps = [order[at : at + effective] for at in range(done * effective, len(order), effective)]
        shares = [cut_share(self._group, examples, size) for examples in steps]
        loader = DataLoader(
            self._split,
            batch_sampler=[batch for batches, _ in shares for batch in batches],
            collate_fn=self._collate,
            pin_memory=self._device.type == "cuda",
            # A loader draws a random number when it begins. In an epoch that had begun before, it has been drawn.
            generator=torch.Generator() if done else None,
        )
        batches = iter(loader)
        for examples, (share, counted) in zip(steps, shares, strict=True):
            step = [
                {name: each.to(self._device, non_blocking=True) for name, each in batch.items()}
                for batch in islice(batches, len(share))
            ]
            yield step, counted, int(lengths[examples].sum())

    def _add_gradients(self, batches: list[dict[str, Any]], counted: int) -> None:
        self.model.train()
        labels = [batch["labels"] for batch in batches]
        items = [(each[:, 1:] != IGNORED).sum() if self.kind == "generation" else len(each) for each in labels]
        total = self._group.count_all(sum(items[:counted], 0 * items[0]))
        for number, batch in enumerate(batches):
            loss = self._sum_losses(batch) / total
            if number >= counted:
                loss = loss * 0
            loss.backward()
            self._unread.append((self.step + 1, loss.detach()))
            if self._reads_freely:
                self.read_losses()

    def _change_weights(self) -> None:
        assert self.optimizer is not None
        self._group.sum_gradients(self._weights)
        if self.training.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self._weights, self.training.max_grad_norm)
        for group, peak in zip(self.optimizer.param_groups, self._peak_rates, strict=True):
            group["lr"] = peak * rate_factor(self.training, self.step, self.total)
        # Weight decay leads to zero. Without its start in it, a weight's difference from it does.
        self._add_starts(-1)
        self.optimizer.step()
        torch.autograd.graph.increment_version(self._weights)  # a fused step does not, and caches ask for it
        self._add_starts(1)
        self._hold()
        self.optimizer.zero_grad()
        self.step += 1

    def _sum_losses(self, batch: dict[str, Any]) -> torch.Tensor:
        labels, places = batch.pop("labels"), batch.pop("places", None)
        if self.kind == "generation":
            return token_loss(self.model, batch, labels, places)
        return LOSSES[self.kind](self.model(**batch).logits, labels)

    def _add_starts(self, sign: int) -> None:
        with torch.no_grad():
            for weight, start in self._starts.items():
                weight.add_(start, alpha=sign)

    def read_losses(self) -> None:
        """Reads the losses and step times since the last reading. Raises RunFailed at the first loss that is not finite."""
        self.meter.read()
        unread, self._unread = self._unread, []
        losses = self._group.sum(torch.stack([loss for _, loss in unread])).tolist() if unread else []
        for (step, _), loss in zip(unread, losses, strict=True):
            if not math.isfinite(loss):
                raise RunFailed(
                    f"training diverged: the loss is {loss} at step {step} of {self.total}. "
                    f"A smaller learning rate may help (it is {self.training.learning_rate:g})"
                )
            self._loss += np.float32(loss)

    def _log(self) -> None:
        self.read_losses()
        rate = self._peak_rates[0] * rate_factor(self.training, self.step - 1, self.total)
        loss = float(self._loss) / (self.step - self._logged)
        self.points.append({"step": self.step, "train_loss": loss, "learning_rate": rate})
        self._loss, self._logged = np.float32(0), self.step

    def copy_state(self) -> Callable[[Path], None]:
        """Copies what `restore` needs to continue as if there had been no interruption; returns what writes it to a folder."""
        self.read_losses()
        weights, state = copy_trainable(self.model), dict[str, Any]()
        if self.optimizer is not None:
            state = {"optimizer": read_optimizer(self.optimizer, self._group), "points": self.points}
            state |= {"random": self._group.gather(read_random_states()), "loss": float(self._loss), "logged": self._logged}

        def write(folder: Path) -> None:
            save_file(weights, folder / TRAINABLE_FILE)
            if state:
                torch.save(state, folder / _STATE_FILE)

        return write

    def restore(self, folder: Path, step: int) -> None:
        """Continues from what `copy_state` copied after `step`, perhaps in another number of processes."""
        self.step = step
        restore_trainable(self.model, load_file(folder / TRAINABLE_FILE))
        if self.optimizer is not None:
            state = torch.load(folder / _STATE_FILE, map_location="cpu", weights_only=True)
            restore_optimizer(self.optimizer, state["optimizer"], self._group)
            self._loss, self._logged, self.points = np.float32(state["loss"]), state["logged"], state["points"]
            set_random_states(state["random"][self._group.rank % len(state["random"])])


def total_steps(training: TrainingSettings, examples: int) -> int:
    """Counts the optimizer steps of a run on `examples` training examples; `max_steps` overrides the epochs."""
    if training.max_steps is not None:
        return training.max_steps
    return math.ceil(round(training.epochs * steps_per_epoch(training, examples), 9))  # 0.07 of 100 steps are 7


def steps_per_epoch(training: TrainingSettings, examples: int) -> int:
    """Counts the optimizer steps of one pass; the remaining examples at its end make a smaller step."""
    return math.ceil(math.ceil(examples / training.batch_size) / training.gradient_accumulation)


def evaluation_steps(training: TrainingSettings, examples: int) -> list[int]:
    """Returns the steps after which the search split is scored: every `evaluate_every` epochs, or every step, and the last."""
    end = total_steps(training, examples)
    if training.evaluate_every == "end":
        return [end]
    interval = max(1.0, training.evaluate_every * steps_per_epoch(training, examples))
    marks = {round(index * interval) for index in range(1, math.floor(end / interval) + 1)}
    return sorted({mark for mark in marks if mark < end} | {end})


def epochs_after(training: TrainingSettings, examples: int, step: int) -> float:
    """Returns the passes over the training examples that are done after `step`, to the micro-batch."""
    passes, batches = max(0, step - 1) // steps_per_epoch(training, examples), math.ceil(examples / training.batch_size)
    begun = step - passes * steps_per_epoch(training, examples)
    return passes + min(batches, begun * training.gradient_accumulation) / batches


def rate_factor(training: TrainingSettings, step: int, steps: int) -> float:
    """Returns the share of the peak learning rate after `step` of `steps`. A warm-up begins above 0: the first step trains."""
    warmup = math.ceil(training.warmup_ratio * steps)
    if step < warmup:
        return (step + 1) / warmup
    linear = max(0.0, (steps - step) / max(1, steps - warmup))
    return {"linear": linear, "cosine": 0.5 * (1.0 + math.cos(math.pi * (1.0 - linear))), "constant": 1.0}[training.schedule]


def order_examples(training: TrainingSettings, lengths: np.ndarray, seed: int, epoch: int) -> list[int]:
    """Returns the indices of an epoch in the order in which they train, drawn from seed and epoch."""
    draw = np.random.default_rng([seed, epoch])  # of both: the second epoch of a seed is no other seed's first
    if training.group_by_length:
        return _group_by_length(lengths, training.batch_size * training.gradient_accumulation, draw)
    return [int(row) for row in draw.permutation(len(lengths))]


def cut_share(group: Group, examples: list[int], size: int) -> tuple[list[list[int]], int]:
    """Cuts a process's share of a step's examples into micro-batches of `size`, and says how many of these count.

    All processes have equally many, because each one computes with the others. Those that lack examples repeat one.
    """
    share = group.share(examples)
    batches = [[*share[at : at + size]] for at in range(0, len(share), size)]
    most = math.ceil(math.ceil(len(examples) / group.count) / size)
    return [*batches, *([examples[:1]] * (most - len(batches)))], len(batches)


def _group_by_length(lengths: np.ndarray, size: int, draw: np.random.Generator) -> list[int]:
    """Orders examples so that each step of `size` has examples of about equal length.

    Windows of fifty steps are drawn at random and sorted by length, and their steps shuffled, the longest of all first: a step
    that is too large for memory fails at once.
    """
    order, window = draw.permutation(len(lengths)), 50 * size
    steps = []
    for begin in range(0, len(order), window):
        part = order[begin : begin + window]
        part = part[np.argsort(-lengths[part], kind="stable")]
        steps += [part[at : at + size] for at in range(0, len(part), size)]
    # A smaller last step stays last, so that the others keep their size.
    last = steps.pop() if len(steps[-1]) < size else None
    steps = [steps[at] for at in draw.permutation(len(steps))]
    if steps:
        longest = max(range(len(steps)), key=lambda at: lengths[steps[at]].max())
        steps[0], steps[longest] = steps[longest], steps[0]
    return [int(at) for step in [*steps, *([] if last is None else [last])] for at in step]


_WITHOUT_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def make_optimizer(spec: RunSpec, model: nn.Module, kind: Kind, steps: int) -> torch.optim.Optimizer:
    """Makes AdamW or the method's own optimizer. The adapter's group comes first: a run reports the first learning rate."""
    method, groups = spec.row, _weight_groups(model, spec.training)
    if method.optimizer is None:
        return adamw(groups)
    context = BuildContext(TASK_TYPES[kind], seed=spec.seed, total_steps=steps)
    return method.optimizer(model, groups, spec.typed_parameters, context)


def read_optimizer(optimizer: torch.optim.Optimizer, group: Group) -> dict[str, Any]:
    """Returns the optimizer's state. Moments in parts are whole in it, in the first process."""
    state = optimizer.state_dict()
    moments = {
        number: {name: group.collect(value) if is_part(value) else value for name, value in of_weight.items()}
        for number, of_weight in state["state"].items()
    }
    return state | {"state": moments}


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], group: Group) -> None:
    """Gives the optimizer what `read_optimizer` returned in the first process."""
    weights = [weight for each in optimizer.param_groups for weight in each["params"]]
    for number, of_weight in sorted(state["state"].items()):
        weight = weights[number]
        for name, value in of_weight.items() if is_part(weight) else ():
            if value.shape == weight.shape:
                of_weight[name] = torch.zeros_like(weight)
                group.put(of_weight[name], value)
    optimizer.load_state_dict(state)


def find_decaying(model: nn.Module) -> set[str]:
    """Returns the names of weights with weight decay: all but biases and norms, as in transformers' Trainer."""
    return set(get_parameter_names(model, [nn.LayerNorm], _WITHOUT_DECAY))


def _weight_groups(model: nn.Module, training: TrainingSettings) -> list[dict[str, Any]]:
    decaying, groups = find_decaying(model), dict[tuple[bool, bool], list[nn.Parameter]]()
    for name, weight, head in trained_weights(model):
        groups.setdefault((head, name not in decaying), []).append(weight)
    assert training.learning_rate is not None, "RunSpec.with_rate gives a run its method's own"
    rates = {False: training.learning_rate, True: training.head_learning_rate or training.learning_rate}
    return [
        {"params": groups[head, fixed], "lr": rates[head], "weight_decay": 0.0 if fixed else training.weight_decay}
        for head, fixed in sorted(groups)
    ]
