"""`list`, `wait` and `remove`: what they print, what they delete, and what they leave alone."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from orchestrator.commands import results
from orchestrator.commands.app import NO, WRONG, main
from orchestrator.record.events import SessionEnded, SessionStarted
from orchestrator.record.folder import one_driver
from orchestrator.record.log import read_state
from orchestrator.tracking.artifacts import log_copy
from orchestrator.tracking.desired import SWEEP, SWEEP_ID
from orchestrator.tracking.reader import StoreReader
from tests.orchestrator.conftest import Cli
from tests.orchestrator.logged import mirror
from tests.orchestrator.recorded import over_seeds, record, write_log


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    for name, seconds in (("POLL_SECONDS", 0.05), ("BEGIN_SECONDS", 0.2), ("AGAIN_SECONDS", 0.2)):
        monkeypatch.setattr(results, name, seconds)


def finished(name: str, uri: str = "sqlite:///mlflow.db") -> Path:
    seeds = {"LoRA r1": (100, over_seeds(80.0, 81.0)), "LoRA r8": (800, over_seeds(81.0, 80.5))}
    folder = record(Path("runs") / name, seeds, file={"tracking": {"uri": uri}})
    write_log(folder, SessionEnded(status="finished"))
    return folder


@contextmanager
def driven(folder: Path, seconds: float = 30.0) -> Iterator[None]:
    """A driver in another thread of this process, which ends after so many seconds or with the block."""
    begun, over = threading.Event(), threading.Event()

    def drive() -> None:
        with one_driver(folder):
            begun.set()
            over.wait(seconds)

    thread = threading.Thread(target=drive)
    thread.start()
    assert begun.wait(10)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_list_has_the_state_answer_and_size_of_each_sweep(cli: Cli) -> None:
    assert cli("list", "--json").report["sweeps"] == []
    folder = finished("done")
    (folder / "ray").mkdir()
    (folder / "ray" / "weights").write_bytes(b"0" * 5000)
    record(Path("runs/open"), {"LoRA r1": (100, over_seeds(80.0))})
    broken = finished("broken")
    (broken / "log.jsonl").write_text("{\n{\n")
    rows = {row["sweep"]: row for row in cli("list", "--json").report["sweeps"]}
    assert [*rows] == ["broken", "done", "open"]
    assert (rows["done"]["phase"], rows["done"]["done"], rows["done"]["trainings"]) == ("finished", 4, 4)
    assert rows["done"]["answer"].startswith("Not decided: LoRA r8")
    assert rows["done"]["bytes"] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > 5000
    assert (rows["open"]["phase"], rows["open"]["done"], rows["open"]["trainings"]) == ("lost", 1, 2)
    assert rows["broken"]["phase"] == "unreadable"
    shown = cli("list").out
    assert all(text in shown for text in ("done", "4/4", "KiB", "interrupted", "unreadable"))


def test_wait_returns_when_the_driver_has_ended(cli: Cli) -> None:
    folder = finished("done")
    began = time.monotonic()
    with driven(folder, seconds=1.0):
        assert cli("wait", "done", "--json").report["phase"] == "finished"
        assert time.monotonic() - began > 0.8
    with driven(folder):
        began = time.monotonic()
        assert main(["wait", "done", "--timeout", "0.3"]) == 0, "ended before, and its driver prepares a session"
        assert time.monotonic() - began < 10
    with driven(record(Path("runs/open"), {"LoRA r1": (100, over_seeds(80.0))})):
        assert main(["wait", "open", "--timeout", "0.1"]) == NO
    assert main(["wait", "open"]) == NO, "its driver is gone, and a trial is left"


def test_wait_gives_a_sweep_time_to_begin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no sweep 'later'" in cli("wait", "later", status=WRONG).err
    monkeypatch.setattr(results, "BEGIN_SECONDS", 30.0)
    starting = threading.Timer(0.3, finished, ["later"])
    starting.start()
    assert main(["wait", "later"]) == 0
    starting.join()


def test_remove_refuses_while_a_driver_lives(cli: Cli) -> None:
    folder = finished("done")
    with driven(folder):
        assert "is in use by process" in cli("remove", "done", "--yes", status=WRONG).err
    assert (folder / "log.jsonl").exists()
    elsewhere = {"pid": 1, "host": "another", "start": "1"}
    open_ = record(Path("runs/open"), {"LoRA r1": (100, over_seeds(80.0))})
    (open_ / ".driver.json").write_text(json.dumps(elsewhere))
    assert "is in use by process 1 on another" in cli("remove", "open", "--yes", status=WRONG).err
    os.utime(open_ / "log.jsonl", (1, 1))
    assert "no driver runs" in cli("pause", "open").out, "one that has written nothing for minutes is gone with its machine"
    assert cli("remove", "open", "--yes").out
    assert not open_.exists()


@pytest.mark.slow
def test_remove_deletes_the_folder_the_runs_and_their_artifacts(uri: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAFT_CACHE_DIR", "cache")  # equal names have equal ids, also in a session that runs at the same time
    for name in ("done", "kept"):
        folder = finished(name, uri)
        assert main(["replay", str(folder), "--tracking-uri", uri]) == 0
    client = MlflowClient(uri)

    def runs(name: str) -> list[Any]:
        places = [experiment.experiment_id for experiment in client.search_experiments()]
        return list(client.search_runs(places, f"tags.`{SWEEP}` = '{name}'"))

    assert [row["sweep"] for row in cli("list", "--tracking-uri", uri, "--json").report["sweeps"]] == ["done", "kept"]
    before, staying, sweep_id = runs("done"), len(runs("kept")), runs("kept")[0].data.tags[SWEEP_ID]
    assert log_copy(sweep_id).exists()
    assert any(client.list_artifacts(run.info.run_id) for run in before)
    plan = cli("remove", "done", "--json").report
    assert not plan["removed"]
    assert any(f"{len(before)} runs" in line for line in plan["goes"])
    assert any("mlflow gc" in line for line in plan["stays"])
    assert len(runs("done")) == len(before)
    done = cli("remove", "done", "--yes", "--json").report
    assert (done["removed"], done["failed"]) == (True, [])
    assert not Path("runs/done").exists()
    assert runs("done") == []
    assert not any(client.list_artifacts(run.info.run_id) for run in before)
    assert len(runs("kept")) == staying
    assert main(["remove", "done", "--yes"]) == WRONG
    # One whose folder is gone is removed from the store, unless a driver elsewhere most likely writes its log.
    opened = record(Path("runs/open"), {"LoRA r1": (100, over_seeds(80.0))})
    mirror(opened, uri)
    opened.rename("away")
    assert "open may be in use: its log in" in cli("remove", "open", "--yes", "--tracking-uri", uri, status=WRONG).err
    Path("runs/kept").rename("elsewhere")
    assert cli("remove", "kept", "--yes", "--tracking-uri", uri, "--json").report["removed"]
    assert runs("kept") == []
    assert not log_copy(sweep_id).exists()


def test_the_runs_of_a_copied_folder_are_those_of_the_original(uri: str, cli: Cli) -> None:
    folder = finished("done", uri)
    file = read_state(folder / "log.jsonl").sweep.model_dump(mode="json")
    write_log(folder, SessionStarted(sweep=file, configurations=1, trainings=1, folder=str(folder.absolute())))
    assert main(["replay", str(folder)]) == 0
    shutil.copytree(folder, "runs/copy")
    assert f"runs/copy is a copy of {folder.absolute()}" in cli("replay", "runs/copy", status=WRONG).err
    report = cli("remove", "copy", "--yes", "--json").report
    assert f"runs in {uri}, which are those of {folder.absolute()}" in report["stays"]
    assert (Path("runs/copy").exists(), len(StoreReader(uri).sweep_runs())) == (False, 1)


def test_a_name_of_one_sweep_in_a_folder_and_of_another_in_the_store_removes_neither(uri: str, cli: Cli) -> None:
    first = finished("done", uri)
    assert main(["replay", str(first)]) == 0
    shutil.rmtree(first)
    record(Path("runs/other"), {"LoRA r1": (100, over_seeds(80.0))}).rename(first)
    said = cli("remove", "done", "--tracking-uri", uri, "--yes", status=WRONG).err
    assert f"done in {uri} is another sweep than runs/done. Give runs/done to remove that one" in said
    assert cli("remove", "runs/done", "--tracking-uri", uri, "--yes").out
    assert (Path("runs/done").exists(), len(StoreReader(uri).sweep_runs())) == (False, 1)


def test_a_sweep_whose_artifacts_are_out_of_reach_is_listed_and_explained(uri: str, cli: Cli) -> None:
    client, tags = MlflowClient(uri), {"craft.kind": "sweep", "craft.sweep": "far", "craft.sweep_id": "6" * 32}
    client.create_run(client.create_experiment("far", artifact_location="nowhere://host/far"), tags=tags)
    (row,) = cli("list", "--tracking-uri", uri, "--json").report["sweeps"]
    assert row["phase"] == "unreadable"
    said = cli("front", "far", "--tracking-uri", uri, status=WRONG).err
    assert f"the tracking store {uri} cannot be read (MlflowException: " in said


@pytest.mark.parametrize("tag", ["craft.sweep_id", pytest.param("craft.sweep", marks=pytest.mark.slow)])
def test_a_run_whose_tags_somebody_has_changed_is_no_sweep_and_names_no_file(tag: str, uri: str, cli: Cli, here: Path) -> None:
    mine = here / "mine.jsonl"
    mine.write_text("mine\n")
    folder, client = finished("done", uri), MlflowClient(uri)
    assert main(["replay", str(folder), "--tracking-uri", uri]) == 0
    tags = {"craft.kind": "sweep", "craft.sweep": "hostile", "craft.sweep_id": "6" * 32}
    tags |= {tag: str(mine.with_suffix("")) if tag == "craft.sweep_id" else ""}
    run = client.create_run(client.get_experiment_by_name("done").experiment_id, tags=tags)
    client.log_text(run.info.run_id, "not mine\n", "log/000000000000.jsonl")
    rows = cli("list", "--tracking-uri", uri, "--json").report["sweeps"]
    assert [(row["sweep"], row["bytes"]) for row in rows] == [("done", None)], "its experiment may be of several sweeps"
    assert mine.read_text() == "mine\n"


def test_what_is_on_other_storage_stays_and_is_said(cli: Cli) -> None:
    folder = record(
        Path("runs/far"), {"LoRA r1": (100, over_seeds(80.0, 81.0))},
        facts={"adapter": "s3://bucket/runs/far/attempt-1/key/checkpoint_000001/adapter"},
    )  # fmt: skip
    write_log(folder, SessionEnded(status="finished"))
    stays = cli("remove", "far", "--json").report["stays"]
    assert "checkpoints and adapters in s3://bucket/runs/far" in stays
    assert folder.exists()
