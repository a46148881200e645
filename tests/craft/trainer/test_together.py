"""Several processes train one run: the numbers of one process, shares that differ, equal adapters, parts of the base."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from craft.methods import METHODS
from craft.models import sharding
from craft.processes import Group, current, is_part
from craft.results import RunResult
from craft.settings import Way
from craft.spec import RunSpec
from craft.trainer import finish, training
from craft.trainer.adapter_folder import copy_trainable, save_adapter
from craft.trainer.steps import cut_share
from craft.trainer.training import train_run
from tests.craft.methods.cases import CASES, TYPES, Case
from tests.craft.trainer.several import train_several

MakeSpec = Callable[..., RunSpec]
Losses = list[dict[str, float]]

TEN = ("BOFT", "FOURIERFT", "HRA", "LN_TUNING", "LOKR", "MISS", "OFT", "PSOFT", "UNILORA", "VBLORA")
SUBJECTS = {name: case for name, case in CASES.items() if name in METHODS} | {name: TYPES[name] for name in TEN}


class Watch:
    """Sees the model of a run in every process: the share of the base's bytes here, and whether all adapters are equal."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.share = 1.0
        patch.setattr(training, "shard", self.shard)
        patch.setattr(finish, "save_adapter", self.save)

    def shard(self, model: Any, *arguments: Any) -> None:
        sharding.shard(model, *arguments)
        weights = [weight for weight in model.parameters() if is_part(weight) or not weight.requires_grad] or [
            *model.parameters()
        ]
        here = sum(weight.to_local().numel() if is_part(weight) else weight.numel() for weight in weights)
        self.share = here / max(1, sum(weight.numel() for weight in weights))

    def save(self, model: Any, *arguments: Any) -> Path:
        weights = [weight.numpy().tobytes() for weight in copy_trainable(model).values()]
        digests = current().gather(hashlib.sha256(b"".join(weights)).hexdigest() if weights else None)
        assert len({digest for digest in digests if digest}) <= 1
        return save_adapter(model, *arguments)


def losses_of(train: Callable[..., RunResult], *arguments: Any) -> tuple[Losses, RunResult]:
    points: Losses = []
    result = train(*arguments, report=lambda progress: points.extend(progress.points))
    return points, result


QUICK = (("craft", "shard"), ("full", "replicate"))
PAIRS = [(name, way) for name in SUBJECTS for way in ("replicate", "shard")]


@pytest.mark.parametrize(
    ("name", "way"), [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]
)
def test_two_processes_train_as_one(
    tiny_spec: MakeSpec, tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: Way
) -> None:
    spec = spec_of(tiny_spec, tiny_llama, name, SUBJECTS[name])
    watch = Watch(monkeypatch)
    alone, one = losses_of(train_run, spec, tmp_path / "alone")
    assert watch.share == 1
    together, two = losses_of(train_several, spec, tmp_path, 2, way)
    assert len(together) == len(alone)
    for first, second in zip(together, alone, strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    assert watch.share <= 0.55 if way == "shard" else watch.share == 1
    assert two.metrics == pytest.approx(one.metrics, abs=1e-3)
    assert f"trained by 2 processes ({way})" in two.notes
    assert two.counts.trainable_parameters == one.counts.trainable_parameters


def spec_of(tiny_spec: MakeSpec, llama: str, name: str, case: Case) -> RunSpec:
    # Steps of 8, 8 and 5 examples: the last one has shares of 3 and 2.
    steps = {"max_steps": 6, "train_examples": 21, "eval_examples": 12, "evaluate_every": "end", "weight_decay": 0.01}
    training = steps | {"batch_size": 2, "gradient_accumulation": 4, "learning_rate": case.learning_rate / 10}
    words = {"model": llama, "task": "toy/grammar"} if case.words else {}
    return tiny_spec(method="peft" if name in TEN else name, parameters=case.parameters, training=training, **words)


def test_every_example_of_a_step_is_in_one_share() -> None:
    for count, size in ((2, 8), (3, 7), (4, 2)):
        examples = [*range(100, 100 + size)]
        shares = [cut_share(Group(rank=rank, count=count), examples, 2) for rank in range(count)]
        assert len({len(batches) for batches, _ in shares}) == 1
        assert [row for batches, counted in shares for batch in batches[:counted] for row in batch] == examples
