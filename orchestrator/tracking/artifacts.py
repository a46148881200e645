"""Uploads files to a run's artifacts, and checks that they arrived: same names, same numbers of bytes.

Contents are not read back: an adapter has a seal of its own, which is checked wherever it is read (`craft.trainer.checkpoint`).
Passwords are removed from a text (the sweep file, the manifest) first, because a tracking URI may hold one.

The log of a sweep is stored in pieces, `log/000000000000.jsonl`, `log/000000262219.jsonl`, ... A piece is named by its first
byte in the log, and ends with the line that makes it PIECE bytes long. A whole piece is never sent again; the last one is,
until it is whole. Pieces of a log that was cut back are deleted. The copy that `fetch_log` returns grows in the user's cache,
so a piece is fetched once.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from craft.disk import default_root
from orchestrator.record.log import DamagedLog, read
from orchestrator.tools.secrets import redact
from orchestrator.tracking.client import TrackingError
from orchestrator.tracking.private import artifact_storage

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def upload(client: MlflowClient, run_id: str, name: str, source: Path | str) -> None:
    """Uploads a text, a file or a folder as the artifact `name` of a run.

    Raises:
        OSError: the store holds something else than was sent.
    """
    if isinstance(source, str):
        client.log_text(run_id, redact(source), name)
        return
    if source.is_dir():
        files = {f"{name}/{file}": path for file, path in files_in(source).items()}
        client.log_artifacts(run_id, str(source), name)
    else:
        files = {source.name: source}
        client.log_artifact(run_id, str(source))
    bytes_by_path = _bytes(client, run_id, name if source.is_dir() else None)
    if any(bytes_by_path.get(file) != path.stat().st_size for file, path in files.items()):
        raise OSError(f"artifact {name!r} of run {run_id} is not what was sent from {source}")


def delete_artifacts(client: MlflowClient, run: Run) -> list[str]:
    """Deletes all artifacts of a run; returns a sentence on those that its storage cannot delete."""
    try:
        storage = artifact_storage(run.info.artifact_uri, client.tracking_uri)
        for item in client.list_artifacts(run.info.run_id):
            storage.delete_artifacts(item.path)
    except Exception as error:  # each kind of storage has errors of its own
        reason = redact(" ".join(str(error).split()))[:200]
        return [f"artifacts of run {run.info.run_id} in {redact(run.info.artifact_uri)} ({reason})"]
    return []


def digest_source(source: Path | str) -> str:
    """Returns the SHA-256 of a text, or over a file or folder."""
    if isinstance(source, str):
        return hashlib.sha256(source.encode(errors="replace")).hexdigest()
    if not source.exists():
        raise FileNotFoundError(f"{source} is gone, so it cannot be stored as an artifact")
    return digest_of({source.name: source} if source.is_file() else files_in(source))


def files_in(folder: Path) -> dict[str, Path]:
    return {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}


def digest_of(files: Mapping[str, Path]) -> str:
    """Returns the SHA-256 over the names and contents of files."""
    total = hashlib.sha256()
    for name in sorted(files, key=Path):
        with files[name].open("rb") as stream:
            total.update(f"{name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _bytes(client: MlflowClient, run_id: str, folder: str | None) -> dict[str, int]:
    """Returns the bytes of the files in a folder by path; of those at the root without a folder."""
    bytes_by_path: dict[str, int] = {}
    folders = [folder]
    while folders:
        for item in client.list_artifacts(run_id, folders.pop()):
            if not item.is_dir:
                bytes_by_path[item.path] = int(item.file_size or 0)
            elif folder is not None:
                folders.append(item.path)
    return bytes_by_path


FOLDER, SUFFIX = "log", ".jsonl"
PIECE = 256 * 1024


class LogPieces:
    """The pieces of the log at `path` that the store has.

    Attributes:
        end: how many bytes of the log have been sent; 0 before the store was asked.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.end, self._last = path, 0, 0
        self._sent: dict[int, int] | None = None

    def send(self, client: MlflowClient, run_id: str, end: int) -> None:
        """Sends what the store lacks of the log's first `end` bytes; what it has is known by its sizes."""
        if self._sent is None:
            self._sent = pieces_of(client, run_id)
        new = dict[int, int]()
        with tempfile.TemporaryDirectory() as scratch:
            for place, piece in _cut(self._path, self._last, end):
                new[place] = len(piece)
                if self._sent.get(place) != len(piece):
                    (Path(scratch) / _name(place)).write_bytes(piece)
            if any(Path(scratch).iterdir()):
                upload(client, run_id, FOLDER, Path(scratch))
        stale = [place for place in self._sent if place >= self._last and place not in new]
        self._sent |= new
        for place in stale:
            storage = artifact_storage(client.get_run(run_id).info.artifact_uri, client.tracking_uri)
            storage.delete_artifacts(f"{FOLDER}/{_name(place)}")
            del self._sent[place]
        self.end, self._last = end, max(new, default=self._last)


