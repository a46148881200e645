"""What one machine knows of a sweep it is to run: versions, storage, model, data, GPUs. Asked of every machine of a cluster.

`examine` runs where it is asked and answers in plain data, so that one answer can be held against another: two machines that
read different data, or have different libraries, train different trials. A fault that it meets is part of its answer.
"""

from __future__ import annotations

import json
import platform
import posixpath
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import fs

from craft.spec import RunSpec
from orchestrator.record.checkpoints import open_storage
from orchestrator.tools.inventory import gpus, versions

PACKAGES = ("craft-sweeps", "torch", "transformers", "peft", "ray", "numpy")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def examine(storage: str, token: str, runs: Sequence[dict[str, Any]], gpus: bool) -> dict[str, Any]:
    """The answer of the machine it runs on.

    Args:
        storage: the sweep's storage, a folder or a URI.
        token: the name of a file that whoever asks has put there, with its own name in it.
        runs: one run of each task of the sweep, as JSON.
        gpus: whether GPUs matter.

    Returns:
        `host`, `versions` by package, `free_bytes` on storage (None for a URI), `data` (fingerprints by task), `gpus` (name,
        total and used MiB, as far as `nvidia-smi` says), and `faults`: what is wrong, by what was looked at.
    """
    faults: dict[str, str] = {}

    def tried(what: str, look: Callable[[], Any]) -> Any:
        try:
            return look()
        except Exception as error:  # any fault of the machine is an answer
            faults[what] = " ".join(str(error).split())[:400] or type(error).__name__
            return None

    specs = [RunSpec.model_validate(run) for run in runs]
    tried("storage", lambda: _see(storage, token))
    tried("model", lambda: _see_model(specs[0]))
    return {
        "host": socket.gethostname(),
        "versions": own_versions(),
        "free_bytes": tried("disk", lambda: _free(storage)),
        "data": {run.task: tried(f"data {run.task}", partial(_fingerprint, run)) for run in specs},
        "gpus": _gpus() if gpus else [],
        "faults": faults,
    }


def put_token(storage: str, token: str) -> None:
    """Puts the file that `examine` looks for."""
    filesystem, root = open_storage(storage)
    filesystem.create_dir(root, recursive=True)
    with filesystem.open_output_stream(posixpath.join(root, token)) as file:
        file.write(token.encode())


def take_token(storage: str, token: str) -> None:
    filesystem, root = open_storage(storage)
    filesystem.delete_file(posixpath.join(root, token))


def _see(storage: str, token: str) -> None:
    filesystem, root = open_storage(storage)
    path = posixpath.join(root, token)
    if filesystem.get_file_info(path).type != fs.FileType.File:
        raise OSError(f"{storage} is not the folder that the driver writes to: a file it has just put there is missing")
    with filesystem.open_input_stream(path) as file:
        if file.read() != token.encode():
            raise OSError(f"{storage} gives back something else than was written")
    own = f"{path}-{socket.gethostname()}"
    with filesystem.open_output_stream(own) as file:
        file.write(b"ok")
    filesystem.delete_file(own)


def _free(storage: str) -> int | None:
    filesystem, root = open_storage(storage)
    return shutil.disk_usage(root).free if isinstance(filesystem, fs.LocalFileSystem) else None


def _see_model(run: RunSpec) -> None:
    from craft.models.loading import load_tokenizer

    load_tokenizer(run.model, revision=run.revision)
    _find_weights(run)


def _find_weights(run: RunSpec) -> None:
    """Looks for the model's weights without reading or downloading them."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    from craft.models.loading import ModelUnavailable, resolve_model

    source = resolve_model(run.model, revision=run.revision)
    folder = Path(source)
    for name in WEIGHTS:
        cached = folder / name if folder.is_dir() else try_to_load_from_cache(source, name, revision=run.revision)
        if not isinstance(cached, str | Path) or not Path(cached).is_file():
            continue
        parts = json.loads(Path(cached).read_text())["weight_map"].values() if name.endswith(".json") else ()
        absent = sorted({part for part in parts if not Path(cached).with_name(part).is_file()})
        if absent:
            missing = f"{len(absent)} of its files of weights are missing, the first is {absent[0]}"
            raise ModelUnavailable(f"model {run.model}: {missing}")
        return
    if folder.is_dir() or not any(HfApi().file_exists(source, name, revision=run.revision) for name in WEIGHTS):
        raise ModelUnavailable(f"model {run.model} has no safetensors weights here")


def _fingerprint(run: RunSpec) -> str:
    from craft.tasks import find_task
    from craft.tasks.splits import load_splits

    return load_splits(find_task(run.task, run.data), run.data, protocol=run.protocol).fingerprint


def own_versions() -> dict[str, str]:
    """Versions of this machine's Python and of PACKAGES; `absent` for a package that is not installed."""
    found = versions(PACKAGES)
    return {"python": platform.python_version(), **{package: found.get(package, "absent") for package in PACKAGES}}


def _gpus() -> list[tuple[str, int, int]]:
    """What `nvidia-smi` lists. That it fails is no fault by itself: whether torch can use the GPUs is tried in a task."""
    try:
        return [(name, int(total), int(used)) for name, total, used in gpus("memory.total", "memory.used")]
    except (OSError, ValueError, subprocess.SubprocessError):  # a GPU divided into instances has no figures of its own
        return []
