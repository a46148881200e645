"""What a plan costs on a GPU that need not be here, from counted operations.

    forward of a text       2 N L + 4 layers x width x L^2        N: weights of the base's linear layers, L: its tokens
    backward                as much over frozen weights; twice as much if all weights train
    adapters                6 P L more, of P trained parameters
    checkpointing           one forward more
    an option's text        a forward; of a written answer its prompt, then every weight is read once for each token

    seconds of a step   =   the larger of   operations / (peak x PRODUCTS)   and   layers x passes x LAUNCH

The second is the host's, which three trainings on one GPU spend at once. Left out are the output layer where the
loss sees few tokens, AdamW, checkpoints and further seeds of a front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field

from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.words import format_bytes, nearest, parse_bytes, plural
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.ways import CONTEXT_BYTES, choose_way, fit_batches
from orchestrator.plan.work import work_parts

if TYPE_CHECKING:
    from craft.trainer.probe import Speed

PRODUCTS, READS = 0.4, 0.6
"""Assumed shares of the peak: of matrix products, and of reading weights."""
LAUNCH = 0.002
"""Seconds in which the host starts the kernels of a layer's pass: 215 ms for 3 x 32 (docs/measurements/speed.md, 4 x 256)."""
START = 15.0
"""Seconds of a training's process before its first step (docs/measurements/speed.md, the default sweep)."""
OVERLAP = 3.0
"""Trainings on one GPU whose hosts' times overlap, at most: they take turns (five of sweeps/smollm2/mixture.yaml at once)."""
OPTIONS = 3.3
"""Options of a commonsense question, in the mean of the eight tests."""
FLOPS_A_BYTE = 200
"""Of a GPU that only --tflops describes: a byte is read in the time of so many operations (A100 156, H100 295)."""


class Card(NamedTuple):
    """Peaks of a GPU: dense products in bfloat16 and float32 in TFLOPS, and reads in TB/s. Memory in bytes, if known."""

    name: str
    memory: int | None
    bfloat16: float
    float32: float
    reads: float

    def peak(self, training: TrainingSettings) -> float:
        """Returns the TFLOPS of products in the precision of a training. TF32 has half of bfloat16 on all of these."""
        if training.precision != "float32":
            return self.bfloat16
        return max(self.float32, self.bfloat16 / 2) if training.tf32 else self.float32


# NVIDIA's data sheets (H200, H100 SXM; A100 SXM; L40S; L4), AWS's page of G5 (A10G), and the whitepapers of Ada and Blackwell
# (RTX, with float32 sums). Dense: half of what they print "with sparsity".
CARDS = {
    card.name: card
    for card in (
        Card("H200", 141 * 10**9, 989.4, 66.9, 4.8),
        Card("H100", 80 * 2**30, 989.4, 66.9, 3.35),
        Card("A100-80", 80 * 2**30, 312.0, 19.5, 2.039),
        Card("A100-40", 40 * 2**30, 312.0, 19.5, 1.555),
        Card("L40S", 48 * 2**30, 362.0, 91.6, 0.864),
        Card("L4", 24 * 2**30, 121.0, 30.3, 0.3),
        Card("A10G", 24 * 2**30, 70.0, 35.0, 0.6),
        Card("RTX 4090", 24 * 2**30, 165.2, 82.6, 1.008),
        Card("RTX 5090", 32 * 2**30, 209.5, 104.8, 1.792),
    )
}


def find_card(gpu: str | None, tflops: float | None = None, memory: str | None = None) -> Card:
    """Returns the card of this name, or one of these numbers. Raises ValueError for what is not known or no number."""
    size = parse_bytes(memory) if memory is not None else None
    if memory is not None and not size:
        raise ValueError(f"--memory: got {memory!r}; give a size above 0, such as 80GiB")
    if tflops is not None and not 0 < tflops < math.inf:
        raise ValueError(f"--tflops: got {tflops:g}; a number above 0: the peak of dense products in the sweep's precision")
    if gpu is None and tflops is None:
        raise ValueError(f"--gpus and --memory go with --gpu NAME ({', '.join(CARDS)}) or with --tflops N")
    folded = {name.lower().replace(" ", ""): card for name, card in CARDS.items()}
    card = Card("own GPU", size, 0, 0, 0) if gpu is None else folded.get(gpu.lower().replace(" ", ""))
    if card is None:
        advice = "describe another one with --tflops N --memory SIZE"
        raise ValueError(f"--gpu: no GPU {gpu!r} in the table.{nearest(gpu, CARDS)} It has {', '.join(CARDS)}; {advice}")
    if tflops is not None:
        card = card._replace(bfloat16=tflops, float32=tflops, reads=card.reads or tflops / FLOPS_A_BYTE)
    return card._replace(memory=size or card.memory)


