"""What flags of earlier sessions changed stays with the sweep, until the file or a flag says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.record.overrides import make_overrides, recall, write_overrides
from orchestrator.sweepfile.mistakes import SweepError

FILE = "name: t\nseeds: [0]\ntraining: {epochs: 1}\nspace: [{method: head}, {method: lora, rank: 8}]\n"


@pytest.mark.parametrize(
    ("given", "now", "file", "holding"),
    [
        (["seeds=[0,1,2]"], [], FILE, ["seeds=[0,1,2]"]),
        (["seeds=[0,1,2]"], ["seeds=[0]"], FILE, []),
        (["seeds=[0,1,2]"], [], FILE.replace("[0]", "[0, 1]"), []),
        (["seeds=[0,1,2]"], [], FILE.replace("epochs: 1", "epochs: 2"), ["seeds=[0,1,2]"]),
        (["training.epochs=3"], ["training={epochs: 5}"], FILE, []),
        (["training={epochs: 5}"], ["training.epochs=3"], FILE, ["training={epochs: 5}"]),
        (["budget.trials=4"], [], FILE, ["budget.trials=4"]),
        (["budget.trials=4"], [], FILE + "budget: {trials: 9}\n", []),
        (["space.1.sizes=4"], [], FILE, ["space.1.sizes=4"]),
        # Another block stands where the flag meant one, or the block has changed.
        (["space.1.sizes=4"], [], FILE.replace("{method: head}, ", "{method: head}, {method: ia3}, "), []),
        (["space.1.sizes=4"], [], FILE.replace("rank: 8", "rank: 4"), []),
        (["name=u", "storage=elsewhere"], [], FILE, []),
    ],
)
def test_what_was_set_holds_until_the_file_or_a_flag_says_otherwise(
    tmp_path: Path, given: list[str], now: list[str], file: str, holding: list[str]
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(FILE)
    write_overrides(tmp_path, make_overrides(path, given))
    path.write_text(file)
    earlier, lines = recall(tmp_path, path, make_overrides(path, now))
    assert [override.assignment for override in earlier] == holding
    assert all(any(line.startswith(assignment) for line in lines) for assignment in holding)
    if not now and not holding and "name=u" not in given:
        assert "the file holds" in lines[0]


def test_overrides_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(FILE)
    assert recall(tmp_path, tmp_path / "sweep.yaml", []) == ([], [])
    (tmp_path / "overrides.json").write_text("[{]")
    with pytest.raises(SweepError, match=r"overrides\.json holds what earlier sessions set"):
        recall(tmp_path, tmp_path / "sweep.yaml", [])
