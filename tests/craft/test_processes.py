"""What processes of one run read from each other: nothing that a stranger could have written."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from craft.processes import Meeting, find_cause, leave_cause, make_store, sign
from craft.results import Leave, ModelUnavailable, OutOfMemory, RunFailed, RunPrevented, is_out_of_memory
from craft.trainer.checkpoint import CheckpointCorrupt
from tests.craft.conftest import Evil

LOOPBACK = "127.0.0.1"
SECRET = bytes(range(32))


@pytest.fixture
def store() -> Any:
    return make_store(LOOPBACK, 30.0)


@pytest.fixture
def meeting(store: Any) -> Meeting:
    return Meeting(LOOPBACK, store.port, 2, "replicate", 30.0, SECRET)


def scoring(error: OutOfMemory) -> OutOfMemory:
    error.scoring = True
    return error


class OwnError(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    "error",
    [
        Leave("its machine is drained"),
        RunFailed("a column is missing"),
        RunPrevented("no data"),
        ModelUnavailable("no model"),
        CheckpointCorrupt("a file is cut"),
        MemoryError("Cannot allocate memory"),
        scoring(OutOfMemory("out of memory with micro-batches of 4")),
        OSError(12, "Cannot allocate memory"),
        FileNotFoundError(2, "No such file or directory", "/data/x"),
        KeyError("label"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_one_process_leaves_is_the_same_for_the_others(store: Any, meeting: Meeting, error: Exception) -> None:
    assert find_cause(store, meeting) is None
    assert leave_cause(store, meeting, 1, error) is error
    cause = find_cause(meeting.open_store(), meeting, 1)
    assert (type(cause), str(cause), vars(cause)) == (type(error), str(error), vars(error))
    assert is_out_of_memory(cause) == is_out_of_memory(error)
    assert leave_cause(store, meeting, 0, ValueError("later")) is not error
    assert find_cause(store, meeting, 2) is None


def test_an_error_that_cannot_be_made_again_is_one_with_its_text(store: Any, meeting: Meeting) -> None:
    leave_cause(store, meeting, 1, OwnError(object, 2))
    cause = find_cause(store, meeting)
    assert type(cause) is RuntimeError
    assert str(cause).startswith("OwnError: <class 'object'> and 2")


def entries(mark: Path) -> list[str]:
    program = pickle.dumps(Evil(mark))
    return [program.hex(), sign(program, b"of another meeting").hex(), "no hex", ""]


@pytest.mark.parametrize("number", range(4))
def test_nothing_that_a_stranger_leaves_at_the_store_runs(store: Any, meeting: Meeting, tmp_path: Path, number: int) -> None:
    store.set("failure", entries(tmp_path / "ran")[number])
    cause = find_cause(store, meeting)
    assert isinstance(cause, RunPrevented)
    assert "none of its processes wrote" in str(cause)
    assert leave_cause(store, meeting, 1, RunFailed("mine")) is not None
    assert not (tmp_path / "ran").exists()


def test_the_secret_is_in_no_text(meeting: Meeting) -> None:
    assert SECRET.hex() not in repr(meeting)
    assert repr(SECRET)[2:20] not in repr(meeting)


def test_the_store_listens_at_the_address_of_the_meeting_alone(store: Any) -> None:
    addresses = {at.laddr.ip for at in psutil.Process().net_connections("inet") if at.laddr.port == store.port and not at.raddr}
    assert addresses == {LOOPBACK}
    others = {at.address for of in psutil.net_if_addrs().values() for at in of if at.family == socket.AF_INET} - {LOOPBACK}
    for address in others:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, store.port), timeout=1).close()
