"""Checkpoints of trials on the sweep's storage: found by the trial's key, and checked before they are trusted.

Every attempt keeps the checkpoints of its trials in a folder of its own:

    STORAGE/attempt-3/KEY/checkpoint_000002/   adapter and training state; at the end adapter/, predictions and result.json;
                                               always evaluations.json, with all reports of the trial so far
    ... /checkpoint_000002/cuts/KEY/           adapter/ and result.json of each adapter that was cut from it

Each is sealed by its manifest (`craft.trainer.checkpoint`). Storage is a folder, or a URI that pyarrow opens (`s3://`,
`gs://`). A crash, a full disk or a flipped bit breaks the seal of a copy; then the checkpoint before it is taken.
"""

from __future__ import annotations

import itertools
import json
import logging
import posixpath
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.results import PREDICTIONS_FOLDER
from craft.trainer.checkpoint import CheckpointCorrupt, verify
from orchestrator.plan.trial import Outcome, TrialResult
from orchestrator.tools.secrets import hide_address, public_address

if TYPE_CHECKING:
    from pyarrow import fs

logger = logging.getLogger(__name__)

RESULT_FILE = "result.json"
EVALUATIONS_FILE = "evaluations.json"
ADAPTER_FOLDER = "adapter"
CUTS_FOLDER = "cuts"
LOCAL = "local"
"""pyarrow's name of this machine's file system."""


def newest_whole(storage: str, key: str, directory: Path) -> tuple[Path | None, int]:
    """Returns the newest undamaged checkpoint of a trial as a local folder, and the number of newer ones that are damaged.
    Raises OSError if remote storage does not give it."""
    filesystem, root = open_storage(storage)
    broken, folders = 0, _numbered(filesystem, root, "attempt-").values()
    of_attempts = (_numbered(filesystem, posixpath.join(folder, key), "checkpoint_") for folder in folders)
    for path in itertools.chain.from_iterable(paths.values() for paths in of_attempts):
        local = Path(path) if filesystem.type_name == LOCAL else directory.joinpath(*path.split("/")[-3:])
        try:
            if filesystem.type_name != LOCAL:
                _copy(filesystem, path, local)
            verify(local)
            _check_result(local, key)
        except (OSError, CheckpointCorrupt) as error:
            if isinstance(error, OSError) and filesystem.type_name != LOCAL:
                raise  # storage is away for the moment, and the checkpoint may be whole
            broken += 1
            continue
        return local, broken
    return None, broken


def attempts(storage: str) -> list[int]:
    """Returns the numbers of the attempts that have a folder on storage, ascending."""
    return sorted(_numbered(*open_storage(storage), "attempt-"))


def within(storage: str, *parts: str) -> str:
    """Returns a place inside a storage folder or URI. The server part of a URI (`?endpoint_override=…`) stays at its end."""
    place, mark, server = _cut(storage)
    return posixpath.join(place, *parts) + mark + server


@dataclass(frozen=True)
class Place:
    """An adapter's place on storage: in a checkpoint of the trial `key`, from which a size is cut, at `inside`."""

    storage: str
    key: str
    inside: str


def place_of(adapter: str) -> Place | None:
    """Returns the place that `STORAGE/attempt-3/KEY/checkpoint_000002/adapter` names, or a cut's place below that checkpoint;
    None if it names none."""
    path, mark, server = _cut(adapter)
    match = re.fullmatch(r"(.*)/attempt-\d+/([^/]+)/checkpoint_\d+/(.+)", path)
    return Place(match[1] + mark + server, match[2], match[3]) if match else None


def _cut(storage: str) -> tuple[str, str, str]:
    return storage.partition("?") if "://" in storage else (storage, "", "")


def open_storage(storage: str) -> tuple[fs.FileSystem, str]:
    """Opens the file system of a storage folder or URI; returns it with the path there."""
    from pyarrow import fs

    if public_address(storage) != storage.partition("?")[0]:
        hide_address(storage)
        raise ValueError(
            "storage: keys do not belong in its address; give them in the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS) of every machine, and s3://bucket/path here"
        )
    try:
        return fs.FileSystem.from_uri(storage)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"storage {storage!r} cannot be opened ({error}). Give an absolute folder that all machines see, or a URI such as s3://bucket/path."
        ) from error


