"""Several processes train one run: the numbers of one process, shares that differ, equal adapters, parts of the base."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from craft.methods import METHODS
from craft.methods.by_peft_name import WHOLE
from craft.models import compute
from craft.processes import current, is_part
from craft.results import Leave, OutOfMemory, RunFailed, RunPrevented, RunResult
from craft.settings import WarmStart, Way
from craft.spec import RunSpec
from craft.trainer import run, training
from craft.trainer.adapter_folder import copy_trainable, save_adapter
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.craft.methods.cases import CASES, TYPES, Case
from tests.craft.trainer.same import train_watched
from tests.craft.trainer.several import train_several
from tests.word_pairs import colours

TEN = ("BOFT", "FOURIERFT", "HRA", "LN_TUNING", "LOKR", "MISS", "OFT", "PSOFT", "UNILORA", "VBLORA")
SUBJECTS = {name: case for name, case in CASES.items() if name in METHODS} | {name: TYPES[name] for name in TEN}


class Watch:
    """Sees the model of a run in every process: the share of the base's numbers there, and whether all adapters are equal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, *arguments: Any, **calls: Any) -> RunResult:
        """Trains, watched."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "shard", self.shard)
            patch.setattr(run, "save_adapter", self.save)
            return train_run(*arguments, **calls)

    def shard(self, model: Any, *arguments: Any) -> None:
        compute.shard(model, *arguments)
        weights = [weight for weight in model.parameters() if is_part(weight) or not weight.requires_grad]
        weights = weights or [*model.parameters()]
        here = sum(weight.to_local().numel() if is_part(weight) else weight.numel() for weight in weights)
        (self._folder / f"{current().rank}.share").write_text(f"{here / sum(weight.numel() for weight in weights)}")

    def save(self, model: Any, *arguments: Any) -> Path:
        weights = [weight.numpy().tobytes() for weight in copy_trainable(model).values()]
        digests = current().gather(hashlib.sha256(b"".join(weights)).hexdigest() if weights else None)
        assert len({digest for digest in digests if digest}) <= 1
        if current().count > 1:
            listening = {at.laddr.ip for at in psutil.Process().net_connections("inet") if at.status == psutil.CONN_LISTEN}
            assert listening <= {"127.0.0.1"}, "nobody elsewhere reaches the ports of store and gloo"
        return save_adapter(model, *arguments)

    def shares(self) -> list[float]:
        return [float(file.read_text()) for file in self._folder.glob("*.share")]


pytestmark = pytest.mark.slow  # processes are forked from one that imports torch
WAYS: tuple[Way, ...] = ("replicate", "shard")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "count", "examples"), [*((name, 2, 21) for name in SUBJECTS), ("lora", 4, 19)])
def test_several_processes_train_as_one(
    tiny_spec: MakeSpec, tmp_path: Path, name: str, count: int, examples: int, way: Way
) -> None:
    """The last of 19 examples are 3, so one of four processes repeats an example that does not count."""
    spec = spec_of(tiny_spec, name, SUBJECTS[name], examples)
    watch = Watch(tmp_path)
    one, alone = train_watched(spec, tmp_path / "alone", watch)
    assert watch.shares() == [1]
    several, together = train_several(spec, tmp_path, count, way, watch)
    assert len(together) == len(alone) == 6
    for first, second in zip(together, alone, strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    assert len(watch.shares()) == count
    assert max(watch.shares()) <= 1.1 / count if way == "shard" else watch.shares() == [1] * count
    assert several.metrics == pytest.approx(one.metrics, abs=1e-3)
    assert f"trained by {count} processes ({way})" in several.notes
    assert several.counts.trainable_parameters == one.counts.trainable_parameters


def spec_of(tiny_spec: MakeSpec, name: str, case: Case, examples: int = 21) -> RunSpec:
    # Steps of 8, 8 and 5 examples: the last one has shares of 2 and 3.
    steps = {"max_steps": 6, "train_examples": examples, "eval_examples": 12, "evaluate_every": "end", "weight_decay": 0.01}
    training = steps | {"batch_size": 2, "gradient_accumulation": 4, "learning_rate": case.learning_rate / 10}
    return tiny_spec(method="peft" if name in TEN else name, parameters=case.parameters, training=training)


def compare(alone: RunResult, together: RunResult) -> None:
    assert together.metrics == pytest.approx(alone.metrics, abs=1e-3)
    for cut, other in zip(alone.cuts, together.cuts, strict=True):
        assert other.metrics == pytest.approx(cut.metrics, abs=1e-3)
        assert other.counts.trainable_parameters == cut.counts.trainable_parameters


@pytest.mark.parametrize("way", ["replicate", "shard"])
@pytest.mark.parametrize(("method", "sizes"), [("craft", (60, 150)), ("lora", (200, 300))])
def test_cuts_are_those_of_one_process(
    tiny_spec: MakeSpec, tmp_path: Path, method: str, sizes: tuple[int, ...], way: Way
) -> None:
    spec = tiny_spec(method=method, training={"max_steps": 6, "learning_rate": 3e-3})
    compare(train_run(spec, tmp_path / "alone", cuts=sizes), train_several(spec, tmp_path, 2, way, cuts=sizes)[0])


WORDS = {"full": Case({}, 0), "lora": Case({"rank": 4}, 0)}
WORDS |= {name: TYPES[name] for name in ("ADAPTION_PROMPT", "SHADOW", "TRAINABLE_TOKENS")}


@pytest.mark.parametrize("way", ["replicate", "shard"])
@pytest.mark.parametrize("name", WORDS)
def test_answers_in_words_are_those_of_one_process(tiny_llama: str, tmp_path: Path, name: str, way: Way) -> None:
    if way == "shard" and name in WHOLE:
        pytest.skip("refused by the plan")
    spec = RunSpec(
        **colours(tmp_path, "exact_match", beams=2, max_new_tokens=8),
        model=tiny_llama,
        method=name if name in METHODS else "peft",
        parameters=WORDS[name].parameters,
        training={"max_steps": 3, "batch_size": 4, "eval_batch_size": 2, "max_length": 300, "learning_rate": 1e-4},
        measure={"forgetting": True},
    )
    compare(train_run(spec, tmp_path / "alone"), train_several(spec, tmp_path, 2, way)[0])


def ends_in_the_second(step: int, error: Exception | None, spec: RunSpec, directory: Path, **calls: Any) -> RunResult:
    """Trains until the second process has done a step, where it raises `error`, or is killed."""
    on_step = calls.pop("on_step")

    def end_step(number: int, total: int) -> None:
        on_step(number, total)
        if number == step and current().rank == 1:
            if error is None:
                os.kill(os.getpid(), 9)
            else:
                raise error

    return train_run(spec, directory, on_step=end_step, **calls)


LEAVES = partial(ends_in_the_second, 3, Leave("its machine is drained"))


@pytest.mark.parametrize("way", ["replicate", "shard"])
@pytest.mark.parametrize("method", ["lora", "full", "galore"])
def test_all_leave_with_one_and_others_continue(tiny_spec: MakeSpec, tmp_path: Path, method: str, way: Way) -> None:
    # After 3 of 6 steps; step 3 is evaluated, so the best weights are those of an earlier step or of this one.
    training = {"max_steps": 6, "evaluate_every": 0.17, "learning_rate": 1e-3}
    spec = tiny_spec(method=method, parameters=CASES[method].parameters, training=training)
    undisturbed = train_run(spec, tmp_path / "alone")
    with pytest.raises(Leave, match="drained"):
        train_several(spec, tmp_path / "two", 2, way, LEAVES)
    checkpoint = find_newest_checkpoint(tmp_path / "two" / "0")
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-3"
    assert find_newest_checkpoint(tmp_path / "two" / "1") is None
    compare(undisturbed, train_run(spec, tmp_path / "one", resume_from=checkpoint))
    compare(undisturbed, train_several(spec, tmp_path / "three", 3, way, resume_from=checkpoint)[0])


def without_the_disk(disk: Path, *arguments: Any, **calls: Any) -> RunResult:
    """Trains where the second process does not see what is in the folder `disk`."""
    see = Path.is_file
    with pytest.MonkeyPatch.context() as patch:
        if current().rank == 1:
            patch.setattr(Path, "is_file", lambda path: not path.is_relative_to(disk) and see(path))
        return train_run(*arguments, **calls)


def test_a_process_on_another_disk_gets_checkpoint_cut_and_source_from_the_first(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec = tiny_spec(method="lora", training={"max_steps": 6, "evaluate_every": 0.17, "learning_rate": 1e-3})
    disk = tmp_path / "0"
    undisturbed = train_run(spec, tmp_path / "alone", cuts=[200])
    with pytest.raises(Leave, match="drained"):
        train_several(spec, tmp_path, 2, "replicate", LEAVES)
    checkpoint = find_newest_checkpoint(disk)
    elsewhere = partial(without_the_disk, disk)
    compare(undisturbed, train_several(spec, tmp_path, 2, "replicate", elsewhere, resume_from=checkpoint, cuts=[200])[0])
    assert find_newest_checkpoint(tmp_path / "1") is None
    assert (tmp_path / "1" / "delivered" / "state.json").is_file()
    source = WarmStart(run=spec.key, adapter=str(train_run(spec, disk / "source").adapter))
    started = spec.model_copy(update={"seed": 1, "warm_start": source})
    compare(train_run(started, tmp_path / "started"), train_several(started, tmp_path, 2, "replicate", elsewhere)[0])


@pytest.mark.parametrize("way", ["replicate", "shard"])
@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (None, RunPrevented, "process 2 of 2: "),
        (MemoryError("Cannot allocate memory"), OutOfMemory, "out of memory with micro-batches"),
        (RunFailed("a column is missing"), RunFailed, "a column is missing"),
    ],
)
def test_one_process_that_fails_ends_all_with_its_reason(
    tiny_spec: MakeSpec, tmp_path: Path, error: Exception | None, kind: type[Exception], reason: str, way: Way
) -> None:
    with pytest.raises(kind, match=reason):
        train_several(tiny_spec(method="lora"), tmp_path, 2, way, partial(ends_in_the_second, 2, error))
