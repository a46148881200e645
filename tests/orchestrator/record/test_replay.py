"""What a tracker ships again, late or after a crash: everything once, whatever was cut off, and training waits for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from craft.words import redact
from orchestrator.record.tracker import Tracker
from orchestrator.tools.journal import Journal, read
from orchestrator.tracking import main
from tests.orchestrator.tracked import adapter, finished, history, progress, runs, spec, start


def test_a_resumed_trial_goes_on_in_its_own_run(uri: str, tmp_path: Path) -> None:
    folder, trial = tmp_path / "runs", spec()
    tracker = start(uri, folder, trial)
    tracker.trial_progress(trial.key, progress(10))
    tracker.trial_progress(trial.key, progress(20))
    tracker.sweep_ended("interrupted", {})
    assert tracker.close(60) == 0
    first = runs(uri)
    assert {run.info.status for run in first.values()} == {"KILLED"}

    # Resumed from the checkpoint of step 10: step 20 comes again, at another time and with another rounding.
    tracker = start(uri, folder, trial)
    tracker.trial_progress(trial.key, progress(20, search_score=70.0000001))
    tracker.trial_progress(trial.key, progress(30))
    tracker.trial_ended(finished(trial))
    tracker.configuration_ended(trial.configuration, trial.label, {"method": "craft"}, {"score": 80.0, "trials_done": 1})
    tracker.sweep_ended("finished", {})
    assert tracker.close(60) == 0
    second = runs(uri)
    assert {key: run.info.run_id for key, run in second.items()} == {key: run.info.run_id for key, run in first.items()}
    assert {run.info.status for run in second.values()} == {"FINISHED"}
    run = second["trial", trial.key]
    assert history(uri, run, "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]
    assert history(uri, run, "train_loss") == [(5, 0.1), (15, 0.05), (25, 1 / 30)]
    assert run.data.tags["craft.status"] == "finished"


def test_a_killed_driver_s_journal_is_shipped_by_replay_and_twice_is_once(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, done, open_trial = tmp_path / "runs", spec(), spec(seed=1)
    tracker = start(uri, folder, done, open_trial)
    assert tracker.flush(60) == 0
    for step in (10, 20, 30):
        tracker.trial_progress(done.key, progress(step))
    tracker.trial_ended(finished(done), adapter(folder / "a"))
    assert tracker.close(0) == 5, "the driver dies here: nothing more is shipped, nothing is closed"

    assert main(["replay", str(folder)]) == 0
    assert "everything is in the tracking store" in capsys.readouterr().out
    once = runs(uri)
    assert once["trial", done.key].info.status == "FINISHED"
    assert once["trial", open_trial.key].info.status == "KILLED"
    assert once["sweep", "demo"].info.status == "KILLED"
    assert len(history(uri, once["trial", done.key], "search_score")) == 3

    # A lost cursor makes everything come again; nothing changes.
    (folder / "tracking.cursor.json").unlink()
    assert main(["replay", str(folder), "--tracking-uri", uri]) == 0
    again = runs(uri)
    assert {key: run.info.run_id for key, run in again.items()} == {key: run.info.run_id for key, run in once.items()}
    assert {key: run.data.metrics for key, run in again.items()} == {key: run.data.metrics for key, run in once.items()}
    assert {key: run.info.status for key, run in again.items()} == {key: run.info.status for key, run in once.items()}
    for metric in ("search_score", "train_loss", "score", "seconds", "epoch"):
        points = history(uri, again["trial", done.key], metric)
        assert len(points) == len(set(points)) == len(history(uri, once["trial", done.key], metric)), metric
    assert len(MlflowClient(uri).get_run(again["trial", done.key].info.run_id).inputs.dataset_inputs) == 1


def test_every_prefix_of_the_journal_can_be_replayed(uri: str, tmp_path: Path) -> None:
    """A crash between the store's yes and the cursor repeats events: here after every single one."""
    folder, trial = tmp_path / "runs", spec()
    tracker = start(uri, folder, trial)
    tracker.trial_progress(trial.key, progress(10))
    tracker.trial_ended(finished(trial, steps=10))
    tracker.sweep_ended("finished", {"hypervolume": 1.0})
    tracker.close(60)
    for offset in [0, *(end for _, end in read(folder / "journal.jsonl"))]:
        (folder / "tracking.cursor.json").write_text(json.dumps({redact(uri): {"offset": offset}}))
        assert Tracker(uri, "demo", folder).close(60) == 0
    table = runs(uri)
    assert len(table) == 3
    assert history(uri, table["trial", trial.key], "search_score") == [(10, 60.0)]
    assert table["trial", trial.key].info.status == "FINISHED"


