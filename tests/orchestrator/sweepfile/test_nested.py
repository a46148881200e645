"""Nested ranks in a sweep file: how they are written, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Choice
from orchestrator.sweepfile.sweep import Sweep

NESTED = "{nested: [[all, 32, 32], [all, 16, 16]]}"


def load(folder: Path, ranks: str, block: str = "warm_start: true", more: str = "seeds: [0]") -> Sweep:
    file = folder / "sweep.yaml"
    text = "name: t\nmodel: m\ntasks: [toy/sentiment, toy/entailment]\nspace:\n  - method: craft\n"
    file.write_text(f"{text}    ranks: {ranks}\n    {block}\n{more}\n")
    return load_sweep(file)


@pytest.mark.parametrize("ranks", [NESTED, f"{{values: [{NESTED}]}}", '{nested: [[all, "32", 32], [all, 16, 16]]}'])
def test_nested_ranks_are_one_value_ascending(tmp_path: Path, ranks: str) -> None:
    (block,) = load(tmp_path, ranks, "learning_rate: {values: [0.001, 0.01]}").blocks
    assert block.dimensions["ranks"] == Choice(({"nested": [["all", 16, 16], ["all", 32, 32]]},))
    assert block.size == 2


def test_they_stand_beside_ranks_that_are_trained_alone(tmp_path: Path) -> None:
    sweep = load(tmp_path, f"{{values: [[all, 8, 8], {NESTED}]}}")
    assert sweep.blocks[0].size == 2
    (tmp_path / "again.yaml").write_text(sweep.to_yaml())
    assert load_sweep(tmp_path / "again.yaml").blocks == sweep.blocks


@pytest.mark.parametrize(
    ("ranks", "path", "message"),
    [
        ("{nested: [[all, 32, 16], [all, 16, 32]]}", "ranks.nested", "does not lie within"),
        ("{nested: [[all, 8, 8], [all, 8, 8]]}", "ranks.nested", "twice"),
        ("{nested: []}", "ranks.nested", "one or more triples"),
        ("{nested: [[all, 8, 8], [all, 8]]}", "ranks.nested.1", "must be three ranks"),
        ("{nested: [[all, 8, 8], [all, 0, 8]]}", "ranks.nested.1", "whole numbers from 1"),
        ("{nested: [[all, 8, 8]], way: cut}", "ranks.way", "unknown key 'way' beside nested"),
        ("{values: [[all, 8, 8], {nested: [[all, 8, 0]]}]}", "ranks.values.1.nested.0", "whole numbers from 1"),
    ],
)
def test_ranks_that_do_not_nest_are_refused_at_their_line(tmp_path: Path, ranks: str, path: str, message: str) -> None:
    with pytest.raises(SweepError, match=message) as refused:
        load(tmp_path, ranks)
    assert refused.value.lines[0].startswith(f"{tmp_path / 'sweep.yaml'}:6: space.0.{path}: ")


def test_a_method_without_ranks_that_nest_refuses_them(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("name: t\nmodel: m\ntasks: [toy/sentiment]\nspace:\n  - method: lora\n    rank: {nested: [2, 4]}\n")
    with pytest.raises(SweepError, match="ranks nest, and rank does not; methods with such ranks: craft, craft_star"):
        load_sweep(file)


def test_the_list_is_a_value_of_ranks_and_no_key_of_the_block(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r":7: space\.0\.nested: is no key of a block; nested ranks are a value of ranks"):
        load(tmp_path, "[all, 8, 8]", "nested: [[all, 8, 8], [all, 16, 16]]")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("search: {algorithm: tpe, trials: 4}", "tpe learns what one configuration is worth"),
        ("scheduler: {name: pbt, interval: 1}", "pbt changes configurations while they train"),
        ("warm_start: {toy/entailment: toy/sentiment}", "a warm start begins from one adapter"),
    ],
)
def test_what_does_not_go_with_them_is_refused_in_words(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(SweepError, match=rf":6: space\.0\.ranks: .*{message}"):
        load(tmp_path, NESTED, more=more)


def test_a_block_that_starts_afresh_may_have_them(tmp_path: Path) -> None:
    assert load(tmp_path, NESTED, "warm_start: false", "warm_start: {toy/entailment: toy/sentiment}").blocks
