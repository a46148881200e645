"""What a crash in the middle of writing leaves: the old content, whole, and no other file. Amounts in messages."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from craft.disk import replacing
from craft.words import format_bytes, parse_bytes, percent

WRITERS = {
    "torch": lambda file: torch.save({"a": torch.zeros(100_000)}, file),
    "safetensors": lambda file: save_file({"a": torch.zeros(100_000)}, file),
    "a file": lambda file: file.write_text("a" * 100_000, encoding="utf-8"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_refuses_a_writer_is_an_os_error_whatever_the_writer_calls_it(tmp_path: Path, name: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(OSError, match=r"took only a part|File too large"), replacing(tmp_path / "file") as aside:
            WRITERS[name](aside)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_goes_wrong_while_writing_changes_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.write_text("old") if kind == "file" else path.mkdir()

    def fail() -> None:
        with replacing(path) as aside:
            aside.write_text("half") if kind == "file" else aside.mkdir()
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert [one.name for one in tmp_path.iterdir()] == [kind]
    assert path.is_dir() or path.read_text() == "old"


@pytest.mark.parametrize("name", ["folder", "."])
def test_a_file_does_not_replace_a_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old")
    with pytest.raises(OSError, match="it is a folder; name a file"), replacing(Path(name)) as aside:
        aside.write_text("new")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["folder", "folder/old"]


def test_a_writer_killed_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    code = "import os, sys, pathlib; from craft.disk import replacing\n"
    code += "with replacing(pathlib.Path(sys.argv[1])) as aside: aside.write_text('half'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "file")], check=False)
    assert (tmp_path / "file").read_text() == "old"
    assert len(list(tmp_path.glob(".file.*.tmp"))) == 1


def test_a_folder_is_whole_at_its_name_while_the_old_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    for content in ("old", "new"):
        with monkeypatch.context() as patch, suppress(SystemExit), replacing(folder) as aside:
            aside.mkdir()
            (aside / content).write_text(content)
            if content == "new":
                patch.setattr(shutil, "rmtree", _be_killed)
    assert [path.name for path in folder.iterdir()] == ["new"]


def _be_killed(folder: Path, *_: object, **__: object) -> None:
    """Removes a file of a folder, and ends the process."""
    next(Path(folder).iterdir()).unlink()
    raise SystemExit


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (300, 300),
        (300.0, 300),
        ("300", 300),
        ("1.5k", 1500),
        (" 20GB ", 20 * 10**9),
        ("12 gib", 12 * 2**30),
        (-1, None),
        (1.5, None),
        ("", None),
        (None, None),
    ],
)
def test_parse_bytes(written: Any, amount: int | None) -> None:
    assert parse_bytes(written) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (12 * 2**30, "12.0 GiB"), (5000 * 2**40, "5,000.0 TiB")],
)
def test_format_bytes(amount: float, text: str) -> None:
    assert format_bytes(amount) == text


def test_no_probability_between_0_and_1_is_written_as_one_of_them() -> None:
    assert [percent(each) for each in (0.005, 0.006, 0.994, 0.995)] == ["under 1 %", "1 %", "99 %", "over 99 %"]
