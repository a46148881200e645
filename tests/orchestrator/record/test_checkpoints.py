"""Stored checkpoints: those that are not what this project wrote are passed over, and nothing outside is touched; and a sweep
whose driver is killed continues from its checkpoints on S3. The server is moto's, if it is installed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from craft.trainer.checkpoint import MANIFEST_FILE, CheckpointCorrupt, verify, write_folder
from orchestrator.plan.trial import TrialResult
from orchestrator.record import checkpoints
from orchestrator.record.checkpoints import Place, newest_whole, open_storage, outcome_of, place_of, within
from orchestrator.record.options import Options
from orchestrator.tools.secrets import redact
from tests.mlflow_server import answers, free_port
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import check_runs, ended, scores_of, start_driver, starts, wait_for


def test_what_a_uri_says_of_its_server_stays_at_its_end() -> None:
    storage = "s3://bucket/runs/?endpoint_override=http://127.0.0.1:9000&region=us-east-1"
    adapter = within(storage, "attempt-1", "key", "checkpoint_000002", "adapter")
    assert adapter == "s3://bucket/runs/attempt-1/key/checkpoint_000002/adapter?" + storage.split("?")[1]
    assert place_of(adapter) == Place("s3://bucket/runs?" + storage.split("?")[1], "key", "adapter")
    own = within("/what?/ray", "attempt-1", "key", "checkpoint_000002", "cuts", "other", "adapter")
    assert place_of(own) == Place("/what?/ray", "key", "cuts/other/adapter")
    assert place_of("/elsewhere/adapter") is None


@pytest.mark.parametrize(
    "storage",
    ["s3://me:secret@bucket/runs", "s3://me:my/secret@bucket", "abfs://me:secret@container/x", "memory://runs"],
)
def test_storage_that_cannot_be_is_refused_without_showing_its_password(storage: str) -> None:
    with pytest.raises(ValueError, match="storage") as refused:
        open_storage(storage)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "storage",
    [
        "s3://bucket/runs?endpoint_override=minio.lab:9000&scheme=http&region=us-east-1&allow_bucket_creation=true",
        "abfs://container@account.dfs.core.windows.net/runs?blob_storage_authority=.blob.core.windows.net",
    ],
)
def test_a_storage_without_keys_is_shown_and_recorded_as_it_is(storage: str) -> None:
    open_storage(storage)
    text = f"{storage} is in us-east-1, of minio.lab:9000"
    assert redact(text) == text
    assert Options("sweep.yaml", storage=storage, own_process=True).restart


def test_storage_that_fails_for_a_moment_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(filesystem: fs.FileSystem, path: str, folder: Path) -> None:
        (folder / "half").mkdir(parents=True)
        raise OSError("slow down")

    remote = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(checkpoints, "open_storage", lambda _: (remote, "runs"))
    write_folder(tmp_path / "runs" / "attempt-1" / "key" / "checkpoint_000001", lambda folder: (folder / "adapter").mkdir())
    place = TrialResult("key", "finished"), tmp_path / "adapters", "s3://runs", 1, "key", "checkpoint_000001"
    assert newest_whole("s3://runs", "key", tmp_path / "fetched")[1] == 0
    assert outcome_of(*place).adapter == tmp_path / "adapters" / "key" / "adapter"
    monkeypatch.setattr(checkpoints, "_copy", fail)
    with pytest.raises(OSError, match="slow down"):
        newest_whole("s3://runs", "key", tmp_path / "fetched")
    outcome = outcome_of(*place)
    assert outcome.adapter is None
    assert outcome.result.facts["adapter"] == "s3://runs/attempt-1/key/checkpoint_000001/adapter"
    assert [*(tmp_path / "adapters").iterdir()] == []


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A storage URI on an S3 server of this machine."""
    server = shutil.which("moto_server")
    if server is None:
        pytest.skip("needs moto_server (5.2.5; 5.2.1 breaks uploads): pip install 'moto[server]', in an environment of its own")
    port = free_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    log = (tmp_path / "s3.log").open("wb")
    process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], env=environment, stdout=log, stderr=log)
    address = f"127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"http://{address}"), process, 60)
        fs.S3FileSystem(endpoint_override=address, scheme="http", allow_bucket_creation=True).create_dir("sweeps")
        yield f"s3://sweeps/runs?endpoint_override={address}&scheme=http&region=us-east-1"
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_killed_sweep_goes_on_from_s3_and_its_adapters_come_to_the_tracking_store(tmp_path: Path, s3: str) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    process = start_driver(folder, ranks=[1, 2], seconds=2.0, session=True, storage=s3)

    def has_checkpoint() -> bool:
        filesystem, root = open_storage(s3)
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        return any(file.path.endswith("manifest.json") for file in found)

    try:
        wait_for(has_checkpoint, process, 120)
    finally:
        process.kill()
        process.wait()
    assert not any((folder / "test").glob("ray/attempt-*"))
    ended(start_driver(folder, ranks=[1, 2], seconds=0.1, session=True, storage=s3))
    results = results_of(folder / "test")
    assert scores_of(folder / "test") == [61.0, 62.0]
    assert any(first > 0 for _, _, first in starts(folder / "log"))
    for key, result in results.items():
        assert result.facts["adapter"].startswith("s3://sweeps/runs/test/attempt-2/")
        checkpoint, broken = newest_whole(within(s3, "test"), key, tmp_path / "fetched" / key)
        assert broken == 0
        assert json.loads((checkpoint / "result.json").read_text())["key"] == key
    check_runs(f"sqlite:///{folder}/mlflow.db", set(results), configurations=2)


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
