"""Uploads files to a run's artifacts, and checks that they arrived: same names, same sizes.

Contents are not read back: an adapter has a seal of its own, which is checked wherever it is read (`craft.trainer.checkpoint`).
A folder whose digest the run has as a tag is not uploaded again, so repeating an upload is cheap. Passwords are removed from
text files (the sweep file, the manifest) first, because a tracking URI may hold one.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.words import redact, redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

TEXT = (".yaml", ".yml", ".json", ".md", ".txt", ".log")


def store_path(client: MlflowClient, run_id: str, path: Path, to: str, known: str | None = None) -> str:
    """Uploads a file, or a folder's content, to the folder `to` ("" is the root) of a run's artifacts, and checks it there.

    Args:
        known: the digest of what the store has there.

    Returns:
        The digest of what it has now.

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
                return _store(client, run_id, clean, to, known)
    return _store(client, run_id, path, to, known)


def store_json(client: MlflowClient, run_id: str, content: Any, name: str) -> None:
    """Stores plain data, or text as it is, as the artifact `name`, without passwords."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False, default=str)
    client.log_text(
        run_id, redact(text) if isinstance(content, str) else json.dumps(redacted(json.loads(text)), indent=2), name
    )


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
    """The files of a folder by their names in it."""
    return {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}


def digest_of(files: Mapping[str, Path]) -> str:
    """SHA-256 over the names and contents of files."""
    whole = hashlib.sha256()
    for name in sorted(files, key=Path):
        with files[name].open("rb") as stream:
            whole.update(f"{name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def _store(client: MlflowClient, run_id: str, path: Path, to: str, known: str | None) -> str:
    files = {path.name: path} if path.is_file() else files_in(path)
    digest = digest_of(files)
    if digest == known:
        return digest
    if path.is_file():
        client.log_artifact(run_id, str(path), to or None)
    else:
        client.log_artifacts(run_id, str(path), to or None)
    stored = _listed(client, run_id, to)
    if any(stored.get(f"{to}/{name}" if to else name) != file.stat().st_size for name, file in files.items()):
        raise OSError(f"artifact {to or path.name!r} of run {run_id} is not what was sent from {path}")
    return digest


def _listed(client: MlflowClient, run_id: str, to: str) -> dict[str, int]:
    """The sizes of the files in the folder `to`, by path; at the root without its folders, which are other artifacts."""
    sizes: dict[str, int] = {}
    folders = [to]
    while folders:
        for entry in client.list_artifacts(run_id, folders.pop() or None):
            if entry.is_dir:
                folders += [entry.path] if to else []
            else:
                sizes[entry.path] = int(entry.file_size or 0)
    return sizes
