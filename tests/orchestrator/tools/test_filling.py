"""A folder that a person names gets its whole content or nothing, wherever it is."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from orchestrator.tools.filling import filled, is_empty


def write(folder: Path, size: int = 1000) -> None:
    (folder / "task").mkdir(parents=True)
    (folder / "task" / "weights").write_bytes(b"w" * size)
    (folder / "README.md").write_text("card")


def content(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


WHOLE = ["README.md", "task/weights"]


@pytest.mark.parametrize("to", ["out", "deep/er/out", "empty", "link", "link to nothing", "."])
def test_a_folder_of_any_kind_gets_the_content(tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "link to nothing").symlink_to("absent")
    monkeypatch.chdir(tmp_path / "empty" if to == "." else tmp_path)
    inode = Path(to).stat().st_ino if Path(to).exists() else None
    with filled(Path(to)) as aside:
        write(aside)
        assert to != "out" or not Path(to).exists()
    assert content(Path(to)) == WHOLE
    assert inode in (None, Path(to).stat().st_ino), "a shell that is in the folder would see nothing"
    assert not [path for path in tmp_path.rglob(".*") if path.is_dir()]


def test_a_mounted_disk_gets_the_content_without_a_copy(disk: Path) -> None:
    with filled(disk) as aside:
        write(aside, 700_000)
    assert content(disk) == WHOLE


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_is_named_and_keeps_nothing(disk: Path, there: bool) -> None:
    to = disk if there else disk / "out"
    source = disk.parent / "source"
    write(source, 2_000_000)
    no_room = rf"{disk} has no room for what is to be in {to} \(.*iB are free\)"
    with pytest.raises(ValueError, match=no_room), filled(to) as aside:
        shutil.copytree(source, aside)
    assert content(disk) == []
    assert is_empty(disk)
    with filled(to) as aside:
        write(aside)
    assert content(to) == WHOLE


def test_a_full_disk_of_working_files_is_the_one_that_is_named(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with pytest.raises(ValueError, match=f"^{disk} has no room"), filled(tmp_path / "out"), (disk / "x").open("wb") as stream:
        stream.write(b"x" * 2_000_000)
    assert not (tmp_path / "out").exists()


def test_what_a_killed_process_left_is_no_content_and_goes(tmp_path: Path) -> None:
    to = tmp_path / "out"
    to.mkdir()
    write(to / f".out.{socket.gethostname()}.999999999")
    own = to / f".out.{socket.gethostname()}.{os.getppid()}"
    write(own)
    assert is_empty(to)
    with filled(to) as aside:
        write(aside)
    assert [path.name for path in to.iterdir() if path.name.startswith(".")] == [own.name]
    assert not is_empty(to)


def write_and_fail(to: Path) -> None:
    with filled(to) as aside:
        write(aside)
        raise KeyError("x")


def test_an_error_leaves_nothing_and_no_content_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_and_fail(tmp_path / "out")
    with filled(tmp_path / "out"):
        pass
    assert [*tmp_path.iterdir()] == []
