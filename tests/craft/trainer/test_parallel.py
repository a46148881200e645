"""A run trained by several real processes over gloo: the numbers of one process, whatever the team's size."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from craft.models.loading import load_model
from craft.results import Leave, Progress, RunResult
from craft.spec import RunSpec
from craft.trainer import training
from craft.trainer.sharding import shard_base
from craft.trainer.team import Meeting, MemberLost, Team, gathered
from craft.trainer.training import join_run, train_run

MakeSpec = Callable[..., RunSpec]

pytestmark = pytest.mark.slow


def member(orders: Connection) -> None:
    """A process that joins one run after another, until it is told to end."""
    while (order := orders.recv()) is not None:
        port, rank, size, spec, directory, resume_from, dies, sharded = order
        torch.set_num_threads(1)
        meeting = Meeting.at("127.0.0.1", port)
        # A rank 0 that leaves is lost to the others.
        with suppress(MemberLost), gathered(meeting, rank, size, sharded=sharded) as team:
            if dies:
                os._exit(9)
            join_run(RunSpec.model_validate(spec), Path(directory), team, resume_from=resume_from)


class Members:
    """Two processes beside this one."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends, processes = [], []
        for _ in range(2):
            mine, theirs = context.Pipe()
            processes.append(context.Process(target=member, args=(theirs,)))
            self._ends.append(mine)
        self._processes = processes
        for process in processes:
            process.start()

    def train(
        self,
        spec: RunSpec,
        folder: Path,
        size: int,
        report: Callable[[Progress], None] = lambda progress: None,
        resume_from: Path | None = None,
        dies: bool = False,
        sharded: bool = False,
        on_step: Callable[[int, int], None] = lambda step, total: None,
    ) -> RunResult:
        meeting = Meeting.opened("127.0.0.1")
        for rank in range(1, size):
            order = (
                meeting.port,
                rank,
                size,
                spec.model_dump(mode="json"),
                str(folder / str(rank)),
                resume_from,
                dies,
                sharded,
            )
            self._ends[rank - 1].send(order)
        with gathered(meeting, 0, size, sharded=sharded) as team:
            return train_run(spec, folder / "0", report=report, resume_from=resume_from, on_step=on_step, team=team)

    def end(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            if process.is_alive():
                end.send(None)
            process.join(30)
            process.kill()


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    both = Members()
    yield both
    both.end()
    torch.set_num_threads(threads)


def assert_close(one: RunResult, other: RunResult) -> None:
    left, right = (load_file(run.adapter / "adapter_model.safetensors") for run in (one, other))
    assert left.keys() == right.keys()
    for name, weight in left.items():
        torch.testing.assert_close(right[name], weight, rtol=1e-4, atol=1e-5)
    left, right = (load_file(run.adapter.parent / "predictions.safetensors") for run in (one, other))
    torch.testing.assert_close(left["outputs"], right["outputs"], rtol=1e-4, atol=1e-4)
    assert one.metrics.keys() == other.metrics.keys()
    for name, value in one.metrics.items():
        assert other.metrics[name] == pytest.approx(value, rel=1e-4)
    assert (one.steps, one.best_step) == (other.steps, other.best_step)


# 41 examples in micro-batches of 8, two accumulated: the last of an epoch holds one example, and two of three members idle.
UNEVEN: dict[str, Any] = {"train_examples": 41, "gradient_accumulation": 2, "evaluate_every": 0.5, "learning_rate": 3e-3}


@pytest.mark.parametrize(("method", "size"), [("craft", 2), ("craft", 3), ("lora", 2)])
def test_a_team_ends_where_one_process_does(
    tiny_spec: MakeSpec, tmp_path: Path, members: Members, method: str, size: int
) -> None:
    spec = tiny_spec(method=method, training=UNEVEN)
    heard: dict[str, list[Progress]] = {"alone": [], "team": []}
    alone = train_run(spec, tmp_path / "alone", report=heard["alone"].append)
    team = members.train(spec, tmp_path / "team", size, report=heard["team"].append)
    assert_close(alone, team)
    assert team.facts["workers"] == size
    assert [one.step for one in heard["alone"]] == [one.step for one in heard["team"]]
    for one, other in zip(heard["alone"], heard["team"], strict=True):
        assert [point["train_loss"] for point in other.points] == pytest.approx([p["train_loss"] for p in one.points], rel=1e-4)
    # The others have scored, reported and kept nothing.
    assert not list((tmp_path / "team" / "1").glob("*"))


@pytest.mark.parametrize(("method", "size"), [("craft", 2), ("craft", 3), ("lora", 2)])
def test_a_team_that_splits_the_base_ends_where_one_process_does(
    tiny_spec: MakeSpec, tmp_path: Path, members: Members, method: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []

    def counted(*given: Any) -> int:
        released.append(shard_base(*given))
        return released[-1]

    monkeypatch.setattr(training, "shard_base", counted)
    spec = tiny_spec(method=method, training=UNEVEN)
    alone = train_run(spec, tmp_path / "alone")
    team = members.train(spec, tmp_path / "team", size, sharded=True)
    assert_close(alone, team)
    assert team.counts.trainable_parameters == alone.counts.trainable_parameters
    assert team.counts.total_parameters == alone.counts.total_parameters
    layers = load_model(spec.model, "classification", ["0", "1"]).base_model.encoder.layer
    whole = sum(weight.numel() for weight in layers.parameters())
    assert released == [pytest.approx(whole * (size - 1) / size, rel=0.05)]


def test_a_team_trains_nested_ranks_as_one_process_does(tiny_spec: MakeSpec, tmp_path: Path, members: Members) -> None:
    ranks = [["all", 4, 4], ["all", 8, 8]]
    parameters = {"ranks": ranks[-1], "nested": ranks, "nested_training": "drawn", "rate_scaling": "rank"}
    spec = tiny_spec(parameters=parameters, training=UNEVEN)
    alone = train_run(spec, tmp_path / "alone")
    team = members.train(spec, tmp_path / "team", 2)
    assert_close(alone, team)
    for key, one in alone.slices.items():
        left, right = (load_file(run.adapter / "adapter_model.safetensors") for run in (one, team.slices[key]))
        for name, weight in left.items():
            torch.testing.assert_close(right[name], weight, rtol=1e-4, atol=1e-5)


def test_a_team_that_splits_the_base_is_resumed_bit_for_bit(tiny_spec: MakeSpec, tmp_path: Path, members: Members) -> None:
    spec = tiny_spec(parameters={"dropout": 0.1}, training={"evaluate_every": 0.5, "epochs": 1})
    kept: list[Path] = []
    whole = members.train(spec, tmp_path / "whole", 2, report=lambda one: kept.append(one.checkpoint or Path()), sharded=True)
    again = members.train(spec, tmp_path / "again", 2, resume_from=kept[0], sharded=True)
    assert whole.metrics == again.metrics


def test_a_base_with_nothing_frozen_is_not_split(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec = tiny_spec()
    base = load_model(spec.model, "classification", ["0", "1"])
    with pytest.raises(ValueError, match="no weight of the model's blocks is frozen"):
        shard_base(base, list(base.parameters()), Team(0, 2, sharded=True))


def test_a_team_with_dropout_is_resumed_bit_for_bit(tiny_spec: MakeSpec, tmp_path: Path, members: Members) -> None:
    spec = tiny_spec(parameters={"dropout": 0.1}, training={"evaluate_every": 0.5, "epochs": 1})
    kept: list[Path] = []

    def keep(progress: Progress) -> None:
        assert progress.checkpoint is not None
        kept.append(progress.checkpoint)

    whole = members.train(spec, tmp_path / "whole", 2, report=keep)
    again = members.train(spec, tmp_path / "again", 2, resume_from=kept[0])
    assert whole.metrics == again.metrics
    left, right = (load_file(run.adapter / "adapter_model.safetensors") for run in (whole, again))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_team_leaves_after_any_step_and_goes_on_bit_for_bit(tiny_spec: MakeSpec, tmp_path: Path, members: Members) -> None:
    spec = tiny_spec(parameters={"dropout": 0.1}, training={"evaluate_every": 1.0, "epochs": 1, "gradient_accumulation": 2})
    whole = members.train(spec, tmp_path / "whole", 2)
    left: list[Path] = []

    def leave(step: int, total: int) -> None:
        if step == 2:
            raise Leave("taken away")

    with pytest.raises(Leave):
        members.train(spec, tmp_path / "cut", 2, report=lambda one: left.append(one.checkpoint or Path()), on_step=leave)
    again = members.train(spec, tmp_path / "again", 2, resume_from=left[-1])
    assert again.facts["resumed_at"] == [2]
    assert whole.metrics == again.metrics
    one, two = (load_file(run.adapter / "adapter_model.safetensors") for run in (whole, again))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_member_that_dies_ends_the_run_at_once_as_one_to_be_tried_again(
    tiny_spec: MakeSpec, tmp_path: Path, members: Members
) -> None:
    with pytest.raises(MemberLost, match="a worker of this run was lost"):
        members.train(tiny_spec(), tmp_path, 2, dies=True)
