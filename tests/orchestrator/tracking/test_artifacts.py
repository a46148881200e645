"""A sweep is the same whichever way it is read: by its folder, by its name from a store, and after its folder is gone."""

from __future__ import annotations

import io
import shutil
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from orchestrator.review.front_report import front_report
from orchestrator.review.front_tables import latex, show_front, write_csv
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.tracking import artifacts
from tests.mlflow_server import Server
from tests.orchestrator.conftest import Cli
from tests.orchestrator.logged import SweepLog, entry, mirror, story


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "PIECE", 600)


def contents_of(record: PastSweep, folder: Path) -> list[bytes]:
    """All that a recorded sweep answers, but for the place that it was read from."""
    folder.mkdir()
    screen = io.StringIO()
    sweep = record.sweep
    show_front(record.summaries, sweep, record.answer, "the sweep", Console(file=screen, width=200))
    write_csv(record.summaries, sweep.objectives, folder / "front.csv")
    tables = [(folder / "front.csv").read_bytes(), latex(record.summaries, sweep.objectives).encode()]
    report = front_report(record).model_copy(update={"source": ""})
    return [screen.getvalue().encode(), report.to_json().encode(), *tables]


@pytest.mark.slow
@pytest.mark.parametrize("served", [False, True], ids=["a file", "a server"])
def test_by_folder_by_name_and_without_the_folder(served: bool, uri: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if served:
            server = stack.enter_context(closing(Server(uri, tmp_path)))
            server.start()
            uri = server.uri
        folder = tmp_path / "runs" / "demo"
        for part, _ in enumerate(story(folder)):
            mirror(folder, uri)
            expected = contents_of(find_sweep(str(folder)), tmp_path / f"folder-{part}")
            assert contents_of(find_sweep("demo", uri), tmp_path / f"store-{part}") == expected
        shutil.rmtree(folder)
        assert contents_of(find_sweep("demo", uri), tmp_path / "after") == expected
        shutil.rmtree(tmp_path / "cache")
        assert contents_of(find_sweep("demo", uri), tmp_path / "elsewhere") == expected


def test_a_sweep_is_read_where_the_cache_cannot_be_written(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs" / "demo"
    SweepLog(folder).start(entry(8))
    mirror(folder, uri)
    (tmp_path / "file").touch()
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert find_sweep("demo", uri).state == find_sweep(str(folder)).state


def test_a_whole_piece_is_sent_once_and_one_that_is_gone_again(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    sent: list[str] = []
    upload = artifacts.upload

    def record(client: MlflowClient, run_id: str, name: str, source: Path) -> None:
        sent.extend(file.name for file in source.iterdir())
        upload(client, run_id, name, source)

    monkeypatch.setattr(artifacts, "upload", record)
    folder = tmp_path / "runs" / "demo"
    trial, sweep = entry(), SweepLog(folder)
    sweep.start(trial)
    copy = mirror(folder, uri)
    for step in range(10, 20):
        sweep.report(trial, step)
        copy.step()
    whole = sorted(set(sent))[:-1]
    assert len(whole) >= 3
    # A piece ends behind the first line that ends at least a piece's size after its beginning.
    log = (folder / "log.jsonl").read_bytes()
    ends = [log.index(b"\n", int(name[:12]) + artifacts.PIECE - 1) + 1 for name in whole]
    assert all(int(name[:12]) == size for name, size in zip(whole[1:], ends, strict=False))
    sweep.train(trial)
    sweep.close()
    before = len(sent)
    mirror(folder, uri)
    assert not set(sent[before:]) & set(whole), "another process asks the store what it has"

    (place,) = tmp_path.rglob(f"log/{whole[1]}")
    place.unlink()
    said = " ".join(cli("front", "demo", "--tracking-uri", uri, status=2).err.split())
    assert f"does not have the whole log of sweep 'demo': log/{whole[1]} is not among the artifacts" in said
    before = len(sent)
    mirror(folder, uri)
    assert whole[1] in sent[before:]
    assert find_sweep("demo", uri).state == find_sweep(str(folder)).state


@pytest.mark.parametrize("more", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_a_log_that_was_cut_back_replaces_what_store_and_cache_have_of_it(uri: str, tmp_path: Path, more: int) -> None:
    folder, log = tmp_path / "runs" / "demo", tmp_path / "runs" / "demo" / "log.jsonl"
    for trial, reports in ((entry(), 20), (entry(seed=1), more)):
        sweep = SweepLog(folder)
        sweep.begin(trial)
        for step in range(10, 10 + reports):
            sweep.report(trial, step)
        sweep._log.close()
        mirror(folder, uri)
        assert find_sweep("demo", uri).state == find_sweep(str(folder)).state
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:8]))
