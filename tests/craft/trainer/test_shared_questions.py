"""Questions split between real processes over gloo: the files and scores of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from craft.scoring.sharing import turns
from craft.spec import RunSpec
from craft.trainer.team import Team
from craft.trainer.training import train_run
from tests.craft.scoring.test_answers import TESTS, lines, root, words_spec
from tests.craft.trainer.test_parallel import Members, members

__all__ = ["members", "root", "words_spec"]


def test_every_batch_counts_once_and_a_split_model_is_called_alike() -> None:
    batches = [([number], number + 1) for number in range(7)]
    for sharded, calls in ((False, [3, 2, 2]), (True, [3, 3, 3])):
        taken = [list(turns(batches, Team(rank, 3, sharded))) for rank in range(3)]
        assert [len(one) for one in taken] == calls
        assert sorted(turn.number for one in taken for turn in one if turn.counts) == list(range(7))
        assert [turn.done for turn in taken[0]] == [3, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "size", "sharded"), [("generate", 3, False), ("likelihood", 2, False), ("generate", 2, True)]
)
def test_a_team_answers_as_one_process_does(
    words_spec: Callable[..., RunSpec], tmp_path: Path, members: Members, score: str, size: int, sharded: bool
) -> None:
    spec = words_spec(generation={"score": score}, training={"learning_rate": 1e-4})
    alone = train_run(spec, tmp_path / "alone")
    team = members.train(spec, tmp_path / "team", size, sharded=sharded)
    for test in TESTS:
        one, other = lines(tmp_path / "alone", test), lines(tmp_path / "team" / "0", test)
        for left, right in zip(one, other, strict=True):
            assert right.pop("log_likelihoods", {}) == pytest.approx(left.pop("log_likelihoods", {}), rel=1e-4)
            assert left == right
    assert alone.metrics == pytest.approx(team.metrics, rel=1e-4)
    assert alone.notes == team.notes
