"""Layers on two GPUs: accelerate divides the base, one process computes, and the numbers are those of one GPU.

bitsandbytes has no kernels for a pretended GPU, so QLoRA's base is not quantized here; all else is QLoRA's way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from craft import processes
from craft.models import loading
from craft.models.loading import SPREAD
from craft.processes import Group
from craft.results import Progress
from craft.spec import RunSpec
from craft.trainer import training
from craft.trainer.loop import Loop
from craft.trainer.training import train_run
from tests.craft.pretended_gpu.gpu import pretended

MakeSpec = Callable[..., RunSpec]
STEPS = {"max_steps": 6, "batch_size": 4, "eval_batch_size": 8, "train_examples": 24, "eval_examples": 16}


def sentiment(_folder: Path) -> dict[str, Any]:
    return {"task": "toy/sentiment", "training": STEPS}


def answers(folder: Path) -> dict[str, Any]:
    rows = [{"question": f"Colour of {n}?", "answer": f"It is {['red', 'blue', 'green', 'gold'][n % 4]}."} for n in range(60)]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"kind": "generation", "train": str(folder / "qa.jsonl"), "prompt": "question", "response": "answer"}
    data = {"custom": {"qa": task | {"metric": "exact_match"}}, "generation": {"beams": 2, "max_new_tokens": 4}}
    return {"task": "custom/qa", "training": STEPS | {"max_length": 300}, "data": data}


@pytest.mark.patient  # each product is looked at on a pretended GPU
@pytest.mark.parametrize(("base", "task", "room"), [("tiny_llama", answers, 0.8), ("tiny_bert", sentiment, 0.9)])
def test_layers_on_two_gpus_have_the_numbers_of_one(
    base: str,
    task: Callable[[Path], dict[str, Any]],
    room: float,
    tiny_spec: MakeSpec,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`room` is the part of the base that the first GPU may hold, with a layer in reserve."""
    model = request.getfixturevalue(base)
    size = (Path(model) / "model.safetensors").stat().st_size
    spec = tiny_spec(model=model, method="qlora", parameters={"rank": 4}, **task(tmp_path))

    def divide(*arguments: Any) -> dict[str, Any]:
        device = arguments[-1]
        spread = {"device_map": device, "max_memory": {0: int(room * size), 1: 10 * size}}
        return spread if device == SPREAD else {"device_map": {"": device}}

    def loop(*arguments: Any, **calls: Any) -> Loop:
        weights = [*arguments[2].named_parameters()]
        places.append(
            [{weight.device.index for name, weight in weights if ("lora_" in name) == ours} for ours in (False, True)]
        )
        return Loop(*arguments, **calls)

    def follow(progress: Progress) -> None:
        losses[-1].extend(point["train_loss"] for point in progress.points)

    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # other threads do not see the pretended GPUs
    monkeypatch.setattr(loading, "_quantized", divide)
    monkeypatch.setattr(training, "refuse_elsewhere", lambda _method: None)
    monkeypatch.setattr(training, "Loop", loop)
    places, losses, scores = list[list[set[int]]](), list[list[float]](), list[dict[str, float]]()
    for group, count in ((Group(), 1), (Group("layers"), 2)):
        monkeypatch.setattr(processes, "_current", group)
        losses.append([])
        with pretended(count):
            result = train_run(spec, tmp_path / group.way, report=follow)
        scores.append(result.metrics)
    assert places == [[{0}, {0}], [{0, 1}, {0, 1}]]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert scores[1] == pytest.approx(scores[0], rel=1e-6)
