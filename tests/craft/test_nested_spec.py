"""Nested ranks in a run's description: what is refused, how keys are made, which runs belong together."""

from __future__ import annotations

from typing import Any

import pytest

from craft.spec import RunSpec

TRIPLES = [["all", 16, 16], ["all", 32, 32], ["all", 64, 64]]


def spec(**parameters: Any) -> RunSpec:
    earlier = {"head_start": "random", "head_learning_rate": None}
    return RunSpec(model="m", task="toy/sentiment", method="craft", parameters=parameters, training=earlier)


def test_a_run_that_does_not_nest_keeps_the_key_of_earlier_versions() -> None:
    plain = spec(ranks=["all", 32, 32])
    assert plain.key == spec(ranks=["all", 32, 32], rate_scaling="none", nested=None).key == "1e136c2d1ef0946f"
    assert {"nested", "nested_training"}.isdisjoint(plain.parameters)
    assert spec(ranks=["all", 32, 32], rate_scaling="rank").key != plain.key


def test_a_record_without_a_rate_scaling_means_none() -> None:
    content = spec(ranks=["all", 32, 32]).model_dump(mode="json")
    content["parameters"].pop("rate_scaling", None)
    assert RunSpec.recorded(content).key == spec(ranks=["all", 32, 32], rate_scaling="none").key


def test_slices_are_runs_that_differ_in_their_ranks_and_name_one_training() -> None:
    one = spec(ranks=TRIPLES[1], nested=[TRIPLES[2], TRIPLES[0], TRIPLES[1]])
    assert [run.parameters["ranks"] for run in one.slices] == TRIPLES
    assert len({run.key for run in one.slices}) == 3
    assert one.slices[1].key == one.key
    assert {run.training_key for run in one.slices} == {one.slices[2].key}
    assert spec(ranks=TRIPLES[2]).training_key == spec(ranks=TRIPLES[2]).key
    for run in one.slices:
        assert RunSpec.model_validate(run.model_dump(mode="json")).key == run.key
        assert RunSpec.recorded(run.model_dump(mode="json")).key == run.key


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ranks": ["all", 8, 8], "nested": TRIPLES}, "none of the nested ones"),
        ({"ranks": ["all", 8, 16], "nested": [["all", 8, 16], ["all", 16, 8]]}, "does not lie within"),
        ({"ranks": ["all", 8, 8], "nested": [["all", 8, 8], [12, 16, 16]]}, "does not lie within"),
        ({"ranks": ["all", 8, 8], "nested": [["all", 8, 8], ["all", 8, 8]]}, "twice"),
        ({"ranks": ["all", 8, 8], "nested": []}, "got none"),
        ({"ranks": ["all", 8, 8], "nested": [["all", 0, 8], ["all", 8, 8]]}, "whole numbers from 1"),
        ({"ranks": ["all", 8, 8], "nested_training": "all"}, "lists none"),
    ],
)
def test_ranks_that_do_not_nest_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**parameters)
