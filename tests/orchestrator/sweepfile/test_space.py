"""What samples draw, and blocks of `method: peft`, whose config's keys are dimensions that the plan counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from peft import LoraConfig
from scipy import stats

from craft.methods import by_peft_name as installed
from orchestrator.plan.configuration import flat_parameters
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.sweepfile.space.blocks import parse_block
from orchestrator.sweepfile.space.dimensions import Block, Choice, grid, neighbours, sample
from tests.orchestrator.plans import config_alone, toy_sweep
from tests.orchestrator.sweepfile.test_schema import VALIDATOR


def block(content: dict, index: int = 0) -> Block:
    parsed, mistakes = parse_block(content, index)
    assert not mistakes
    return parsed


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"min": 1e-4, "max": 1e-1, "distribution": "log_uniform"}, stats.loguniform(1e-4, 1e-1)),
        ({"min": 0.2, "max": 0.4}, stats.uniform(0.2, 0.2)),
        ({"min": 1, "max": 2}, stats.uniform(1, 1)),
    ],
)
def test_ranges_of_a_setting_with_fractions_are_drawn_by_their_distribution(content: dict, expected: Any) -> None:
    searched = block({"method": "lora", "learning_rate": content})
    drawn = [point.training["learning_rate"] for point in islice(sample((searched,), 0), 2000)]
    assert stats.kstest(drawn, expected.cdf).pvalue > 0.001
    assert len({*drawn}) == 2000


@pytest.mark.parametrize(
    ("distribution", "law"), [("int_uniform", stats.uniform(0.5, 4)), ("int_log_uniform", stats.loguniform(0.5, 4.5))]
)
def test_whole_numbers_reach_both_ends_and_stay_whole(distribution: str, law: Any) -> None:
    searched = block({"method": "lora", "rank": {"min": 1, "max": 4, "distribution": distribution}})
    drawn = [point.parameters["rank"] for point in islice(sample((searched,), 0), 4000)]
    assert all(isinstance(value, int) for value in drawn)
    assert {*drawn} == {1, 2, 3, 4}
    expected = 4000 * np.diff(law.cdf(np.arange(0.5, 5)))
    assert stats.chisquare([drawn.count(value) for value in (1, 2, 3, 4)], expected).pvalue > 0.001


def test_a_default_that_no_record_holds_may_be_written() -> None:
    """The key of a run with it is the one it had before the setting was known, so its parameters leave it out."""
    written = block({"method": "craft", "rate_scaling": {"values": ["none", "rank"]}})
    assert written.dimensions["rate_scaling"] == Choice(("none", "rank"))


SWEEP = """\
name: small
model: MODEL
tasks: [toy/sentiment]
space:
  - {method: peft, peft_type: lily, config: {r: {values: [2, 4]}, num_B: 2}, projections: [q, k, v, o]}
  - {method: peft, peft_type: HIRA, config: {r: 4}, learning_rate: {values: [1e-3, 1e-2]}}
  - {method: peft, peft_type: FROD, config: {sparse_rate: 0.01}}
"""


@dataclass
class LorafaxConfig(LoraConfig):
    """A tuner's configuration as a user's own module defines it."""


LILY = block(
    {
        "method": "peft",
        "peft_type": "lily",
        "config": {"r": {"values": [2, 4, 8]}, "num_B": 3, "scaling": {"min": 0.5, "max": 2.0}, "layers_pattern": None},
        "learning_rate": {"values": [1e-3, 3e-3]},
    }
)


def test_points_hold_config_as_peft_takes_it() -> None:
    for point in islice(sample((LILY,), 0), 20):
        config = point.parameters["config"]
        assert point.parameters.keys() == {"peft_type", "config"}
        assert config.keys() == {"r", "num_B", "scaling", "layers_pattern"}
        assert config["r"] in (2, 4, 8)
        assert 0.5 <= config["scaling"] <= 2.0
        assert point.values.keys() == LILY.dimensions.keys()
    near = next(sample((LILY,), 0))
    for other in neighbours((LILY,), near, 1):
        assert sum(other.values[name] != near.values[name] for name in near.values) == 1
    alone = block({"method": "peft", "peft_type": "BEFT"})
    assert [point.parameters for point in grid((alone,))] == [{"peft_type": "BEFT"}]


def test_the_plan_counts_names_and_tells_apart(tmp_path: Path) -> None:
    text = SWEEP.replace("MODEL", config_alone(tmp_path / "tiny"))
    sweep = toy_sweep(tmp_path, text)
    VALIDATOR.validate(yaml.safe_load(sweep.to_yaml()))
    plan = make_plan(sweep)
    # 8 modules of 32 x 32 with q, k, v and o: an A each, two B for each of the four, routers. Then 4 modules with q and v.
    lily = {r: 8 * r * 32 + 4 * 2 * r * 32 + 8 * r * 2 for r in (2, 4)}
    frod = 4 * (32 + int(0.01 * 32 * 32))
    counts = {(configuration.label, configuration.counts.trainable_parameters) for configuration in plan.configurations}
    assert counts == {
        ("PEFT LILY r 2 num_B 2, q k v o", lily[2]),
        ("PEFT LILY r 4 num_B 2, q k v o", lily[4]),
        ("PEFT HIRA r 4, q v, lr 0.001", 4 * 4 * 64),
        ("PEFT HIRA r 4, q v, lr 0.01", 4 * 4 * 64),
        ("PEFT FROD sparse_rate 0.01, q v", frod),
    }
    assert len({configuration.id for configuration in plan.configurations}) == 5
    flat = flat_parameters(plan.trials[0].run)
    assert (flat["method"], flat["peft_type"], flat["config.r"], flat["projections"]) == ("peft LILY", "LILY", 2, "q,k,v,o")
    assert {trial.trial.method for trial in plan.trials} == {"peft LILY", "peft HIRA", "peft FROD"}
    for tuned, together in (("config.r", True), ("projections", False)):
        tuning = toy_sweep(tmp_path, text, f"replication={{seeds: [9], tuned: [{tuned}]}}")
        assert (len(set(map(Planner(tuning).identity.group, plan.configurations[:2]))) == 1) == together


def test_a_type_that_only_this_process_registered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a sweep import PEFT and this project, so none of them would know it."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    monkeypatch.setitem(PEFT_TYPE_TO_CONFIG_MAPPING, Enum("Types", {"LORAFAX": "LORAFAX"}).LORAFAX, LorafaxConfig)
    installed.config_classes.cache_clear()
    try:
        parsed, (mistake,) = parse_block({"method": "peft", "peft_type": "lorafax", "config": {"r": 4}}, 0)
    finally:
        monkeypatch.undo()
        installed.config_classes.cache_clear()
    assert parsed is None
    assert mistake.path == ("space", 0, "peft_type")
    assert f"LORAFAX is registered with PEFT by {__name__}" in mistake.message
    assert "do not import" in mistake.message