def test_an_emptied_store_gets_the_whole_record_again(uri: str, tmp_path: Path, empty_store: Path) -> None:
    folder, trial = tmp_path / "runs", spec()
    tracker = start(uri, folder, trial)
    tracker.trial_ended(finished(trial))
    assert tracker.close(60) == 0
    other = f"sqlite:///{tmp_path / 'other.db'}"
    (tmp_path / "other.db").write_bytes(empty_store.read_bytes())
    (folder / "tracking.cursor.json").write_text(json.dumps({other: {"offset": (folder / "journal.jsonl").stat().st_size}}))
    assert main(["replay", str(folder), "--tracking-uri", other]) == 0
    assert runs(other).keys() == runs(uri).keys()


def test_a_driver_killed_between_ledger_and_tracker_settles_at_the_next_start(uri: str, tmp_path: Path) -> None:
    folder, done, running = tmp_path / "runs", spec(), spec(seed=1)
    tracker = start(uri, folder, done, running)
    assert tracker.close(60) == 0  # killed: the ledger has the result of `done`, the tracker never heard of it

    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started({"name": "demo"})
    tracker.settle({done.key: finished(done)}, {done.key: adapter(folder / "a")})
    assert tracker.open_configurations == {done.configuration}
    tracker.sweep_ended("interrupted", {})
    tracker.add_file(folder / "a" / "adapter_config.json")
    assert tracker.close(60) == 0
    table = runs(uri)
    assert table["trial", done.key].info.status == "FINISHED"
    assert table["trial", done.key].data.metrics["score"] == 80.0
    assert "craft.adapter_sha256" in table["trial", done.key].data.tags
    assert table["trial", running.key].info.status == "KILLED"
    names = {item.path for item in MlflowClient(uri).list_artifacts(table["sweep", "demo"].info.run_id)}
    assert names == {"adapter_config.json"}


def test_a_missing_adapter_holds_up_nothing_and_is_offered_again(uri: str, tmp_path: Path) -> None:
    folder, trial, other = tmp_path / "runs", spec(), spec(seed=1)
    tracker = start(uri, folder, trial, other)
    tracker.trial_ended(finished(trial), folder / "gone")
    tracker.trial_ended(finished(other), adapter(folder / "there"))
    assert tracker.close(60) == 1, "the adapter that is not there"
    table = runs(uri)
    assert table["trial", trial.key].info.status == "FINISHED"
    assert "craft.adapter_sha256" in table["trial", other.key].data.tags
    refused = [event for event, _ in read(folder / "tracking.refused.jsonl")]
    assert [event["kind"] for event in refused] == ["artifact"]
    assert "gone" in refused[0]["reason"]

    adapter(folder / "gone")
    assert Tracker(uri, "demo", folder).close(60) == 0
    assert "craft.adapter_sha256" in runs(uri)["trial", trial.key].data.tags


def test_a_full_disk_keeps_events_in_memory(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = spec()
    tracker = start(uri, tmp_path / "runs", trial)

    def full(_: Journal, __: list[dict]) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "extend", full)
        tracker.trial_progress(trial.key, progress(10))
        assert tracker.flush(0) >= 1
    tracker.trial_progress(trial.key, progress(20))
    assert tracker.close(60) == 0
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0)]
