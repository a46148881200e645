"""`Options`: what a person asks of a sweep: its file, changes of it, and how its session runs; and the command that asks again.

A sweep's folder remembers the file and the changes by which it runs (`SweepFolder.written`), so that the same file continues
what was recorded. No Ray here: the command line stays light.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from craft.disk import replacing
from orchestrator.record.folder import SweepFolder
from orchestrator.record.resume import describe_differences
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.secrets import redact, redacted

CONTINUE = "CRAFT_CONTINUE"
"""The environment variable in which a job script names the command that continues it. There `--resume` may start the sweep."""
SHOWING = ("--json", "--quiet")
LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
"""Bytes of a Unix socket's path."""
OF_THE_FOLDER = ("name", "storage")
"""Keys that decide in which folder a sweep is, so its folder cannot keep them."""


@dataclass(frozen=True)
class Options:
    """What a person asks of a sweep.

    Attributes:
        changes: changes of its values, as `key.path=value`; with those of earlier sessions once it has been read.
        address: a Ray cluster to join (`auto`, `host:6379`); a cluster of this machine alone if not given.
        retry_failed: run every failed trial again, also those that failed by their own fault; with `resume`.
        edited: whether a file that was edited since the last session is taken as it is.
        max_failures: how often a trial whose process or machine dies is started again.
        quiet: whether nothing is shown.
        start: the words before the file in the command that continues the sweep.
        own_process: whether the process is this call's alone, so that another one may take its place.
    """

    sweep: str = ""
    changes: tuple[str, ...] = ()
    name: str | None = None
    storage: str | None = None
    tracking_uri: str | None = None
    address: str | None = None
    max_concurrent: int | None = None
    cpus: int | None = None
    resume: bool = False
    retry_failed: bool = False
    edited: bool = False
    max_failures: int = 3
    quiet: bool = False
    start: tuple[str, ...] = ("craft-sweeps", "run")
    own_process: bool = False

    @property
    def assignments(self) -> list[str]:
        """All changes of the file's values, those of other options included."""
        of_options = {"name": self.name, "storage": None if self.remote else self.storage}
        if self.tracking_uri is not None and redact(self.tracking_uri) == self.tracking_uri:
            of_options["tracking.uri"] = self.tracking_uri
        quoted = {key: json.dumps(text, ensure_ascii=False) for key, text in of_options.items() if text is not None}
        return [*self.changes, *(f"{key}={text}" for key, text in quoted.items())]

    @property
    def remote(self) -> str | None:
        """The URI under which checkpoints and adapters are kept; None if they are in the sweep's folder."""
        return self.storage if self.storage is not None and "://" in self.storage else None

    def storage_of(self, folder: Path) -> str:
        """Returns where the checkpoints and adapters of the sweep in `folder` go: an absolute path or a URI."""
        from orchestrator.record.checkpoints import within

        return within(self.remote, folder.name) if self.remote else str(SweepFolder(folder.absolute()).ray)

    def again(self) -> str:
        """Returns the command that continues the sweep, for people; a job script names its own.

        The log remembers what `retry_failed` lets run again; once more would run again what has failed since.
        """
        if CONTINUE in os.environ:
            return redact(os.environ[CONTINUE])
        words = [*self.start, self.sweep, "--resume", *(word for change in self.changes for word in ("--set", change))]
        for name in ("name", "storage", "tracking_uri", "address", "max_concurrent", "cpus"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(map(redact, words))

    @property
    def restart(self) -> list[str]:
        """The arguments of Python that continue the sweep in place of this process; none if it may not be replaced."""
        command = replace(self, start=()).again()
        if not self.own_process or CONTINUE in os.environ or "***" in command:
            return []
        return ["-m", "orchestrator", "run", *shlex.split(command), *(flag for flag in SHOWING if flag in sys.argv)]

    def continued(self, sweep: Sweep) -> Options:
        """Returns the options with the changes by which the sweep was recorded, as long as its file is the same, and with the
        URI at which its checkpoints are, unless these options name another place.

        Raises:
            SweepError: the file was edited since, and these options do not take it as it is.
        """
        stored = SweepFolder(sweep.folder).written
        try:
            recorded = json.loads(stored.read_text(encoding="utf-8"))
            earlier, recorded_file = [*map(str, recorded["changes"])], recorded["file"]
            options = self if self.storage is not None else replace(self, storage=recorded.get("storage"))
        except (FileNotFoundError, NotADirectoryError):
            return self
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{stored} has what this sweep was run with, and cannot be read ({error}); delete it, and apply the file"
            raise SweepError([message]) from None
        lines = [f"  {line}" for line in describe_differences(recorded_file, redacted(sweep.written), sweep)]
        if not lines:
            own = {change.partition("=")[0].strip() for change in self.assignments}
            remembered = (change for change in earlier if change.partition("=")[0].strip() not in own)
            return replace(options, changes=(*remembered, *self.changes))
        if self.edited:
            return options
        place = [word for key in OF_THE_FOLDER if (value := getattr(self, key)) is not None for word in (f"--{key}", value)]
        command = shlex.join(["craft-sweeps", "apply", self.sweep, *place])
        also = f"; give it the changes of earlier sessions that are to stay: --set {' --set '.join(map(shlex.quote, earlier))}"
        advice = f"see what that changes, and make it so: {command}{also if earlier else ''}"
        raise SweepError([f"{self.sweep} was edited since {sweep.folder} ran with it:", *lines, advice])

    def remember(self, folder: SweepFolder, written: Any) -> None:
        """Keeps the content of the file, the changes and the URI of checkpoints by which the sweep runs, without passwords."""
        changes = [change for change in self.assignments if change.partition("=")[0].strip() not in OF_THE_FOLDER]
        with replacing(folder.written) as aside:
            call = redacted({"file": written, "changes": changes, "storage": self.remote})
            aside.write_text(json.dumps(call, indent=1), encoding="utf-8")


def check_answers(address: str) -> None:
    """Raises ValueError if a driver cannot join the cluster at `address`, or nothing answers at `HOST:PORT` within 15 seconds,
    where Ray would wait for ever."""
    if address.startswith("ray://"):
        raise ValueError(
            f"got {address}; Ray's client cannot drive a sweep. Give HOST:6379 (or auto) on a machine of the cluster, or hand "
            "the driver over by `ray job submit`"
        )
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
    by_system = os.environ.get("TMPDIR", "/tmp") if sys.platform.startswith("linux") else "/tmp"  # Ray's own rule
    folder = os.environ.get("RAY_TMPDIR", by_system)
    room = LONGEST_SOCKET - len(f"/ray/session_2026-11-25_10-06-12_902904_{os.getpid()}/sockets/plasma_store")
    if len(os.fsencode(folder)) > room:
        raise ValueError(
            f"the folder of temporary files has a path of {len(os.fsencode(folder))} bytes ({folder[:60]}...), and Ray's "
            f"sockets in it need one of {room} at most: set RAY_TMPDIR to a shorter folder, as in RAY_TMPDIR=/tmp"
        )
