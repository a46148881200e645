"""Laws of sweep files and of keys, on files drawn at random."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import create_model

from craft.settings import DataSettings, MeasureSettings, TrainingSettings
from craft.spec import RunSpec
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import sample
from orchestrator.sweepfile.sweep import Sweep

RATES = st.sampled_from([1e-4, 1e-3, 0.01])
TRAINING: dict[str, st.SearchStrategy[Any]] = {
    "epochs": st.sampled_from([1, 2.5, 3]),
    "batch_size": st.sampled_from([8, 16]),
    "learning_rate": RATES,
    "head_learning_rate": st.none() | RATES,
    "evaluate_every": st.sampled_from([0.5, 1]),
    "schedule": st.sampled_from(["linear", "cosine"]),
    "tf32": st.booleans(),
}
TASKS = ["toy/sentiment", "toy/paraphrase", "glue/stsb"]


def some(keys: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


def dimension(value: st.SearchStrategy[Any], ranges: bool) -> st.SearchStrategy[Any]:
    choice = st.fixed_dictionaries({"values": st.lists(value, min_size=1, max_size=3, unique_by=str)})
    return st.one_of(value, choice, st.just({"min": 1, "max": 8})) if ranges else value | choice


def block(ranges: bool) -> st.SearchStrategy[dict[str, Any]]:
    searched = {"learning_rate": dimension(RATES, False), "epochs": dimension(st.sampled_from([1, 2]), ranges)}
    own = {
        "task_training": some({"toy": some({"batch_size": TRAINING["batch_size"]})}),
        "resources": some({"cpu": st.sampled_from([1, 2]), "memory": st.sampled_from(["1 GiB", 2**30])}),
        "sizes": st.sampled_from([2, [20, 40]]),
    }
    ranks = st.sampled_from([["all", 8, 8], [2, 16, 8]])
    return st.one_of(
        st.fixed_dictionaries({"method": st.just("craft"), "ranks": dimension(ranks, False)}, optional=searched | own),
        st.fixed_dictionaries({"method": st.just("lora"), "r": dimension(st.integers(1, 4), ranges)}, optional=searched | own),
        st.fixed_dictionaries({"method": st.just("bitfit")}, optional=searched | {"tuned": st.just(False)}),
    )


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    drawn = draw(st.booleans())
    keys = {
        "seeds": st.lists(st.integers(0, 9), min_size=1, max_size=2, unique=True),
        "training": some(TRAINING),
        "task_training": some({"toy": some(TRAINING), "toy/sentiment": some({"epochs": TRAINING["epochs"]})}),
        "constraints": st.just({"adapter_bytes": {"max": 1e9}}),
        "resources": some({"cpu": st.sampled_from([1, 2]), "memory": st.sampled_from([None, "2 GiB"])}),
        "scheduler": st.sampled_from([{"name": "promotion", "grace": 0.5}, {}]),
        "replication": st.just({"seeds": [77], "tuned": ["learning_rate"]}),
        "budget": some({"trials": st.integers(1, 9), "wall_clock": st.sampled_from([None, "8h"])}),
        "measure": st.sampled_from([{"forgetting": False}, {"forgetting": True}]),
        "warm_start": st.just({"toy/sentiment": "toy/paraphrase"}),
        "compare": st.sampled_from([None, "fair"]),
    }
    content = {
        "name": "drawn",
        "model": "some/model",
        "tasks": draw(st.lists(st.sampled_from(TASKS), min_size=1, max_size=2, unique=True)),
        "space": draw(st.lists(block(ranges=drawn), min_size=1, max_size=2)),
    }
    if drawn:
        content["search"] = {"algorithm": draw(st.sampled_from(["random", "tpe", "auto"])), "configurations": 4}
    return content | draw(some(keys))


def load(text: str) -> Sweep:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(text)
        return load_sweep(file)


def keys_of(sweep: Sweep) -> list[str]:
    points = sample(sweep.blocks, 0)
    return [
        RunSpec(
            model=sweep.model,
            task=task,
            method=point.method,
            parameters=point.parameters,
            training=sweep.training_for(task, point.training, sweep.blocks[point.block]),
            data=sweep.data,
            seed=seed,
            measure=sweep.measure,
        ).key
        for point in (next(points) for _ in range(4))
        for task in sweep.task_names
        for seed in sweep.seeds
    ]


def load_or_reject(content: dict[str, Any]) -> Sweep:
    try:
        return load(json.dumps(content))
    except SweepError:
        reject()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(contents())
def test_a_sweep_that_is_written_out_loads_to_an_equal_sweep(content: dict[str, Any]) -> None:
    sweep = load_or_reject(content)
    again = load(sweep.to_yaml())
    assert again.model_dump() == sweep.model_dump()
    assert (again.blocks, again.shares) == (sweep.blocks, sweep.shares)
    assert again.to_yaml() == sweep.to_yaml()
    assert keys_of(again) == keys_of(sweep)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(contents(), st.randoms(use_true_random=False))
def test_equal_content_has_equal_keys(content: dict[str, Any], random: Any) -> None:
    """Neither the order of keys nor a second name of one, a default that is written nor where trials run is content."""
    sweep = load_or_reject(content)
    written = {name: field.default for name, field in TrainingSettings.model_fields.items()} | content.get("training", {})
    rewritten = content | {
        "training": {name: written[name] for name in random.sample(list(written), len(written))},
        "space": [{"rank" if key == "r" else key: value for key, value in block.items()} for block in content["space"]],
        "storage": "elsewhere",
        "resources": {"cpu": 3},
    }
    if content.get("compare"):
        rewritten["training"].pop("learning_rate")
    assert keys_of(load(json.dumps(dict(random.sample(list(rewritten.items()), len(rewritten)))))) == keys_of(sweep)


@settings(max_examples=30, deadline=None)
@given(some(TRAINING), st.booleans() | st.integers() | st.text(max_size=3) | st.none())
def test_a_new_setting_at_its_default_changes_no_key_and_another_value_does(training: dict[str, Any], default: Any) -> None:
    content = {"model": "m", "task": "toy/sentiment", "method": "lora", "training": training}
    for section, earlier in (("training", TrainingSettings), ("data", DataSettings), ("measure", MeasureSettings)):
        later = create_model("Later", __base__=earlier, new=(Any, default))
        run = create_model("LaterRun", __base__=RunSpec, **{section: (later, later())})  # type: ignore[call-overload]
        key = RunSpec.model_validate(content).key
        assert run.model_validate(content).key == key, section
        written = content.get(section, {})
        assert run.model_validate({**content, section: {**written, "new": default}}).key == key, section
        assert run.model_validate({**content, section: {**written, "new": [default]}}).key != key, section