def log_copy(sweep_id: str) -> Path:
    """Returns where this machine's copy of a sweep's log is; where the cache cannot be written, it ends with this process."""
    folder = default_root() / "logs"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    folder = folder if os.access(folder, os.W_OK) else Path(_passing_folder().name)
    return folder / f"{sweep_id}{SUFFIX}"


@cache
def _passing_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="craft-logs-")


def fetch_log(client: MlflowClient, run_id: str, sweep: str, sweep_id: str) -> Path:
    """Returns the copy of a sweep's log on this machine, with all that the store has of it."""
    copy = log_copy(sweep_id)
    with FileLock(copy.with_suffix(".lock")):
        start = _complete(copy, client, run_id, sweep)
        try:
            for _ in read(copy, start) if start else ():
                pass
        except DamagedLog:  # what the copy had before is of a log that was cut back since
            copy.unlink()
            _complete(copy, client, run_id, sweep)
    return copy


def _complete(copy: Path, client: MlflowClient, run_id: str, sweep: str) -> int:
    """Adds to a copy what it lacks; returns the byte at which that begins."""
    sizes, places, end = pieces_of(client, run_id), list[int](), 0
    while sizes.get(end):
        places.append(end)
        end += sizes[end]
    if not places or len(places) < len(sizes):
        raise TrackingError(
            f"the tracking store does not have the whole log of sweep {sweep!r}: {FOLDER}/{_name(end)} is not among the "
            "artifacts of its run. craft-sweeps replay runs/NAME sends it again; or give the folder instead of the name"
        )
    size = copy.stat().st_size if copy.exists() else 0
    size = size if size <= end else 0  # another log
    new = [place for place in places if place + sizes[place] > size]
    with copy.open("r+b" if size else "wb") as stream, tempfile.TemporaryDirectory() as scratch:
        for place in new:
            piece = Path(client.download_artifacts(run_id, f"{FOLDER}/{_name(place)}", scratch)).read_bytes()
            stream.seek(place)
            stream.write(piece[: piece.rfind(b"\n") + 1])
    return min(new, default=size)


def pieces_of(client: MlflowClient, run_id: str) -> dict[int, int]:
    """Returns the size of each piece that the store has, by its first byte."""
    files = [(item.path.rpartition("/")[2], int(item.file_size or 0)) for item in client.list_artifacts(run_id, FOLDER)]
    return {int(name.removesuffix(SUFFIX)): size for name, size in files if name.removesuffix(SUFFIX).isdecimal()}


def _name(place: int) -> str:
    return f"{place:012d}{SUFFIX}"


def _cut(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as stream:
        stream.seek(start)
        while start < end:
            piece = stream.read(min(PIECE, end - start))
            piece += b"" if start + len(piece) >= end else stream.readline()
            yield start, piece[: end - start]
            start += len(piece)
