"""What a caller asks of a session beyond the sweep file. No Ray here: the command line stays light."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.record.folder import SweepFolder
from orchestrator.record.overrides import Override

Verbosity = Literal["quiet", "normal", "verbose"]
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
"""Bytes of a Unix socket's path."""


@dataclass(frozen=True)
class RunOptions:
    """How to run a plan.

    Attributes:
        folder: the sweep's local files (`runs/NAME`), with Ray's folder unless `storage` is given. Made absolute.
        storage: where checkpoints and adapters go, a folder that all machines see or a URI; `folder/ray` if not given.
        address: a Ray cluster to join (`auto`, `host:6379`); a cluster of this machine alone if not given.
        resume: continue the sweep in `folder`; without it a folder with results is refused.
        retry_failed: run every failed trial again, also those that failed by their own fault; with `resume`.
        max_concurrent: trials at once, at most.
        cpus: cores of this machine to use, where no address is given; all if not given.
        max_failures: how often a trial whose process or machine dies is started again.
        sweep_file: where the sweep was read from.
        overrides: what flags change in it; the sweep's folder keeps them.
        verbosity: `quiet` shows nothing, `verbose` also a line for each evaluation.
    """

    folder: Path
    storage: str | None = None
    address: str | None = None
    resume: bool = False
    retry_failed: bool = False
    max_concurrent: int | None = None
    cpus: int | None = None
    max_failures: int = 3
    sweep_file: Path | None = None
    overrides: tuple[Override, ...] = ()
    verbosity: Verbosity = "normal"

    @property
    def storage_of_trials(self) -> str:
        """Where checkpoints and adapters go: an absolute path or a URI."""
        storage = self.storage or str(SweepFolder(self.folder.absolute()).ray)
        return storage if "://" in storage else str(Path(storage).absolute())


def cluster_address(text: str) -> str:
    """Returns the address of a cluster in the form in which a driver can join it."""
    if text.startswith("ray://"):
        raise ValueError(
            f"got {text}; Ray's client cannot drive a sweep. Give HOST:6379 (or auto) on a machine of the cluster, or hand the "
            "driver over by `ray job submit`"
        )
    return text


def check_answers(address: str) -> None:
    """Raises ValueError if nothing answers at `HOST:PORT` within 15 seconds, where Ray would wait for ever."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=15).close()
    except OSError as error:
        raise ValueError(
            f"nothing answers at {address} ({error.strerror or error}). Check the address, and that a Ray head runs there: "
            "ray start --head"
        ) from error


def check_socket_room() -> None:
    """Raises ValueError if the paths of a new cluster's sockets would be longer than the system allows."""
    folder = os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))
    room = LONGEST_SOCKET - len(f"/ray/session_2026-11-25_10-06-12_902904_{os.getpid()}/sockets/plasma_store")
    if len(os.fsencode(folder)) > room:
        raise ValueError(
            f"the folder of temporary files has a path of {len(os.fsencode(folder))} bytes ({folder[:60]}...), and Ray's "
            f"sockets in it need one of {room} at most: set RAY_TMPDIR to a shorter folder, as in RAY_TMPDIR=/tmp"
        )
