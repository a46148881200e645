"""Uploads files to a run's artifacts, and checks that they arrived: same names, same numbers of bytes.

Contents are not read back: an adapter has a seal of its own, which is checked wherever it is read (`craft.trainer.checkpoint`).
Passwords are removed from text (the sweep file, the manifest) first, because a tracking URI may hold one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from craft.words import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

TEXT = (".yaml", ".yml", ".json", ".md", ".txt", ".log")


def upload(client: MlflowClient, run_id: str, name: str, source: Path | str) -> None:
    """Uploads a text, a file or a folder as the artifact `name` of a run.

    Raises:
        OSError: the store holds something else than was sent.
    """
    if isinstance(source, Path) and source.is_file() and source.suffix in TEXT:
        text = source.read_text(errors="replace", encoding="utf-8")
        source = text if redact(text) != text else source
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


def digest_source(source: Path | str) -> str:
    """Returns the SHA-256 of a text, or over a file or folder.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if isinstance(source, str):
        return hashlib.sha256(source.encode(errors="replace")).hexdigest()
    if not source.exists():
        raise FileNotFoundError(f"{source} is gone, so it cannot be stored as an artifact")
    return digest_of({source.name: source} if source.is_file() else files_in(source))


def files_in(folder: Path) -> dict[str, Path]:
    """Returns the files of a folder by their names in it."""
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