@dataclass(frozen=True)
class GpuCost:
    """The estimated cost of what is left on a GPU, from counted operations."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    gpu: str
    """The GPU's name in the table, or `own GPU`."""
    gpus: int
    """How many of them work at once."""
    tflops: float
    """The peak of dense products in the sweep's precision."""
    share: float
    """The assumed share of this peak."""
    gpu_hours: float
    """GPU hours of all trainings with their scoring."""
    scoring_hours: float
    """Those of these in which examples are scored."""
    wall_hours: float
    """Hours on all GPUs."""
    longest_texts: bool
    """Whether some texts count as long as `max_length`: data or tokenizer are not here."""
    memory_bytes: int | None
    """Bytes of the configuration that needs most. Null if the memory is not known."""
    micro_batch: int | None
    """Its largest micro-batch without gradient checkpointing; 0 if none fits. Null as above."""
    micro_batch_checkpointed: int | None
    """The same with gradient checkpointing."""
    lines: Annotated[tuple[str, ...], Field(exclude=True)]
    """What the plan prints."""


def _hours(hours: float) -> str:
    return f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def gpu_cost(
    plan: Plan, card: Card, gpus: int = 1, *, lengths: Mapping[str, np.ndarray] | None = None, left: float = 1.0
) -> GpuCost:
    """Returns what a plan costs on so many GPUs.

    Args:
        lengths: tokens of sampled texts of each task, before `max_length` cuts them, where data and tokenizer are here.
        left: the share of the work that has not ended.
    """
    lengths, total, scoring, longest, writes = lengths or {}, 0.0, 0.0, 0.0, False
    for trained, task, work in work_parts(plan):
        run = run_of(plan, trained, task)
        share = plan.sweep.resources_for(plan.sweep.block_at(trained.path))
        at_once = 1 / share.gpu if 0 < share.gpu < 1 else 1.0
        per_gpu = speed_on(card, run, trained, lengths.get(task), at_once)
        # A trial whose layers are on several GPUs computes on one of them at a time.
        held = share.gpu if share.gpu > 1 and choose_way(run, share, card.memory).way == "layers" else 1.0
        total += held * work.seconds(per_gpu)
        scoring += held * work.examples * per_gpu.example
        alone = (work * (1 / work.trainings)).seconds(speed_on(card, run, trained, lengths.get(task)))
        longest = max(longest, held * alone / max(1.0, share.gpu))
        writes = writes or _writes(run)
    first = plan.trained[0] if plan.trained else plan.probed[0]
    peak = card.peak(run_of(plan, first, plan.sweep.task_names[0]).training)
    bound = any(task not in lengths for task in plan.sweep.task_names)
    hours, scoring = left * total / 3600, left * scoring / 3600
    wall = max(left * total / gpus, longest if left else 0.0) / 3600
    reads = f", {100 * READS:.0f} % of {card.reads:.3g} TB/s" if writes else ""
    lines = [
        f"{card.name}: {_hours(hours)} of GPU, {_hours(scoring)} of them scoring; {_hours(wall)} on {gpus} "
        f"{plural(gpus, 'GPU')}. Assumed: {100 * PRODUCTS:.0f} % of {peak:.3g} TFLOPS{reads}, {1000 * LAUNCH:g} ms a layer and "
        "pass" + (", texts as long as max_length" if bound else "")
    ]
    need, plain, checkpointed, line = _largest_batches(plan, card) or (None, None, None, "")
    lines += [line] if line else []
    return GpuCost(card.name, gpus, peak, PRODUCTS, hours, scoring, wall, bound, need, plain, checkpointed, tuple(lines))


def run_of(plan: Plan, trained: Configuration, task: str) -> RunSpec:
    return plan.planner.identity.spec(trained, task, plan.sweep.seeds[0])


class Operations(NamedTuple):
    """Floating-point operations of one text: of its forward pass, and of an optimizer step for each of its texts."""

    forward: float
    trained: float


