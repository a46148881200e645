"""The tracker against a real SQLite store: what a sweep writes is what MLflow shows, once, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from craft.spec import RunSpec, TrainingSettings
from orchestrator import shipping
from orchestrator.journal import Journal, JournalBusy, read
from orchestrator.tracking import Tracker, TrackingError, main, redact, resolve_uri
from orchestrator.trial import TrialResult, TrialSpec


def spec(task: str = "toy/acceptability", seed: int = 0, rank: int = 8, label: str | None = None) -> TrialSpec:
    run = RunSpec(
        model="sentence-transformers/all-MiniLM-L6-v2",
        task=task,
        method="craft",
        parameters={"ranks": ["all", rank, rank], "projections": ["q", "v"]},
        training=TrainingSettings(learning_rate=3e-4),
        seed=seed,
    )
    return TrialSpec(run, f"{rank:010x}", label or f"6·{rank}·{rank} qv lr 3e-4")


def finished(trial: TrialSpec, score: float = 80.0, steps: int = 30) -> TrialResult:
    facts = {"data_fingerprint": "ab" * 32, "device": "cpu"}
    counts = {"trainable_parameters": 328.0, "head_parameters": 770.0, "peak_memory_bytes": 1e9}
    metrics = {"score": score, "accuracy": score}
    return TrialResult(trial.key, "finished", metrics, counts, steps, 12.5, facts=facts)


def progress(step: int, **metrics: float) -> dict:
    points = [{"step": step - 5, "train_loss": 1.0 / step, "learning_rate": 1e-3}]
    return {
        "step": step,
        "total_steps": 30,
        "epoch": step / 10,
        "metrics": metrics or {"search_score": 50.0 + step},
        "points": points,
    }


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new, empty store; making one takes seconds, so tests copy it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = tmp_path_factory.mktemp("store")
    SqlAlchemyStore(f"sqlite:///{folder / 'mlflow.db'}", str(folder)).engine.dispose()
    return folder / "mlflow.db"


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(shipping, "LINGER_S", 0.0)
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"peft_type": "CRAFT"}')
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 40)
    return folder


def runs(uri: str, experiment: str = "demo") -> dict[tuple[str, str], Run]:
    """Every run of the experiment by kind and key; two of one kind and key are an error."""
    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id], run_view_type=ViewType.ALL)
    table = {(run.data.tags["craft.kind"], run.data.tags["craft.key"]): run for run in found}
    assert len(table) == len(found), "a run was made twice"
    return table


def history(uri: str, run: Run, metric: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run.info.run_id, metric)]


def test_a_whole_sweep_as_mlflow_shows_it(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo"
    page = folder / "front.csv"
    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started({"name": "demo", "seeds": [0, 1], "manifest": {"python": "3.11"}, "sweep_yaml": "name: demo\n"})
    trial = spec()
    tracker.trial_started(trial, {"r1_effective": 6})
    for step in (10, 20, 30):
        tracker.trial_progress(trial.key, progress(step))
    (folder / "trials" / "predictions").mkdir(parents=True)
    (folder / "trials" / "predictions" / "boolq.jsonl").write_text('{"answer": "true"}\n')
    tracker.trial_ended(finished(trial), adapter(folder / "trials" / "a"))
    tracker.configuration_ended(
        trial.configuration,
        trial.label,
        {"method": "craft", "ranks": ["all", 8, 8]},
        {
            "score": 80.0,
            "score_low": 78.0,
            "score_high": 82.0,
            "trials_done": 1,
            "score/toy/acceptability": 80.0,
            "complete": True,
        },
    )
    page.write_text("configuration,score\n")
    tracker.sweep_ended(
        "finished",
        {
            "hypervolume": 3.5,
            "on_front": [trial.configuration],
            "knee": trial.configuration,
            "description": "| label | score |\n| --- | --- |\n",
        },
        [page],
    )
    assert tracker.close(60) == 0

    table = runs(uri)
    assert len(table) == 3
    sweep, configuration = table["sweep", "demo"], table["configuration", trial.configuration]
    run = table["trial", trial.key]
    assert (run.data.tags["mlflow.parentRunId"], configuration.data.tags["mlflow.parentRunId"]) == (
        configuration.info.run_id,
        sweep.info.run_id,
    )
    assert run.info.run_name == "craft 6·8·8 qv lr 3e-4 · toy/acceptability · seed 0"
    assert configuration.info.run_name == "craft 6·8·8 qv lr 3e-4"
    assert {run.info.status for run in table.values()} == {"FINISHED"}
    assert run.data.params["ranks"] == "all,8,8"
    assert (run.data.params["r1"], run.data.params["r2"], run.data.params["r1_effective"]) == ("all", "8", "6")
    assert (run.data.params["learning_rate"], run.data.params["projections"]) == ("3e-4", "q,v")
    assert history(uri, run, "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]
    assert history(uri, run, "train_loss") == [(5, 0.1), (15, 0.05), (25, 1 / 30)]
    assert (run.data.metrics["score"], run.data.metrics["trainable_parameters"]) == (80.0, 328.0)
    expected = {
        "kind": "trial",
        "sweep": "demo",
        "configuration": trial.configuration,
        "task": "toy/acceptability",
        "seed": "0",
        "method": "craft",
        "protocol": "honest",
        "status": "finished",
        "on_front": "true",
        "knee": "true",
    }
    assert {name: run.data.tags[f"craft.{name}"] for name in expected} == expected
    assert configuration.data.metrics["score/toy/acceptability"] == 80.0
    assert configuration.data.metrics["score_low"] == 78.0
    assert sweep.data.metrics["hypervolume"] == 3.5
    assert sweep.data.tags["mlflow.note.content"].startswith("| label | score |")
    client = MlflowClient(uri)
    dataset = client.get_run(run.info.run_id).inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("toy/acceptability", ("ab" * 32)[:36])

    assert {item.path for item in client.list_artifacts(sweep.info.run_id)} == {"front.csv", "manifest.json", "sweep.yaml"}
    local = Path(client.download_artifacts(run.info.run_id, "adapter", str(tmp_path)))
    answers = client.list_artifacts(run.info.run_id, "predictions")
    assert [item.path for item in answers] == ["predictions/boolq.jsonl"]
    weights = (local / "adapter_model.safetensors").read_bytes()
    assert hashlib.sha256(weights).digest() == hashlib.sha256(bytes(range(256)) * 40).digest()
    assert (tmp_path / "mlartifacts").is_dir(), "artifacts lie beside the database"


def start(uri: str, folder: Path, *trials: TrialSpec) -> Tracker:
    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started({"name": "demo"})
    for trial in trials:
        tracker.trial_started(trial)
    return tracker


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
    tracker._shipper.stop()  # the process dies here: nothing more is shipped, nothing is closed
    for step in (10, 20, 30):
        tracker.trial_progress(done.key, progress(step))
    tracker.trial_ended(finished(done), adapter(folder / "a"))
    tracker._journal.close()

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
        (folder / "tracking.cursor.json").write_text(json.dumps({redact(uri): offset}))
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
    (folder / "tracking.cursor.json").write_text(json.dumps({other: (folder / "journal.jsonl").stat().st_size}))
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


def test_two_sweeps_of_one_name_in_two_folders_stay_two(uri: str, tmp_path: Path) -> None:
    trial = spec()
    for folder in ("one", "two"):
        tracker = start(uri, tmp_path / folder, trial)
        tracker.trial_progress(trial.key, progress(10))
        assert tracker.close(60) == 0
    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("demo").experiment_id], "tags.`craft.kind` = 'trial'")
    assert [history(uri, run, "search_score") for run in found] == [[(10, 60.0)]] * 2
    assert len({run.data.tags["craft.sweep_id"] for run in found}) == 2


def test_values_that_are_not_finite_become_tags(uri: str, tmp_path: Path) -> None:
    trial = spec()
    tracker = start(uri, tmp_path / "runs", trial)
    tracker.trial_progress(trial.key, progress(10, search_score=math.nan, search_loss=math.inf))
    tracker.trial_ended(TrialResult(trial.key, "failed", {}, {}, 10, 1.0, "the loss is NaN at step 10"))
    assert tracker.close(60) == 0
    run = runs(uri)["trial", trial.key]
    assert not {"search_score", "search_loss"} & run.data.metrics.keys()
    assert run.data.tags["craft.nonfinite.search_score"] == "nan at step 10"
    assert run.data.tags["craft.nonfinite.search_loss"] == "inf at step 10"
    assert (run.info.status, run.data.tags["craft.error"]) == ("FAILED", "the loss is NaN at step 10")
    assert "the loss is NaN" in run.data.tags["mlflow.note.content"]


def test_a_failed_trial_that_later_finishes_is_one_finished_run(uri: str, tmp_path: Path) -> None:
    trial, folder = spec(), tmp_path / "runs"
    tracker = start(uri, folder, trial)
    tracker.trial_ended(TrialResult(trial.key, "failed", error="out of memory"))
    tracker.trial_started(trial)
    tracker.trial_ended(finished(trial))
    assert tracker.close(60) == 0
    run = runs(uri)["trial", trial.key]
    assert (run.info.status, run.data.tags["craft.status"], run.data.metrics["score"]) == ("FINISHED", "finished", 80.0)


def test_an_early_stop_is_told_from_a_fault(uri: str, tmp_path: Path) -> None:
    trial = spec()
    tracker = start(uri, tmp_path / "runs", trial)
    tracker.trial_ended(TrialResult(trial.key, "stopped", {"search_score": 61.0}, {}, 10))
    assert tracker.close(60) == 0
    run = runs(uri)["trial", trial.key]
    assert (run.info.status, run.data.tags["craft.status"]) == ("FINISHED", "stopped")


def test_hostile_and_long_names_are_text(uri: str, tmp_path: Path) -> None:
    label = "<script>alert('x')</script> ../../etc \x00 日本 " + "x" * 400
    trial = spec(label=label)
    tracker = start(uri, tmp_path / "runs")
    tracker.trial_started(trial, {"note": "y" * 9000, "../../bad//name": 1, "when": None})
    tracker.trial_ended(finished(trial))
    params = {"method": "craft"}
    tracker.configuration_ended(trial.configuration, label, params, {"score/../../x": 1.0, "score": 2.0, "trials_done": 1})
    assert tracker.close(60) == 0
    table = runs(uri)
    run = table["trial", trial.key]
    assert run.info.run_name.startswith("craft <script>alert('x')</script> ../../etc � 日本")
    assert len(run.data.params["note"]) == 6000
    assert run.data.params["note"].endswith("(cut, 9000 characters)")
    assert run.data.params["bad/name"] == "1"
    assert table["configuration", trial.configuration].data.metrics["score/x"] == 1.0


def test_an_extended_sweep_tells_the_new_value_beside_the_old(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for seeds in ([0], [0, 1]):
        tracker = Tracker(uri, "demo", folder)
        tracker.sweep_started({"seeds": seeds})
        assert tracker.close(60) == 0
    run = runs(uri)["sweep", "demo"]
    assert (run.data.params["seeds"], run.data.tags["craft.now.seeds"]) == ("0", "0,1")


def test_a_front_that_moved_is_marked_anew(uri: str, tmp_path: Path) -> None:
    folder, small, large = tmp_path / "runs", spec(rank=8), spec(rank=16)
    for front in ([small], [large]):
        tracker = start(uri, folder, small, large)
        tracker.trial_ended(finished(small))
        tracker.trial_ended(finished(large))
        tracker.sweep_ended("finished", {"on_front": [trial.configuration for trial in front]})
        assert tracker.close(60) == 0
    marked = {key for key, run in runs(uri).items() if run.data.tags.get("craft.on_front") == "true"}
    assert marked == {("configuration", large.configuration), ("trial", large.key)}


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
        assert tracker.unsent >= 1
    tracker.trial_progress(trial.key, progress(20))
    assert tracker.close(60) == 0
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0)]


def test_passwords_reach_nothing(uri: str, tmp_path: Path) -> None:
    secret = "postgresql://user:hunter2@db.example:5432/mlflow?password=hunter2"
    folder, trial = tmp_path / "runs", spec()
    sweep_file = folder / "effective.yaml"
    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started(
        {"tracking": {"uri": secret}, "manifest": {"command": ["run", secret]}, "sweep_yaml": f"uri: {secret}"}
    )
    tracker.trial_started(trial, {"origin": secret})
    tracker.trial_ended(TrialResult(trial.key, "failed", error=f"cannot reach {secret}", facts={"store": secret}))
    sweep_file.write_text(f"tracking: {{uri: '{secret}'}}\n")
    tracker.sweep_ended("failed", {"description": f"see {secret}"}, [sweep_file])
    assert tracker.close(60) == 0
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != sweep_file:
            assert b"hunter2" not in file.read_bytes(), file
    assert any(b"***@db.example" in file.read_bytes() for file in (tmp_path / "mlartifacts").rglob("effective.yaml"))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://me:pw@host:5000/x", "http://***@host:5000/x"),
        ("postgresql+psycopg://u:p%40@h/db", "postgresql+psycopg://***@h/db"),
        ("cannot reach postgresql://u:a/b@c@h/db now", "cannot reach postgresql://***@h/db now"),
        ("https://h/x?token=abc&user=b", "https://h/x?token=***&user=b"),
        ("sqlite:////home/me/mlflow.db", "sqlite:////home/me/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_redaction(given: str, shown: str) -> None:
    assert redact(given) == shown


def test_uris_are_made_absolute_or_refused(tmp_path: Path) -> None:
    assert resolve_uri("sqlite:///mlflow.db", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri(f"sqlite:///{tmp_path}/a.db") == f"sqlite:///{tmp_path}/a.db"
    assert resolve_uri("postgresql://u:p@h/db") == "postgresql://u:p@h/db"
    for wrong, words in [
        ("mlruns", "sqlite:///mlflow.db"),
        ("file:///mlruns", "folder"),
        ("ftp://h", "unknown scheme"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("http://", "names no host"),
    ]:
        with pytest.raises(TrackingError, match=words):
            resolve_uri(wrong, tmp_path)


def test_one_writer_and_one_sweep_a_folder(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(uri, "demo", tmp_path / "runs")
    with pytest.raises(JournalBusy):
        Tracker(uri, "demo", tmp_path / "runs")
    assert main(["replay", str(tmp_path / "runs")]) == 2
    tracker.close(60)
    with pytest.raises(TrackingError, match="'demo', not of 'other'"):
        Tracker(uri, "other", tmp_path / "runs")
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert "give the folder of a sweep" in capsys.readouterr().err


def test_a_store_that_is_away_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "LINGER_S", 0.0)
    trial = spec()
    tracker = start("http://127.0.0.1:9", tmp_path / "runs", trial)
    for step in range(10, 1000, 10):
        tracker.trial_progress(trial.key, progress(step))
    left = tracker.close(4)
    assert left == 102, "the opening line and every event"
    assert tracker.trouble is not None
    assert len(list(read(tmp_path / "runs" / "journal.jsonl"))) == left


def test_nothing_is_printed(tmp_path: Path) -> None:
    """In a process of its own: MLflow's first words come while it is imported and while it makes a database."""
    import subprocess
    import sys

    program = (
        "from pathlib import Path; from orchestrator.tracking import Tracker\n"
        f"tracker = Tracker('sqlite:///{tmp_path}/new/mlflow.db', 'demo', Path({str(tmp_path)!r}) / 'runs')\n"
        "tracker.sweep_started({'name': 'demo'}); tracker.sweep_ended('finished', {})\n"
        "assert tracker.close(120) == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
