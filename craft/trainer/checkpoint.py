"""Folders that are whole or absent: written aside, sealed with a manifest, renamed into place, checked when read.

checkpoint-120/trainable.safetensors     every trained parameter: adapter and head, never the frozen base
  best.safetensors                       the same at the best evaluation so far, where that is not this one
  loop.pt                                optimizer, random states, losses not reported yet; loaded with weights_only
  state.json, manifest.json              the run's spec and step; size and SHA-256 of every other file: the seal
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from craft.disk import replacing
from craft.results import RunFailed
from craft.spec import RunSpec

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"


class CheckpointCorrupt(RuntimeError):
    """A checkpoint is not what was written; an older one may be whole."""


def write_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Makes `folder` hold what `fill` writes and a manifest of it, or leaves it as it was."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as aside:
        aside.mkdir()
        fill(aside)
        files = sorted(file for file in aside.rglob("*") if file.is_file())
        contents = {file.relative_to(aside).as_posix(): _describe(file) for file in files if file.name != MANIFEST_FILE}
        (aside / MANIFEST_FILE).write_text(json.dumps(contents, indent=1), encoding="utf-8")
    return folder


def add_file(folder: Path, name: str, text: str) -> None:
    """Puts one more file into a sealed folder, and into its seal."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    manifest[name] = _describe(file)
    with replacing(folder / MANIFEST_FILE) as aside:
        aside.write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def verify(folder: Path) -> None:
    """Checks every file of a folder against its manifest. Raises CheckpointCorrupt, which names what is wrong."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        expected = {name: (file["bytes"], file["sha256"]) for name, file in manifest.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointCorrupt(f"checkpoint {folder} has no readable {MANIFEST_FILE}") from error
    for name, (size, digest) in expected.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise CheckpointCorrupt(f"checkpoint {folder}: {name} is outside of it")
        if not file.is_file():
            raise CheckpointCorrupt(f"checkpoint {folder}: {name} is missing")
        if file.stat().st_size != size:
            raise CheckpointCorrupt(f"checkpoint {folder}: {name} has {file.stat().st_size} bytes where {size} were written")
        if _describe(file)["sha256"] != digest:
            raise CheckpointCorrupt(f"checkpoint {folder}: the content of {name} has changed since it was written")


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the `checkpoint-STEP` in `folder`, the newest last; a user's copy of one has another name."""
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    return sorted(checkpoints, key=lambda path: int(path.name.partition("-")[2]))


def find_newest_checkpoint(folder: Path) -> Path | None:
    """Returns the newest whole `checkpoint-STEP` in `folder`, or None; skips broken ones."""
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            verify(checkpoint)
        except CheckpointCorrupt:
            continue
        return checkpoint
    return None


def read_state(folder: Path, spec: RunSpec) -> dict[str, Any]:
    """Reads the state of a run in a checkpoint of it. Raises CheckpointCorrupt, or RunFailed for that of another run."""
    verify(folder)
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        owner = RunSpec.model_validate(state["spec"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointCorrupt(f"checkpoint {folder} has no readable {STATE_FILE}") from error
    if identity(owner) != identity(spec):
        raise RunFailed(f"checkpoint {folder} belongs to another run (key {owner.key}, not {spec.key})")
    return state


def identity(spec: RunSpec) -> dict[str, Any]:
    """Returns what must be equal in a resumed run: its effective batch, but not how that is cut into micro-batches."""
    training = spec.training.model_dump()
    effective_batch = training.pop("batch_size") * training.pop("gradient_accumulation")
    del training["eval_batch_size"]
    return spec.identity() | {"training": training, "effective_batch": effective_batch}


def _describe(file: Path) -> dict[str, int | str]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
