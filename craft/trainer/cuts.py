"""Adapters that are cut to fewer parameters by SVD: `cut_and_score` for a finished one, the parts of it for a run's end.

    folder  ->  cut      `Smaller`: the smaller tensors, their configuration and record; what is cut is in the method's row
            ->  attached as a second adapter of the model  ->  recover  trained on, alone  ->  score  search and reported splits
            ->  write    a folder as training leaves one; its record says of which run it is cut

A size is text: one rank for every product (`8`), or a number of parameters in all (`parameters:20000`), cut by one threshold.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor

from craft.factors.low_rank import ranks_within
from craft.methods import find_cutting
from craft.models import quiet_libraries
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from craft.models.compute import compute_device
from craft.models.loading import trained_weights
from craft.results import TEXT_DIGEST, Counts, RunResult, name_memory_errors
from craft.scoring.forgetting import BEFORE, Forgetting
from craft.scoring.scorer import Scorer, make_scorer, splits_of
from craft.spec import BUDGET, RunSpec
from craft.tasks.task import Task
from craft.trainer.adapter_folder import load_adapter, read_record, write_record
from craft.trainer.checkpoint import MANIFEST_FILE, write_folder
from craft.trainer.loop import Loop, total_steps
from craft.trainer.meter import Meter
from craft.trainer.pace import CUT_STEPS
from craft.trainer.process import isolate_process, run_repeatably
from craft.watch import watch

_NAME = "cut"
"""The name that a cut adapter has on the model."""
_NOT_ITS_OWN = ("optimizer_bytes", "peak_memory_bytes", "step_seconds", "tokens_per_second")


class TooSmall(ValueError):
    """One direction of a product has more parameters than a size."""


@dataclass
class Smaller:
    """A cut adapter before it is written: the rank of each of its products, and a record without scores until `score`."""

    run: RunSpec
    ranks: dict[str, int]
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    record: dict[str, Any]

    def result(self, adapter: Path, began: float) -> RunResult:
        """Returns the result of the folder `adapter`; `began` is the start of the cut by `time.perf_counter`."""
        record, counts, seconds = self.record, Counts(**self.record["counts"]), time.perf_counter() - began
        return RunResult(record["metrics"], counts, adapter, 0, 0, seconds, record["notes"], record["facts"])


def read_size(text: str, method: str) -> str:
    """Writes a size in its one form: `8`, or `parameters:20000`. Raises ValueError if it is none, or the method has no cuts."""
    find_cutting(method)
    size = text.replace(" ", "").replace("_", "")
    number = size.removeprefix(BUDGET)
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ValueError(f"an adapter of {method} is cut to a rank, such as 4, or {BUDGET}20000; got {text!r}")
    return f"{BUDGET * size.startswith(BUDGET)}{int(number)}"


def cut(folder: Path, size: str, recovery: float = 0.0, spec: RunSpec | None = None) -> Smaller:
    """Cuts the adapter in `folder`, which will be trained on for a share (`recovery`) of its run's steps.

    `spec` is the run that trained the adapter, if its model and data are not where they were.
    """
    record = read_record(folder)
    trained = RunSpec.model_validate(record["spec"])
    spec = spec or trained
    if spec.cut_from is not None:
        raise ValueError(
            f"{folder} holds an adapter that was cut from run {spec.cut_from.run}; cut the one that was trained, or its "
            "leading directions are those of the first cut"
        )
    counts = {name: value for name, value in record["counts"].items() if name not in _NOT_ITS_OWN}
    parameters, size = counts["trainable_parameters"], read_size(size, spec.method)
    tensors, config = load_file(folder / WEIGHTS_FILE), json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    bytes_before = sum(tensor.nbytes for tensor in tensors.values())
    ranks: dict[str, int] = {}

    def choose(values: Mapping[str, Tensor], costs: Mapping[str, int]) -> Mapping[str, int]:
        ranks.update(_ranks(size, values, costs, parameters))
        return ranks

    smaller, counts["trainable_parameters"] = find_cutting(spec.method).cut(tensors, config, choose)
    counts["total_parameters"] += counts["trainable_parameters"] - parameters
    counts["adapter_bytes"] += sum(tensor.nbytes for tensor in tensors.values()) - bytes_before
    run = spec.cut_to(size, recovery)
    metrics = {name: value for name, value in record["metrics"].items() if name == BEFORE}
    record |= {"spec": run.model_dump(mode="json"), "counts": counts, "metrics": metrics, "notes": []}
    return Smaller(run, ranks, smaller, tensors, record)


def _ranks(size: str, values: Mapping[str, Tensor], costs: Mapping[str, int], limit: int) -> dict[str, int]:
    """Returns the rank of every product, from its singular values and the parameters of one direction."""
    number, most = int(size.removeprefix(BUDGET)), max(map(len, values.values()))
    if not size.startswith(BUDGET):
        if number >= most:
            advice = f"Give a rank from 1 to {most - 1}" if most > 1 else "No rank is lower: keep the adapter as it is"
            raise ValueError(f"the rank is {number}, but from rank {most} on nothing is cut. {advice}")
        return dict.fromkeys(values, number)
    if number >= limit:
        raise ValueError(f"{number:,} parameters: the adapter was trained with {limit:,}; give fewer")
    ranks = ranks_within(values, costs, number)
    if not any(ranks.values()):
        raise TooSmall(f"{number:,} parameters are too few for one direction; the first takes up to {max(costs.values()):,}")
    return ranks


@contextmanager
def attached(model: Any, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[None]:
    """Makes an adapter with these tensors the active one of the model, ready to train; removes it after the block."""
    with tempfile.TemporaryDirectory(prefix="craft-cut-") as folder, quiet_libraries():
        save_file(dict(tensors), Path(folder, WEIGHTS_FILE), metadata={"format": "pt"})
        Path(folder, CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
        model.load_adapter(folder, _NAME, is_trainable=True)
    model.set_adapter(_NAME)
    try:
        yield
    finally:
        model.set_adapter("default")
        model.delete_adapter(_NAME)


def recover(model: Any, run: RunSpec, tensors: dict[str, Tensor], task: Task, scorer: Scorer, meter: Meter) -> None:
    """Trains an `attached` adapter alone, as its `run` says but without weight decay, and puts what it learns into `tensors`.

    The task head stays: a few steps from an optimizer's start at a head's rate undo what the whole run taught it.
    """
    assert run.cut_from is not None
    steps = math.ceil(run.cut_from.recovery * total_steps(run.training, scorer.examples["train_examples"]))
    short = run.training.model_copy(update={"max_steps": steps, "evaluate_every": "end", "weight_decay": 0.0})
    make_hold = find_cutting(run.method).hold
    hold = make_hold(model) if make_hold is not None else lambda: None
    for _, trained, head in trained_weights(model):
        trained.requires_grad_(not head)
    loop = Loop(run.model_copy(update={"training": short}), task.kind, model, scorer.train, meter, hold=hold)
    with meter.phase("train"), quiet_libraries():
        for step in loop.train():
            watch(CUT_STEPS, step, steps)
    learnt = get_peft_model_state_dict(model, adapter_name=_NAME, save_embedding_layers=False)
    for key, weight in tensors.items():  # an adapter of a stranger may have embeddings, too, which stay
        tensors[key] = learnt.get(key, weight).detach().to("cpu", weight.dtype).contiguous()


def score(
    smaller: Smaller, model: Any, scorer: Scorer, place: Path, forgetting: Forgetting | None, notes: Sequence[str] = ()
) -> None:
    """Scores the model that has the cut adapter, and puts the scores into its record; the outputs behind them go to `place`."""
    record = smaller.record
    record["metrics"] |= scorer.search(model)
    record["facts"] |= scorer.searched
    if not smaller.run.search_only:
        reported = scorer.reported(model, place, lambda _scores: None)
        record["metrics"] |= (forgetting.metrics(model) if forgetting else {}) | reported.metrics
        record["notes"] += reported.notes
        record["facts"] |= reported.facts
    record["notes"] += notes


def write(smaller: Smaller, source: Path, to: Path) -> None:
    """Writes the adapter that was cut from the one in the folder `source`."""

    def fill(aside: Path) -> None:
        others = shutil.ignore_patterns(MANIFEST_FILE, WEIGHTS_FILE, "README.md")
        shutil.copytree(source, aside, dirs_exist_ok=True, ignore=others)
        save_file(smaller.tensors, aside / WEIGHTS_FILE, metadata={"format": "pt"})
        (aside / CONFIG_FILE).write_text(json.dumps(smaller.config, indent=2, sort_keys=True), encoding="utf-8")
        write_record(aside, smaller.record)

    write_folder(to, fill)


def cut_and_score(
    adapter: Path,
    size: str,
    place: Path,
    *,
    recovery: float = 0.0,
    score: bool = True,
    base: str | None = None,
    spec: RunSpec | None = None,
) -> tuple[RunSpec, RunResult]:
    """Cuts a finished adapter into `place`/adapter, trains it on and scores it; without `score` it only cuts.

    `base` is the name or folder of the base model here, if it is not the name in the record; `spec` as in `cut`.
    """
    began = time.perf_counter()
    smaller = cut(adapter, size, recovery, spec)
    place.mkdir(parents=True)
    if score:
        training = smaller.run.training
        batches = name_memory_errors(f"evaluation batches of {training.eval_batch_size} texts", scoring=True)
        with isolate_process(tf32=training.tf32), quiet_libraries(), batches:
            smaller = run_repeatably(lambda notes: _scored(adapter, cut(adapter, size, recovery, spec), place, base, notes))
    elif base is not None:
        load_adapter(adapter, base)  # refuses a base that it does not fit
    write(smaller, adapter, place / "adapter")
    return smaller.run, smaller.result(place / "adapter", began)


def _scored(adapter: Path, smaller: Smaller, place: Path, base: str | None, notes: list[str]) -> Smaller:
    spec, record = smaller.run, smaller.record
    task, training = spec.task_row, spec.training
    splits, fingerprint = splits_of(spec, task), record["facts"]["data_fingerprint"]
    if fingerprint != splits.fingerprint:
        raise ValueError(
            f"the data of {spec.task} here are not those that the adapter in {adapter} was trained on (fingerprint "
            f"{splits.fingerprint[:12]}, not {fingerprint[:12]}), so its score could not be compared with the run's"
        )
    model, tokenizer = load_adapter(adapter, base or spec.model, trains=True)
    model.to(compute_device())
    scorer = make_scorer(spec, task, splits, tokenizer, model)
    forgetting, loss_before = None, record["metrics"].get(BEFORE)
    if spec.measure.forgetting is not None and loss_before is not None and task.kind == "generation":
        forgetting = Forgetting(spec.measure.forgetting, tokenizer, model, loss_before=loss_before)
        trained, here = record["facts"].get(TEXT_DIGEST), forgetting.facts[TEXT_DIGEST]
        if trained is not None and trained != here:
            raise ValueError(
                f"the text of measure.forgetting has changed since the adapter in {adapter} was trained (its SHA-256 is "
                f"{here[:12]}, then {trained[:12]}), so the loss before training does not belong to it. Put the old text back"
            )
    with attached(model, smaller.tensors, smaller.config):
        if spec.cut_from is not None and spec.cut_from.recovery:
            with name_memory_errors(f"micro-batches of {training.batch_size} x {training.max_length} tokens"):
                recover(model, spec, smaller.tensors, task, scorer, Meter())
        score(smaller, model, scorer, place, forgetting, notes)
    return smaller
