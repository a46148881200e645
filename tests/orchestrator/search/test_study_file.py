"""The study's file after what a crash can leave: half a line, a lock of a dead process, a disk that took only a part."""

from __future__ import annotations

import resource
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.testing.pytest_storages import StorageTestCase

from orchestrator.search.study_file import StudyFile


def study_of(path: Path) -> optuna.Study:
    return optuna.create_study(storage=JournalStorage(StudyFile(path)), study_name="s", load_if_exists=True)


def one_more(study: optuna.Study, value: float) -> None:
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    study.tell(trial, value)


def values(path: Path) -> list[float | None]:
    """What Optuna's own reader finds."""
    storage = JournalStorage(JournalFileBackend(str(path)))
    return [trial.value for trial in optuna.load_study(study_name="s", storage=storage).get_trials()]


@pytest.mark.parametrize("torn", [b'{"op_code":4,"worker', b"\x00\x00\x00", b'{"op_code":4}'])
def test_half_a_line_is_cut_away_and_the_study_goes_on(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "study.db"
    one_more(study_of(path), 1.0)
    with path.open("ab") as file:
        file.write(torn)
    study = study_of(path)
    one_more(study, 2.0)
    one_more(study, 3.0)
    assert values(path) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_lock_that_a_dead_process_left_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path, lock = tmp_path / "study.db", tmp_path / "study.db.lock"
    one_more(study_of(path), 1.0)
    if kind == "file":
        lock.touch()
    else:
        lock.symlink_to(path if kind == "link" else tmp_path / "moved" / "study.db")
    monkeypatch.setattr("orchestrator.search.study_file.STALE_SECONDS", 3)
    one_more(study_of(path), 2.0)
    assert values(path) == [1.0, 2.0]
    assert not lock.exists()


def test_a_full_disk_takes_nothing_of_what_it_cannot_take_whole(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    study = study_of(path)
    one_more(study, 1.0)
    before = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limit[1]))  # room for a part of a line
    try:
        with pytest.raises(OSError, match="File too large"):
            study.ask()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_bytes() == before
    one_more(study, 2.0)
    assert values(path) == [1.0, 2.0]


class TestOptunasOwnCases(StorageTestCase):
    """Optuna's tests of a storage, on the study file."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> JournalStorage:
        return JournalStorage(StudyFile(tmp_path / "study.db"))
