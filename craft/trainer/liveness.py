"""Word of a member's death for the other processes of its team, whatever they do at that moment.

    rank 1 ──connection──┐
    rank 2 ──connection──┼── rank 0, which listens
    rank 3 ──connection──┘

Some collectives do not tell of a death: between GPUs of one machine NCCL waits for ever. A member that scores alone is in no
collective at all. So every member keeps a connection to rank 0, and a thread of each process waits for its end. The system
closes the connections of a process however it dies, and probes find a machine that is gone. Who leaves in good order says so
first.

When one is lost, rank 0 closes the other connections, so that all of them hear it together. The thread then gives its process
`GRACE_SECONDS` to end the run itself, as a collective over gloo does by raising. After that it ends the process, because
a thread that waits inside a library cannot be called back. The run goes on from its last checkpoint in a new process.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

GRACE_SECONDS = 20.0
EXIT_STATUS = 75
"""EX_TEMPFAIL of sysexits.h: another try may succeed."""

_BEGIN, _OVER = b"begin\n", b"over\n"
_HELLO_SECONDS = 5.0
_PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that is gone counts as lost after 5 + 3 x 5 seconds."""


class Absent(ConnectionError):
    """A member did not come, or rank 0 went away before all had come."""


def welcome(listening: socket.socket, size: int, seconds: float, check: Callable[[], None]) -> dict[int, socket.socket]:
    """Waits, as rank 0, until every other member has connected, and tells them to begin.

    Args:
        check: called about once a second; it raises to end the wait.

    Returns:
        The connection of each rank.

    Raises:
        Absent: not all came within `seconds`.
    """
    links: dict[int, socket.socket] = {}
    until = time.monotonic() + seconds
    listening.settimeout(1.0)
    try:
        while len(links) < size - 1:
            check()
            if time.monotonic() > until:
                raise Absent(f"{size - 1 - len(links)} of the run's {size} workers did not come within {seconds:g} s")
            with suppress(TimeoutError):
                link = listening.accept()[0]
                rank = _rank_told(link)
                if rank is None or not 0 < rank < size or rank in links:
                    link.close()
                else:
                    links[rank] = link
        for link in links.values():
            link.sendall(_BEGIN)
    except BaseException as error:
        for link in links.values():
            link.close()
        if isinstance(error, OSError) and not isinstance(error, Absent):
            raise Absent(f"a worker of this run went away before all had come: {error}") from error
        raise
    return links


def join(host: str, port: int, rank: int, seconds: float) -> socket.socket:
    """Connects, as another member, to rank 0 and waits until all have come.

    Raises:
        Absent: rank 0 is gone, or not all came in time.
    """
    try:
        link = socket.create_connection((host, port), timeout=seconds)
        link.sendall(b"%d\n" % rank)
        if _line(link) != _BEGIN:
            raise Absent("the first worker of this run went away before all had come")
    except OSError as error:
        if isinstance(error, Absent):
            raise
        raise Absent(f"the first worker of this run does not answer: {error}") from error
    return link


class Watch:
    """The connections of one member while it works, and the thread that waits for the end of one."""

    def __init__(self, links: Mapping[int, socket.socket], interrupt: Callable[[], None] | None = None) -> None:
        """
        Args:
            links: rank 0's connections to all others, or another member's connection to rank 0.
            interrupt: called half-way through the grace, if the process is still in the run; it may free a thread that waits
                in a library.
        """
        self.lost: str | None = None
        self.interrupted = False
        self.interrupt = interrupt
        self._links = dict(links)
        self._over = threading.Event()
        self._wake, self._woken = socket.socketpair()
        for link in self._links.values():
            link.settimeout(None)
            _probed(link)
        self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)
        self._thread.start()

    def close(self, *, in_order: bool) -> None:
        """Ends the watch; the others count this member as lost unless it leaves `in_order`."""
        self._over.set()
        self._wake.send(b".")
        self._thread.join()
        for link in self._links.values():
            if in_order:
                with suppress(OSError):
                    link.sendall(_OVER)
            link.close()
        self._wake.close()
        self._woken.close()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._woken, selectors.EVENT_READ)
            for rank, link in self._links.items():
                waiting.register(link, selectors.EVENT_READ, rank)
            while not self._over.is_set():
                for key, _ in waiting.select():
                    if key.data is None:
                        return
                    if not _left_in_order(key.fileobj):
                        self._lose(key.data)
                        return
                    waiting.unregister(key.fileobj)

    def _lose(self, rank: int) -> None:
        self.lost = f"a worker of this run was lost (rank {rank})"
        for link in self._links.values():
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        if self._over.wait(GRACE_SECONDS / 2):
            return
        if self.interrupt is not None:
            self.interrupted = True
            with suppress(Exception):  # the end of the process, a moment later, needs no help
                self.interrupt()
        if not self._over.wait(GRACE_SECONDS / 2):
            told = f"{self.lost}, and this one did not stop within {GRACE_SECONDS:g} s: its process ends\n"
            os.write(2, told.encode())
            os._exit(EXIT_STATUS)


def _left_in_order(link: socket.socket | int | object) -> bool:
    assert isinstance(link, socket.socket)
    try:
        return link.recv(len(_OVER), socket.MSG_WAITALL) == _OVER
    except OSError:
        return False


def _rank_told(link: socket.socket) -> int | None:
    """What the first line of a connection says; None if it is no rank, from whoever else found the port."""
    link.settimeout(_HELLO_SECONDS)
    try:
        return int(_line(link))
    except (OSError, ValueError):
        return None


def _line(link: socket.socket) -> bytes:
    """A short line, read byte by byte so that nothing after it is taken."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 32:
        byte = link.recv(1)
        if not byte:
            break
        line += byte
    return line


def _probed(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
