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

Break = Callable[[Path, Path], object]
"""Breaks a checkpoint's folder; the second path is that of a secret outside of it."""
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
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    content = file.read_bytes()
    manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    seal(json.dumps(manifest))(folder, file)


def seal(text: str) -> Break:
    return lambda folder, _: (folder / MANIFEST_FILE).write_text(text) and None


def state(text: str) -> Break:
    return lambda folder, _: (folder / "state.json").write_text(text) and None


def link(folder: Path, secret: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").symlink_to(secret)
    sealed(folder, "state.json", secret)


def folder_instead(folder: Path, _: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()


BROKEN_SEALS: dict[str, Break] = {
    "no seal": lambda folder, _: (folder / MANIFEST_FILE).unlink(),
    "a seal that is empty": seal(""),
    "a seal that is no JSON": seal("{"),
    "a seal that is a list": seal("[]"),
    "a seal of numbers": seal('{"state.json": 7}'),
    "a seal without sums": seal('{"state.json": {"bytes": 2}}'),
    "a seal of another file": seal('{"other.json": {"bytes": 2, "sha256": "00"}}'),
    "a file cut short": state("{"),
    "a file that is longer": state("{}" * 9),
    "a bit that flipped": state("{|"),
    "a file that is a folder": folder_instead,
    "a seal that climbs": lambda folder, secret: sealed(folder, "../../../../../secret", secret),
    "a seal with an absolute path": lambda folder, secret: sealed(folder, str(secret), secret),
    "a link to elsewhere": link,
}


@pytest.mark.parametrize("case", BROKEN_SEALS)
def test_a_broken_or_hostile_seal_is_passed_over_for_the_checkpoint_before(case: str, tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("secret")
    storage = tmp_path / "runs" / "ray"
    good, bad = checkpoint(storage, 0), checkpoint(storage, 1)
    BROKEN_SEALS[case](bad, secret)
    with pytest.raises(CheckpointCorrupt, match=str(bad)):
        verify(bad)
    assert newest_whole(str(storage), KEY, tmp_path / "fetched") == (good, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "secret"]
    assert secret.read_text() == "secret"


RESULTS: dict[str, object] = {
    "its own": RESULT,
    "another trial's": {**RESULT, "key": "f" * 16},
    "no JSON": "{",
    "not text": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "{",
    "a list": [RESULT],
    "a word": '"finished"',
    "without a key": {name: value for name, value in RESULT.items() if name != "key"},
    "of a version to come": {**RESULT, "carbon": 1.0},
}


@pytest.mark.parametrize("case", RESULTS)
def test_a_stored_result_counts_if_it_is_the_trials_own(case: str, tmp_path: Path) -> None:
    older, newer = checkpoint(tmp_path, 0), checkpoint(tmp_path, 1, RESULTS[case])
    assert newest_whole(str(tmp_path), KEY, tmp_path / "fetched") == ((newer, 0) if case == "its own" else (older, 1))


@pytest.mark.parametrize(
    "name", ["checkpoint_", "checkpoint_-1", "checkpoint_1e9", "checkpoint_0x10", "checkpoint_000009 ", "x"]
)
def test_folders_that_are_no_checkpoints_are_not_looked_into(name: str, tmp_path: Path) -> None:
    good = checkpoint(tmp_path, 0)
    (good.parent / name).mkdir()
    assert newest_whole(str(tmp_path), KEY, tmp_path / "fetched") == (good, 0)
