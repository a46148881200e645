"""One training run, from a `RunSpec` to a scored adapter on disk: `train_run`.

    model + head -> method -> train ── evaluation every n epochs ──> report(Progress with a checkpoint)
                                              │                        keep the best trainable weights
                                              └── selected weights ──> reported splits, once ──> RunResult

Selection sees the search split only: under the `honest` protocol it is carved from the training data, under `customary` both
are the public dev set. The same spec gives the same numbers in any process, and after a resume, bit for bit on one machine.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

import craft
from craft.methods.method import BuildContext, refuse_elsewhere
from craft.models import quiet_libraries
from craft.models.compute import checkpoint_activations, compute_device, multiply_as_base, narrow_frozen, shard
from craft.models.files import gguf_notes, model_digest
from craft.models.loading import SPREAD, TASK_TYPES, load_model, load_tokenizer, refuse_other_words, trained_weights
from craft.processes import current
from craft.results import (
    CUTS_FOLDER,
    METRIC,
    MODEL_DIGEST,
    POSITIVE,
    PREDICTIONS_FOLDER,
    RUN_FILE,
    Progress,
    RunFailed,
    RunPrevented,
    RunResult,
    Unavailable,
    name_memory_errors,
)
from craft.scoring.encoding import Collator
from craft.scoring.forgetting import Forgetting, refuse_under_task_head
from craft.scoring.scorer import Scorer, make_scorer, splits_of
from craft.spec import RunSpec
from craft.tasks.metrics import METRICS
from craft.trainer.adapter_folder import start_from
from craft.trainer.checkpoint import MANIFEST_FILE, read_state
from craft.trainer.counting import text_config
from craft.trainer.head_start import start_head
from craft.trainer.loop import Loop, total_steps
from craft.trainer.meter import Meter
from craft.trainer.process import isolate_process, run_repeatably
from craft.trainer.run import Run, finish
from craft.watch import watching


def train_run(
    spec: RunSpec,
    directory: Path,
    *,
    report: Callable[[Progress], None] = lambda _progress: None,
    resume_from: Path | None = None,
    on_step: Callable[[int, int], None] = lambda _step, _total: None,
    cuts: Sequence[int] = (),
) -> RunResult:
    """Trains, scores and saves one run.

    Writes into `directory`: `adapter` (`craft.trainer.adapter_folder`), the outputs behind the score
    (`predictions.safetensors`), the answers to the reported rows (`predictions`), at every evaluation `checkpoint-STEP`, of
    which the newest two stay, and `cuts/NUMBER`.

    Args:
        report: called after every evaluation, and after each test but the last of a task with several tests.
        resume_from: a checkpoint of the same run. Its micro-batch may differ, its effective batch may not.
        on_step: called after every optimizer step with its number and the number of steps; with the same numbers while answers
            in words are scored, so that silence means that the run hangs. It may raise `Leave`.
        cuts: numbers of parameters to which the finished adapter is cut; each cut is scored as the run is.

    Raises:
        RunFailed: the run cannot succeed: the loss is not finite, the model lacks a projection, the data are wrong, or the
            checkpoint is another run's. The message is the reason.
        RunPrevented: the model, the data or what the method needs is not here; elsewhere or later the run may succeed.
        CheckpointCorrupt: `resume_from` is not what was written.
        Exception: `report` or `on_step` raised it, to end the run early; the last checkpoint stays.
    """
    micro_batch = f"micro-batches of {spec.training.batch_size} x {spec.training.max_length} tokens"
    newest = resume_from

    def keep_newest(progress: Progress) -> None:
        nonlocal newest
        newest = progress.checkpoint or newest
        report(progress)

    def work(notes: list[str]) -> RunResult:
        run = _ready(spec, directory, newest, notes)
        run.cuts, run.send, run.on_step = cuts, keep_newest, on_step
        with watching(run.follow):
            run.train()
            return finish(run)

    with isolate_process(tf32=spec.training.tf32), name_memory_errors(micro_batch), quiet_libraries():
        return run_repeatably(work)


def _ready(spec: RunSpec, directory: Path, resume_from: Path | None, notes: list[str]) -> Run:
    began = time.perf_counter()
    meter, group = Meter(), current()
    try:
        refuse_elsewhere(spec.row)
        spec = spec.with_rate(lambda: text_config(spec.model, spec.revision).hidden_size)
    except Unavailable as error:
        raise RunPrevented(str(error)) from error
    resume_from = group.deliver(resume_from, directory / "delivered", MANIFEST_FILE)
    if (start := spec.warm_start) is not None and start.adapter is not None:
        adapter = group.deliver(Path(start.adapter), directory / "source", RUN_FILE)
        spec = spec.model_copy(update={"warm_start": start.model_copy(update={"adapter": str(adapter)})})
    resumed = None if resume_from is None else read_state(resume_from, spec)
    try:
        run = _prepare(spec, directory, meter, fresh=resumed is None)
    except Unavailable as error:
        raise RunPrevented(str(error)) from error
    except ValueError as error:
        raise RunFailed(str(error)) from error
    run.seconds_before = -began
    run.notes += [*notes, *([f"trained by {group.count} processes ({group.way})"] if group.count > 1 else [])]
    directory.mkdir(parents=True, exist_ok=True)
    for name in (PREDICTIONS_FOLDER, CUTS_FOLDER):  # of an earlier run in this folder
        shutil.rmtree(directory / name, ignore_errors=True)
    if resumed is not None and resume_from is not None:
        run.restore(resume_from, resumed)
    return run


def _prepare(spec: RunSpec, directory: Path, meter: Meter, fresh: bool) -> Run:
    """Loads data and model and puts the method on the model. Raises ValueError for mistakes of the user.

    A run that is not `fresh` has its head and its warm start from a checkpoint.
    """
    task, method, training, group = spec.task_row, spec.row, spec.training, current()
    with meter.phase("data"):
        splits = splits_of(spec, task)
    tokenizer = load_tokenizer(spec.model, revision=spec.revision)
    # A base that fits on no GPU is put into parts from the CPU's memory, or divided among the GPUs as it is read.
    elsewhere: dict[str, str] = {"shard": "cpu", "layers": SPREAD}
    device = elsewhere.get(group.way) or compute_device()
    base = load_model(spec.base(task.kind, task.labels, tokenizer.pad_token_id), device=device, seed=spec.seed)
    if training.gradient_checkpointing:
        checkpoint_activations(base)
    refuse_other_words(spec.model, tokenizer, base)
    with meter.phase("data"):
        scorer = make_scorer(spec, task, splits, tokenizer, base)
    forgetting: Forgetting | None = None
    if spec.measure.forgetting is not None:
        refuse_under_task_head(spec, task.kind)
        forgetting = Forgetting(spec.measure.forgetting, tokenizer, base)
    missing = getattr(base, "craft_missing_weights", [])
    absent = [f"not in the checkpoint, frozen as initialized from the seed: {', '.join(missing)}"] if missing else []
    notes = [*absent, *gguf_notes(spec.model), *scorer.notes, *splits.notes]
    collator = Collator(int(tokenizer.pad_token_id))
    if fresh and spec.warm_start is None:
        with meter.phase("head"):
            start_head(base, training, task.kind, scorer.train, collator, shared=True)
        meter.restart()
    transformers.set_seed(spec.seed)
    steps = total_steps(training, scorer.examples["train_examples"])
    context = BuildContext(TASK_TYPES[task.kind], seed=spec.seed, total_steps=steps)
    with meter.phase("decompose"):
        model = method.build(base, spec.typed_parameters, context)
    if training.precision == "bfloat16":
        narrow_frozen(model) if method.master_weights else multiply_as_base(model)
    # Before the run's own start or its checkpoint is put in, so that a resumed run finds the same.
    decays = method.decays_to_start and training.weight_decay
    pulled = [weight for _, weight, head in trained_weights(model) if not head] if decays else []
    starts = {weight: weight.detach().clone() for weight in pulled}
    if fresh and spec.warm_start is not None and not start_from(model, spec.warm_start, spec):
        start_head(model, training, task.kind, scorer.train, collator, shared=False)
    for config in getattr(model, "peft_config", {}).values():
        config.revision = spec.revision
    group.copy_first(weight for weight in model.parameters() if weight.requires_grad)
    shard(model, compute_device(), group)
    facts = _facts(spec, splits.fingerprint, scorer) | {METRIC: task.primary}
    facts |= {POSITIVE: task.labels[task.positive]} if task.suite == "custom" and METRICS[task.primary].one_class else {}
    facts |= forgetting.facts if forgetting else {}
    loop = Loop(spec, task.kind, model, scorer.train, meter, starts=starts)
    run = Run(spec, task, model, scorer, loop, directory, meter, facts, notes, forgetting)
    run.evaluation_due = not loop.total  # a control without a head is scored as it is
    return run


def _facts(spec: RunSpec, fingerprint: str, scorer: Scorer) -> dict[str, Any]:
    return {
        "protocol": spec.protocol,
        "data_fingerprint": fingerprint,
        **({MODEL_DIGEST: digest} if (digest := model_digest(spec.model, spec.revision)) else {}),
        **scorer.examples,
        **scorer.facts,
        **({"warm_start": spec.warm_start.run} if spec.warm_start else {}),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine() + " CPU",
        "versions": {
            "craft": craft.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        },
    }
