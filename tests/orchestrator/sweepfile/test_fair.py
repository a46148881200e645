"""`compare: fair` is what one would write by hand, and what would make it unfair is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from craft.methods import METHODS
from orchestrator.sweepfile.fair import write_out
from tests.orchestrator.plans import toy_sweep

LORA = "  - {method: lora, rank: {values: [1, 2]}}\n"


@pytest.mark.parametrize(
    ("given", "tune", "report"),
    [
        ("", (1000,), (0,)),
        ("seeds: [0, 1000]\n", (1001,), (0, 1000)),
        ("seeds: [0, 1]\ntuning_seeds: [7, 8]\n", (7, 8), (0, 1)),
    ],
)
def test_the_seeds_that_tune_are_not_those_that_are_reported(
    tmp_path: Path, given: str, tune: tuple[int, ...], report: tuple[int, ...]
) -> None:
    sweep = toy_sweep(tmp_path, f"{given}compare: fair\nspace:\n{LORA}")
    assert (sweep.seeds, sweep.replication.seeds, sweep.tuning_seeds) == (tune, report, None)
    assert sweep.tunes


def test_rates_that_no_block_gives_fit_the_method(tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path, f"seeds: [0, 1]\ncompare: fair\nspace:\n{LORA}  - {{method: full}}\n")
    lora, full = (block.dimensions["learning_rate"].values for block in sweep.blocks)
    assert (lora[0], full[0]) == (3e-4, 1e-5)
    assert {len(row.rates) for row in METHODS.values()} == {5}


@pytest.mark.parametrize(
    ("tuned", "block", "expected"),
    [
        ("[learning_rate]", "{method: head}", False),
        ("[learning_rate]", "{method: head, learning_rate: {values: [1e-3, 1e-2, 1e-1, 1, 10]}}", True),
        ("{learning_rate: {}, head_learning_rate: {values: [1e-3]}}", "{method: head, head_learning_rate: 1e-2}", True),
    ],
)
def test_the_head_alone_has_no_rate_to_tune_but_its_own(tmp_path: Path, tuned: str, block: str, expected: bool) -> None:
    content = {"compare": "fair", "tuned": yaml.safe_load(tuned), "space": [yaml.safe_load(block)]}
    (written,) = write_out(content)[0]["space"]
    assert written.get("tuned", True) == expected
    if not expected:
        assert toy_sweep(tmp_path, f"compare: fair\nspace:\n{LORA}  - {block}\n").blocks[1].tuned is False


def test_seeds_and_values_may_come_by_set(tmp_path: Path) -> None:
    sweep = toy_sweep(
        tmp_path, f"space:\n{LORA}", "compare=fair", "seeds=[0, 1, 2]", "tuned={learning_rate: {values: [1e-3, 1e-2]}}"
    )
    assert sweep.seeds == (1000,)
    assert (sweep.replication.seeds, sweep.replication.tuned) == ((0, 1, 2), ("learning_rate",))
