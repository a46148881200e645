"""Checkpoints and results that are not what this project wrote: each passed over or refused, and nothing outside is touched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from craft.trainer.checkpoint import MANIFEST_FILE, CheckpointCorrupt, verify, write_folder
from orchestrator.plan.trial import TrialResult
from orchestrator.record.checkpoints import newest_whole

KEY = "0123456789abcdef"
RESULT = TrialResult(KEY, "finished", {"score": 70.0}).to_json()


def checkpoint(storage: Path, number: int, result: object = None) -> Path:
    def fill(folder: Path) -> None:
        (folder / "state.json").write_text("{}")
        if result is not None:
            (folder / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))

    return write_folder(storage / "attempt-1" / KEY / f"checkpoint_{number:06}", fill)


def sealed(folder: Path, name: str, file: Path) -> None:
    """Puts a file into the seal, with the right size and sum."""
    content = file.read_bytes()
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def seal(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / MANIFEST_FILE).write_text(text) and None


def outside(folder: Path) -> None:
    sealed(folder, "../../../../../secret", folder.parents[4] / "secret")


def absolute(folder: Path) -> None:
    secret = folder.parents[4] / "secret"
    sealed(folder, str(secret), secret)


def link(folder: Path) -> None:
    secret = folder.parents[4] / "secret"
    (folder / "state.json").unlink()
    (folder / "state.json").symlink_to(secret)
    sealed(folder, "state.json", secret)


def folder_instead(folder: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()


BROKEN_SEALS: dict[str, Callable[[Path], None]] = {
    "no seal": lambda folder: (folder / MANIFEST_FILE).unlink(),
    "a seal that is empty": seal(""),
    "a seal that is no JSON": seal("{"),
    "a seal that is a list": seal("[]"),
    "a seal of numbers": seal('{"state.json": 7}'),
    "a seal without sums": seal('{"state.json": {"bytes": 2}}'),
    "a seal of another file": seal('{"other.json": {"bytes": 2, "sha256": "00"}}'),
    "a file cut short": lambda folder: (folder / "state.json").write_text("{") and None,
    "a file that is longer": lambda folder: (folder / "state.json").write_text("{}" * 9) and None,
    "a bit that flipped": lambda folder: (folder / "state.json").write_text("{|") and None,
    "a file that is a folder": folder_instead,
    "a seal that climbs": outside,
    "a seal with an absolute path": absolute,
    "a link to elsewhere": link,
}


@pytest.mark.parametrize("case", BROKEN_SEALS)
def test_a_broken_or_hostile_seal_is_passed_over_for_the_checkpoint_before(case: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    storage = tmp_path / "runs" / "ray"
    good = checkpoint(storage, 0)
    bad = checkpoint(storage, 1)
    BROKEN_SEALS[case](bad)
    with pytest.raises(CheckpointCorrupt, match=str(bad)):
        verify(bad)
    assert newest_whole(str(storage), KEY, tmp_path / "fetched") == (good, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "secret"]
    assert (tmp_path / "secret").read_text() == "secret"


RESULTS: dict[str, object] = {
    "another trial's": {**RESULT, "key": "f" * 16},
    "no JSON": "{",
    "not text": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "{",
    "a list": [RESULT],
    "a word": '"finished"',
    "without a key": {name: value for name, value in RESULT.items() if name != "key"},
    "of a version to come": {**RESULT, "carbon": 1.0},
}


@pytest.mark.parametrize("case", RESULTS)
def test_a_stored_result_that_is_none_or_anothers_counts_for_nothing(case: str, tmp_path: Path) -> None:
    good = checkpoint(tmp_path, 0)
    checkpoint(tmp_path, 1, RESULTS[case])
    assert newest_whole(str(tmp_path), KEY, tmp_path / "fetched") == (good, 1)


def test_a_stored_result_of_the_trial_itself_counts(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0)
    good = checkpoint(tmp_path, 1, RESULT)
    assert newest_whole(str(tmp_path), KEY, tmp_path / "fetched") == (good, 0)


NO_CHECKPOINTS = ["checkpoint_", "checkpoint_-1", "checkpoint_1e9", "checkpoint_0x10", "checkpoint_000009 ", "x"]


@pytest.mark.parametrize("name", NO_CHECKPOINTS)
def test_folders_that_are_no_checkpoints_are_not_looked_into(name: str, tmp_path: Path) -> None:
    good = checkpoint(tmp_path, 0)
    (good.parent / name).mkdir()
    assert newest_whole(str(tmp_path), KEY, tmp_path / "fetched") == (good, 0)