def count_operations(run: RunSpec, trained: Configuration, tokens: float) -> Operations:
    from craft.trainer.counting import linear_parameters, text_config
    from craft.trainer.pace import FORWARD

    config, counts = text_config(run.model, run.revision), trained.counts
    width, layers = int(config.hidden_size), int(config.num_hidden_layers)
    weights = linear_parameters(run.model, run.revision, run.task_row.kind)
    if run.task_row.kind == "generation" and run.data.generation.loss == "text":
        weights += int(config.vocab_size) * width
    forward = 2 * weights * tokens + 4 * layers * width * tokens**2
    if not counts.trainable_parameters:
        return Operations(forward, forward / FORWARD)  # `Work` counts a third of the steps of the head alone
    everything = counts.trainable_parameters + counts.head_parameters >= counts.total_parameters
    more = forward if everything else 6 * counts.trainable_parameters * tokens
    return Operations(forward, 2 * forward + more + (forward if run.training.gradient_checkpointing else 0))


def speed_on(card: Card, run: RunSpec, trained: Configuration, lengths: np.ndarray | None, at_once: float = 1.0) -> Speed:
    """Returns the seconds of a GPU that one of `at_once` trainings on it takes."""
    from craft.models.compute import WEIGHTS
    from craft.trainer.counting import linear_parameters, text_config
    from craft.trainer.probe import Speed

    training, generation = run.training, run.data.generation
    layers = int(text_config(run.model, run.revision).num_hidden_layers)
    rate, launch = 1e12 * PRODUCTS * card.peak(training), LAUNCH * layers / min(at_once, OVERLAP)
    tokens, mean = padded(lengths, training)
    counted = count_operations(run, trained, tokens)
    micro = training.batch_size * counted.trained / rate
    passes = 3 if training.gradient_checkpointing else 2
    step = training.gradient_accumulation * max(micro, passes * launch)
    forward, batch = count_operations(run, trained, mean).forward / rate, training.eval_batch_size
    if run.task_row.kind != "generation":
        return Speed(START / at_once, step, max(forward, launch / batch))
    if not _writes(run):
        options = OPTIONS if run.task == "commonsense" else 1.0
        return Speed(START / at_once, step, options * max(forward, launch / batch))
    weights = linear_parameters(run.model, run.revision, "generation")
    width = run.row.base_bytes or WEIGHTS[training.precision].itemsize
    a_token = max(width * weights / (1e12 * READS * card.reads) / batch, 2 * weights * generation.beams / rate, launch / batch)
    return Speed(START / at_once, step, generation.beams * forward + generation.max_new_tokens * a_token)


def _writes(run: RunSpec) -> bool:
    if run.task == "commonsense":
        return run.data.generation.score == "generate"
    return run.task_row.kind == "generation" and run.task_row.primary != "likelihood"


def padded(lengths: np.ndarray | None, training: TrainingSettings) -> tuple[float, float]:
    """Returns the mean tokens of a text in training, where a batch is as long as its longest, and of one that is scored."""
    if lengths is None:
        return training.max_length, training.max_length
    cut = np.sort(np.minimum(lengths, training.max_length))
    mean = float(cut.mean())
    if training.group_by_length:
        return mean, mean
    below = np.arange(len(cut) + 1) / len(cut)
    longest = np.diff(below**training.batch_size)  # the probability of each length to be the longest of a batch
    return float(longest @ cut), mean


def _largest_batches(plan: Plan, card: Card) -> tuple[int, int, int, str] | None:
    """Returns what fits into a GPU's memory: the bytes of the configuration that needs most, its largest micro-batch without
    and with gradient checkpointing (0 if none fits), and these in words; None where the memory is not known."""
    from craft.trainer.counting import estimated_memory

    estimated = [row for row in plan.trained or plan.probed if row.estimated_memory_bytes is not None]
    if card.memory is None or not estimated:
        return None
    most = max(estimated, key=lambda row: row.estimated_memory_bytes or 0)
    share = plan.sweep.resources_for(plan.sweep.block_at(most.path)).gpu
    available = card.memory * (share if 0 < share < 1 else 1) - CONTEXT_BYTES
    runs = [run_of(plan, most, task) for task in plan.sweep.task_names]
    run = max(runs, key=estimated_memory)
    step, need = run.training.batch_size * run.training.gradient_accumulation, most.estimated_memory_bytes or 0
    undivided = {"batch_size": step, "gradient_accumulation": 1}
    fits = [fit_batches(run, available, **undivided, gradient_checkpointing=checkpointing) for checkpointing in (False, True)]
    plain, checkpointed = (training.batch_size if training else 0 for training in fits)
    line = f"memory: {format_bytes(need)} of {format_bytes(card.memory)} for {most.label}, which needs most; the largest "
    line += f"micro-batch of its {step} examples a step is {plain} without gradient checkpointing, {checkpointed} with it"
    return need, plain, checkpointed, line
