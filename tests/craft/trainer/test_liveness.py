"""The watch over a team's processes, on real processes that neither compute nor listen: whoever is left, ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.synchronize import Event

import pytest

from craft.trainer import liveness
from craft.trainer.liveness import EXIT_STATUS, Absent, Watch, join, welcome


def hang(port: int, rank: int, met: Event) -> None:
    """A member that waits where nothing raises; its thread alone can end it."""
    liveness.GRACE_SECONDS = 0.5
    Watch({0: join("127.0.0.1", port, rank, 30.0)})
    met.set()
    time.sleep(300)


def leave(port: int, rank: int) -> None:
    """A member that ends its part."""
    Watch({0: join("127.0.0.1", port, rank, 30.0)}).close(in_order=True)


def ignored() -> None:
    """Nobody asks rank 0 to give up."""


def test_a_killed_member_is_heard_of_and_the_others_end() -> None:
    context = multiprocessing.get_context("spawn")
    listening = socket.create_server(("127.0.0.1", 0))
    met = [context.Event() for _ in range(2)]
    others = [
        context.Process(target=hang, args=(listening.getsockname()[1], rank, event), daemon=True)
        for rank, event in enumerate(met, 1)
    ]
    for other in others:
        other.start()
    watch = Watch(welcome(listening, 3, 60.0, ignored))
    assert all(event.wait(60) for event in met)
    assert watch.lost is None
    assert others[0].pid is not None
    os.kill(others[0].pid, signal.SIGKILL)
    for other in others:
        other.join(60)
    assert [other.exitcode for other in others] == [-signal.SIGKILL, EXIT_STATUS]
    assert watch.lost == "a worker of this run was lost (rank 1)"
    watch.close(in_order=False)


def test_a_member_that_leaves_in_order_is_no_loss() -> None:
    context = multiprocessing.get_context("spawn")
    listening = socket.create_server(("127.0.0.1", 0))
    other = context.Process(target=leave, args=(listening.getsockname()[1], 1), daemon=True)
    other.start()
    watch = Watch(welcome(listening, 2, 60.0, ignored))
    other.join(60)
    watch.close(in_order=True)
    assert other.exitcode == 0
    assert watch.lost is None


def test_whoever_else_finds_the_port_is_no_member() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"7\n", b"0\n"):
        stranger = socket.create_connection(listening.getsockname())
        stranger.sendall(said)
        stranger.close()
    with pytest.raises(Absent, match=r"1 of the run's 2 workers did not come within 0\.5 s"):
        welcome(listening, 2, 0.5, ignored)


def test_a_member_that_will_not_come_ends_the_wait() -> None:
    def gone() -> None:
        raise RuntimeError("it ended")

    with pytest.raises(RuntimeError, match="it ended"):
        welcome(socket.create_server(("127.0.0.1", 0)), 2, 60.0, gone)


def test_rank_0_that_gives_up_is_heard_of() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    listening.close()
    with pytest.raises(Absent, match="does not answer"):
        join("127.0.0.1", port, 1, 5.0)
