"""Two processes on two GPUs: the numbers of one, over gloo and split over NCCL; a member that dies ends the other in time.

Without GPUs both processes compute on the processor, and a split base travels over gloo.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

from craft.models.loading import MINILM, load_tokenizer
from craft.results import RunResult
from craft.spec import RunSpec
from craft.trainer.hf_trainer import RunTrainer
from craft.trainer.team import Meeting, MemberLost, gathered
from craft.trainer.training import join_run, train_run

Figure = Callable[[str], None]
MakeSpec = Callable[..., RunSpec]
SECONDS = 30
"""A member's death ends the others within so many."""
PATIENCE = 300


@pytest.fixture
def two(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, {torch.cuda.device_count()} here")


pytestmark = pytest.mark.usefixtures("two")


def fault_at_the_third_step(kind: str, device: str) -> None:
    """From now on, this process is killed (`killed`) or takes more memory than there is (`memory`) in its third step."""
    step, done = RunTrainer.training_step, []

    def breaking(*given: Any) -> Any:
        done.append(1)
        if len(done) == 3 and kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if len(done) == 3 and kind == "memory":
            torch.empty(2**50, dtype=torch.uint8, device=device)
        return step(*given)

    RunTrainer.training_step = breaking  # type: ignore[method-assign]


def member(rank: int, ports: Any, told: Any, spec: RunSpec, folder: Path, device: str, sharded: bool, fault: str) -> None:
    """One of two processes. Rank 0 tells the port of the meeting, and its result or why it has none."""
    torch.set_num_threads(1)
    gpus = device == "cuda"
    meeting = Meeting.opened("127.0.0.1") if rank == 0 else Meeting.at("127.0.0.1", ports.get(timeout=PATIENCE))
    if rank == 0:
        ports.put(meeting.port)
    elif fault:
        fault_at_the_third_step(fault, device)
    try:
        with gathered(meeting, rank, 2, sharded=sharded, gpus=gpus) as team:
            if rank:
                join_run(spec, folder / "1", team)
            else:
                told.put(train_run(spec, folder / "0", team=team))
    except MemberLost as error:
        if rank == 0:
            told.put(str(error))


class Pair:
    """The two processes, each with a GPU of its own where there are some."""

    def __init__(self, spec: RunSpec, folder: Path, device: str, sharded: bool, fault: str = "") -> None:
        context = multiprocessing.get_context("spawn")
        self.told, self.ports = context.Queue(), context.Queue()
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.processes = []
        for rank in range(2):
            gpu = "" if device == "cpu" else listed.split(",")[rank] if listed else str(rank)
            given = (rank, self.ports, self.told, spec, folder, device, sharded, fault)
            with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": gpu}):
                process = context.Process(target=member, args=given, daemon=True)
                process.start()
            self.processes.append(process)

    def result(self) -> RunResult:
        found = self.told.get(timeout=PATIENCE)
        for process in self.processes:
            process.join(60)
        assert isinstance(found, RunResult), found
        return found

    def seconds_of_the_end(self) -> float:
        """Between the end of rank 1 and that of rank 0."""
        self.processes[1].join(PATIENCE)
        began = time.monotonic()
        assert self.processes[1].exitcode is not None, "rank 1 did not fail"
        self.processes[0].join(SECONDS)
        return time.monotonic() - began

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def pair(device: torch.device, tmp_path: Path) -> Any:
    started: list[Pair] = []

    def start(spec: RunSpec, **given: Any) -> Pair:
        started.append(Pair(spec, tmp_path / "team", device.type, **given))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("method", ["craft", "lora"])
def test_two_end_where_one_does(method: str, sharded: bool, tiny_spec: MakeSpec, pair: Any, tmp_path: Path) -> None:
    # 41 examples: one of the two idles in the last micro-batch of an epoch.
    spec = tiny_spec(method=method, training={"train_examples": 41, "gradient_accumulation": 2, "learning_rate": 3e-3})
    both = pair(spec, sharded=sharded).result()
    alone = train_run(spec, tmp_path / "alone")
    left, right = (load_file(run.adapter / "adapter_model.safetensors") for run in (alone, both))
    assert left.keys() == right.keys()
    for name, weight in left.items():
        torch.testing.assert_close(right[name], weight, rtol=1e-3, atol=1e-4)
    assert both.metrics["search_loss"] == pytest.approx(alone.metrics["search_loss"], rel=1e-3)


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("fault", ["killed", "memory"])
def test_a_member_that_ends_is_heard_of(fault: str, sharded: bool, tiny_spec: MakeSpec, pair: Any, figure: Figure) -> None:
    started = pair(tiny_spec(training={"epochs": 200}), sharded=sharded, fault=fault)
    seconds = started.seconds_of_the_end()
    figure(f"the other ended after {seconds:.1f} s with status {started.processes[0].exitcode}")
    assert started.processes[0].exitcode is not None, f"the other still runs after {SECONDS} s"


def test_memory_and_speed_of_a_split_base(
    device: torch.device, tiny_spec: MakeSpec, pair: Any, tmp_path: Path, figure: Figure
) -> None:
    """Gathering that computing hides costs no time: a step of both takes half of a single process's at best."""
    real = device.type == "cuda"
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    BertModel(BertConfig(**sizes if real else small)).save_pretrained(tmp_path / "base")
    load_tokenizer(MINILM).save_pretrained(tmp_path / "base")
    training = {"max_steps": 20, "batch_size": 32 if real else 4, "precision": "bf16-mixed", "max_length": 128}
    spec = tiny_spec(model=str(tmp_path / "base"), training=training)
    both, alone = pair(spec, sharded=True).result().counts, train_run(spec, tmp_path / "alone").counts
    assert both.step_seconds is not None
    assert alone.step_seconds is not None
    assert both.peak_memory_bytes is not None
    assert alone.peak_memory_bytes is not None
    memory = f"peak {both.peak_memory_bytes / 2**20:.0f} MiB a member, {alone.peak_memory_bytes / 2**20:.0f} alone"
    figure(f"{memory}; step {1e3 * both.step_seconds:.0f} ms, {1e3 * alone.step_seconds:.0f} alone")
    if real:
        assert both.peak_memory_bytes < 0.8 * alone.peak_memory_bytes