def check_writable(storage: str) -> None:
    """Writes a small file to storage and removes it."""
    filesystem, path = open_storage(storage)
    probe = posixpath.join(path, ".writable")
    try:
        filesystem.create_dir(path, recursive=True)
        with filesystem.open_output_stream(probe) as file:
            file.write(b"ok")
        filesystem.delete_file(probe)
    except OSError as error:
        raise ValueError(
            f"storage {storage} cannot be written: {error}. Give another by --storage, or its permissions."
        ) from error


def outcome_of(result: TrialResult, home: Path, storage: str, number: int, job: str, checkpoint: str | None) -> Outcome:
    """Returns a result with the local folder of its adapter: a copy in `home`, with its predictions, if storage is not on this
    machine's disk. `checkpoint` is the job's last in its attempt `number`, by its name there; None if it has none."""
    if result.status != "finished" or checkpoint is None:
        return Outcome(result)
    inside = [] if result.key == job else [CUTS_FOLDER, result.key]
    place, copy = [f"attempt-{number}", job, checkpoint, *inside], home / result.key
    result = result.with_facts(adapter=within(storage, *place, ADAPTER_FOLDER))
    filesystem, root = open_storage(storage)
    if filesystem.type_name == LOCAL:
        return Outcome(result, Path(root, *place, ADAPTER_FOLDER))
    try:
        for path in (posixpath.join(root, *place, name) for name in (ADAPTER_FOLDER, PREDICTIONS_FOLDER)):
            if _is_folder(filesystem.get_file_info(path)):
                _copy(filesystem, path, copy / posixpath.basename(path))
    except OSError:
        logger.exception("the adapter of trial %s cannot be read back from %s; its result counts", result.key, storage)
        shutil.rmtree(copy, ignore_errors=True)  # half of it would be taken for the adapter
        return Outcome(result)
    return Outcome(result, copy / ADAPTER_FOLDER)


def stored_result(checkpoint: Path) -> dict[str, Any] | None:
    """Reads the result in a finished trial's last checkpoint; None in any other checkpoint."""
    path = checkpoint / RESULT_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def stored_cuts(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Returns the results of the cuts in the last checkpoint of a finished training, by key; none in any other."""
    files = checkpoint.glob(f"{CUTS_FOLDER}/*/{RESULT_FILE}")
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in files}


def stored_evaluations(checkpoint: Path) -> list[dict[str, Any]]:
    """Reads the trial's reports up to this checkpoint, in order. A driver that died may not have received them."""
    path = checkpoint / EVALUATIONS_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _check_result(checkpoint: Path, key: str) -> None:
    try:
        result = stored_result(checkpoint)
        wrong = result is not None and TrialResult.from_json(result).key != key
    except (ValueError, TypeError) as error:
        raise CheckpointCorrupt(f"checkpoint {checkpoint}: {RESULT_FILE} holds no trial's result") from error
    if wrong:
        raise CheckpointCorrupt(f"checkpoint {checkpoint}: {RESULT_FILE} belongs to another trial")


def _copy(filesystem: fs.FileSystem, path: str, folder: Path) -> None:
    from pyarrow import fs

    # Arrow makes the folders it finds in the source, but not those above them.
    folder.mkdir(parents=True, exist_ok=True)
    fs.copy_files(path, str(folder), source_filesystem=filesystem)


def _numbered(filesystem: fs.FileSystem, path: str, prefix: str) -> dict[int, str]:
    """Returns the paths of the folders `PREFIX<number>` in a folder by number, the largest first."""
    from pyarrow import fs

    entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    named = ((re.fullmatch(rf"{prefix}(\d+)", entry.base_name), entry) for entry in entries if _is_folder(entry))
    return dict(sorted(((int(match[1]), entry.path) for match, entry in named if match), reverse=True))


def _is_folder(entry: fs.FileInfo) -> bool:
    return entry.type.name == "Directory"
