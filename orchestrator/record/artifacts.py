"""Uploads files to a run's artifacts, and checks that they arrived: same names, same sizes, same SHA-256.

Files that are in the store are not uploaded again, so repeating an upload is cheap. Passwords are removed from text files (the
sweep file, the manifest) first, because a tracking URI may hold one.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from craft.words import redact, redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

TEXT = (".yaml", ".yml", ".json", ".md", ".txt", ".log")
DOWNLOAD_LIMIT = 256 * 1024 * 1024
"""An upload of more bytes than this to a remote store is checked by names and sizes only."""


def store_path(client: MlflowClient, run_id: str, artifact_uri: str, path: Path, to: str) -> str:
    """Uploads a file, or a folder's content, to the folder `to` ("" is the root) of a run's artifacts, and checks it there.

    Returns:
        SHA-256 over the names and contents.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        OSError: the store holds something else than was sent.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is gone, so it cannot be stored as an artifact")
    if path.is_file() and path.suffix in TEXT:
        content = path.read_text(errors="replace", encoding="utf-8")
        if redact(content) != content:
            with tempfile.TemporaryDirectory() as scratch:
                clean = Path(scratch) / path.name
                clean.write_text(redact(content), encoding="utf-8")
                return _store(client, run_id, artifact_uri, clean, to)
    return _store(client, run_id, artifact_uri, path, to)


def store_json(client: MlflowClient, run_id: str, content: Any, name: str) -> None:
    """Stores plain data, or text as it is, as the artifact `name`, without passwords."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False, default=str)
    client.log_text(
        run_id, redact(text) if isinstance(content, str) else json.dumps(redacted(json.loads(text)), indent=2), name
    )


def _store(client: MlflowClient, run_id: str, artifact_uri: str, path: Path, to: str) -> str:
    files = {path.name: path} if path.is_file() else _files(path)
    sums = {name: _sha256(file) for name, file in files.items()}
    if not _holds(client, run_id, artifact_uri, files, sums, to):
        if path.is_file():
            client.log_artifact(run_id, str(path), to or None)
        else:
            client.log_artifacts(run_id, str(path), to or None)
        if not _holds(client, run_id, artifact_uri, files, sums, to):
            raise OSError(f"artifact {to or path.name!r} of run {run_id} is not what was sent from {path}")
    return hashlib.sha256("\n".join(f"{sums[name]}  {name}" for name in sorted(sums)).encode()).hexdigest()


def _holds(client: MlflowClient, run_id: str, artifact_uri: str, files: dict[str, Path], sums: dict[str, str], to: str) -> bool:
    """Whether the store has every file with its size and, up to DOWNLOAD_LIMIT bytes, with its checksum."""
    local = _local_folder(artifact_uri)
    if local is not None:
        there = {name: local / to / name for name in files}
        return all(file.is_file() and _sha256(file) == sums[name] for name, file in there.items())
    sizes = {name: file.stat().st_size for name, file in files.items()}
    listed = _listed(client, run_id, to)
    if any(listed.get(f"{to}/{name}" if to else name) != size for name, size in sizes.items()):
        return False
    if sum(sizes.values()) > DOWNLOAD_LIMIT:
        return True
    with tempfile.TemporaryDirectory() as scratch:
        for name in files:
            arrived = Path(client.download_artifacts(run_id, f"{to}/{name}" if to else name, scratch))
            if _sha256(arrived) != sums[name]:
                return False
    return True


def _listed(client: MlflowClient, run_id: str, to: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    folders = [to]
    while folders:
        for entry in client.list_artifacts(run_id, folders.pop() or None):
            if entry.is_dir:
                # Folders at the root are other artifacts.
                folders += [entry.path] if to else []
            else:
                sizes[entry.path] = int(entry.file_size or 0)
    return sizes


def _files(folder: Path) -> dict[str, Path]:
    return {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _local_folder(artifact_uri: str) -> Path | None:
    parsed = urlparse(artifact_uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return Path(artifact_uri) if not parsed.scheme and artifact_uri else None
