"""A checkpoint whose seal is whole and whose content runs code when it is unpickled: refused with its reason, nothing run."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from craft.spec import RunSpec
from craft.trainer.checkpoint import verify, write_folder
from craft.trainer.training import train_run

MakeSpec = Callable[..., RunSpec]


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_code_in_a_checkpoint_is_never_run(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec, marker = tiny_spec(training={"evaluate_every": 0.5}), tmp_path / "code was run"
    train_run(spec, tmp_path / "run")
    sound = tmp_path / "run" / "checkpoint-9"  # of 12 steps
    for name in ("loop.pt", "trainable.safetensors"):
        assert (sound / name).is_file()

        def fill(folder: Path, name: str = name) -> None:
            shutil.copytree(sound, folder, dirs_exist_ok=True)
            (folder / name).write_bytes(pickle.dumps({"state": Evil(marker)}))

        evil = write_folder(tmp_path / name / sound.name, fill)
        verify(evil)
        with pytest.raises(Exception, match=r"(?i)weights.only|header|unpickl"):
            train_run(spec, tmp_path / f"resumed from {name}", resume_from=evil)
        assert not marker.exists()
    assert train_run(spec, tmp_path / "resumed", resume_from=sound).steps == 12
