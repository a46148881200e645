"""Checkpoints on S3: a sweep whose driver is killed goes on from what lies there. The server is moto's, if it is installed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from craft.trainer.checkpoint import write_folder
from orchestrator.record.checkpoints import (
    Place,
    local_adapter,
    newest_whole,
    open_storage,
    place_of,
    stored_checkpoints,
    within,
)
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import start_driver, starts


def test_what_a_uri_says_of_its_server_stays_at_its_end() -> None:
    storage = "s3://bucket/runs/?endpoint_override=http://127.0.0.1:9000&region=us-east-1"
    adapter = within(storage, "attempt-1", "key", "checkpoint_000002", "adapter")
    assert adapter == "s3://bucket/runs/attempt-1/key/checkpoint_000002/adapter?" + storage.split("?")[1]
    assert place_of(adapter) == Place("s3://bucket/runs?" + storage.split("?")[1], "key", "adapter")
    own = within("/what?/ray", "attempt-1", "key", "checkpoint_000002", "cuts", "other", "adapter")
    assert place_of(own) == Place("/what?/ray", "key", "cuts/other/adapter")
    assert place_of("/elsewhere/adapter") is None


@pytest.mark.parametrize("storage", ["s3://me:secret@bucket/runs", "memory://runs"])
def test_storage_that_cannot_be_is_refused_without_showing_its_password(storage: str) -> None:
    with pytest.raises(ValueError, match="storage") as refused:
        open_storage(storage)
    assert "secret" not in str(refused.value)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A storage URI on an S3 server of this machine."""
    server = shutil.which("moto_server")
    if server is None:
        pytest.skip("needs moto_server (5.2.5; 5.2.1 breaks uploads): pip install 'moto[server]', in an environment of its own")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    log = (tmp_path / "s3.log").open("wb")
    process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], env=environment, stdout=log, stderr=log)
    address = f"127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while not answers(f"http://{address}"):
            assert process.poll() is None, (tmp_path / "s3.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        fs.S3FileSystem(endpoint_override=address, scheme="http", allow_bucket_creation=True).create_dir("sweeps")
        yield f"s3://sweeps/runs?endpoint_override={address}&scheme=http&region=us-east-1"
    finally:
        process.kill()
        process.wait()
        log.close()


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False


@pytest.mark.cluster
def test_checkpoints_and_adapters_come_back_from_s3(tmp_path: Path, s3: str) -> None:
    def fill(folder: Path) -> None:
        (folder / "adapter").mkdir()
        (folder / "adapter" / "adapter_model.safetensors").write_text("weights")

    filesystem, root = open_storage(s3)
    for number in (1, 2):
        made = write_folder(tmp_path / "made", fill)
        if number == 2:  # cut short
            (made / "adapter" / "adapter_model.safetensors").write_text("weig")
        place = f"{root}/attempt-1/key/checkpoint_00000{number}"
        filesystem.create_dir(place, recursive=True)
        fs.copy_files(str(made), place, destination_filesystem=filesystem)
    checkpoint, broken = newest_whole(s3, "key", tmp_path / "fetched")
    assert broken == 1
    assert checkpoint is not None
    assert (checkpoint / "adapter" / "adapter_model.safetensors").read_text() == "weights"
    adapter = local_adapter(s3, "attempt-1/key/checkpoint_000001/adapter", tmp_path / "sweep" / "adapters" / "key")
    assert (adapter / "adapter_model.safetensors").read_text() == "weights"


@pytest.mark.cluster
@pytest.mark.slow
def test_a_killed_sweep_goes_on_from_s3_and_its_adapters_come_to_the_tracking_store(tmp_path: Path, s3: str) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    process = start_driver(folder, ranks=[1, 2], seconds=2.0, session=True, storage=s3)
    try:
        keys = set()
        until = time.monotonic() + 120
        while not keys:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            filesystem, root = open_storage(s3)
            found = filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
            keys = {one.path.split("/")[-3] for one in found if one.path.endswith("manifest.json")}
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    assert not any((folder / "test").glob("ray/attempt-*"))
    again = start_driver(folder, ranks=[1, 2], seconds=0.1, session=True, storage=s3)
    out, screen = again.communicate(timeout=240)
    assert again.returncode == 0, out + screen
    results = results_of(folder / "test")
    assert sorted(result.metrics["score"] for result in results.values()) == [61.0, 62.0]
    assert any(first > 0 for _, _, first in starts(folder / "log"))
    for key, result in results.items():
        assert result.facts["adapter"].startswith("s3://sweeps/runs/test/attempt-2/")
        checkpoint, broken = newest_whole(within(s3, "test"), key, tmp_path / "fetched" / key)
        assert checkpoint is not None
        assert broken == 0
        assert json.loads((checkpoint / "result.json").read_text())["key"] == key
        assert len(stored_checkpoints(within(s3, "test"), key)) >= 1
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "test"]
    runs = client.search_runs([experiment.experiment_id], "tags.`craft.kind` = 'trial'")
    for run in runs:
        assert [file.path for file in client.list_artifacts(run.info.run_id, "adapter")] == [
            "adapter/adapter_model.safetensors",
            "adapter/manifest.json",
        ]
    assert len(runs) == 2
