"""A sweep whose folder or files are moved is the same sweep, and its trials keep their names; a copy is a sweep of its own, in
a place of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from craft.results import MODEL_DIGEST, TEXT_DIGEST
from craft.spec import RunSpec
from orchestrator.commands import session
from orchestrator.commands.session import open_session
from orchestrator.plan.trial import TrialResult
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.record.options import Options
from orchestrator.record.resume import check_data, contradictions, has_moved, recorded_digests
from orchestrator.review.past_sweep import read_folder
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tracking.client import open_store
from orchestrator.tracking.reader import StoreReader
from tests.orchestrator.logged import SweepLog, entry, mirror
from tests.orchestrator.plans import driving, outcomes, run_some, start_next, toy_plan

SWEEP = "name: s\nmodel: m\ntasks: [toy/sentiment]\nspace: [{method: lora, rank: {values: [1, 2]}}]"


def test_a_copy_gets_an_id_of_its_own_and_a_moved_sweep_keeps_its(tmp_path: Path) -> None:
    plan, first, second = toy_plan(tmp_path, SWEEP), tmp_path / "first", tmp_path / "second"
    run_some(plan, first, lambda job: outcomes(job, lambda trial: 80.0))
    sweep_id, written = read_state(first / "log.jsonl").sweep_id, (first / "log.jsonl").read_bytes()
    shutil.copytree(first, second)
    shared = f"file://{tmp_path / 'shared'}"
    with pytest.raises(ValueError, match=f"{second} is a copy of {first}, .* both would write to {shared}"):
        open_session(plan, SweepFolder(second), Options(storage=shared, resume=True)).__enter__()
    with driving(plan, second) as driver:
        assert driver.copied_from == first
        assert driver.state.sweep_id != sweep_id
        assert not driver.is_open, "what has finished is kept"
    assert (first / "log.jsonl").read_bytes() == written
    with driving(plan, second) as driver:
        assert driver.copied_from is None, "it has its place now"
    shutil.move(first, tmp_path / "third")
    with driving(plan, tmp_path / "third") as driver:
        assert (driver.copied_from, driver.state.sweep_id) == (None, sweep_id)
    (tmp_path / "link").symlink_to(tmp_path / "third")
    with driving(plan, tmp_path / "link") as driver:
        assert driver.copied_from is None, "it is the same folder"


def test_an_adapter_is_noted_by_its_place_in_a_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    folder = SweepFolder(tmp_path / "runs" / "s")
    assert folder.relative(folder.ray / "adapter") == "ray/adapter"
    assert folder.relative(tmp_path / "elsewhere") == str(tmp_path / "elsewhere")


def test_the_log_of_another_sweep_is_not_continued(tmp_path: Path) -> None:
    plan, other = toy_plan(tmp_path, SWEEP), toy_plan(tmp_path, SWEEP.replace("name: s", "name: other"))
    run_some(other, tmp_path / "s", lambda job: outcomes(job, lambda trial: 80.0))
    with pytest.raises(SweepError, match=r"s/log\.jsonl is the log of the sweep 'other' and not of 's'"):
        open_session(plan, SweepFolder(tmp_path / "s"), Options(resume=True)).__enter__()
    assert read_folder(tmp_path / "s").name == "other", "a folder may have another name than its sweep"


def test_ray_that_runs_in_the_process_is_to_be_shut_down_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"call ray\.shutdown\(\) first"):
        open_session(toy_plan(tmp_path, SWEEP), SweepFolder(tmp_path / "s"), Options()).__enter__()
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_artifacts_of_a_copied_store_are_those_of_the_copy(empty_store: Path, tmp_path: Path) -> None:
    """MLflow writes absolute paths down, so a copy would read and write where the original is."""
    original, copy, moved = tmp_path / "P", tmp_path / "Q", tmp_path / "R"
    original.mkdir()
    shutil.copy(empty_store, original / "mlflow.db")
    adapter = original / "runs" / "demo" / "adapters" / "first"
    adapter.mkdir(parents=True)
    (adapter / "weights").write_text("learnt")
    sweep = SweepLog(original / "runs" / "demo")
    sweep.begin(entry())
    sweep.finish(entry(), adapter="adapters/first")
    mirror(original / "runs" / "demo", f"sqlite:///{original / 'mlflow.db'}")
    shutil.copytree(original, copy)
    files = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    (copy / "runs" / "demo" / "adapters" / "second").mkdir()
    (copy / "runs" / "demo" / "adapters" / "second" / "weights").write_text("of the copy")
    sweep = SweepLog(copy / "runs" / "demo", sweep_id="6" * 32)  # as a session of the copy begins
    sweep.begin(entry(16))
    sweep.finish(entry(16), adapter="adapters/second")
    mirror(copy / "runs" / "demo", f"sqlite:///{copy / 'mlflow.db'}")
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == files
    shutil.rmtree(original)
    shutil.move(copy, moved)
    client = StoreReader(f"sqlite:///{moved / 'mlflow.db'}").client
    trials = client.search_runs([client.get_experiment_by_name("demo").experiment_id], "tags.`craft.kind` = 'trial'")
    weights = {
        Path(client.download_artifacts(run.info.run_id, "adapter")).joinpath("weights").read_text()
        for run in trials
        if str(moved) in run.info.artifact_uri
    }
    assert weights == {"learnt", "of the copy"}


def test_artifacts_in_a_folder_that_no_store_has_left_stay_there(uri: str, tmp_path: Path) -> None:
    (shared := tmp_path / "shared" / "mlartifacts").mkdir(parents=True)
    MlflowClient(uri).create_experiment("team", artifact_location=f"{shared.as_uri()}/team")
    assert open_store(uri).get_experiment_by_name("team").artifact_location == f"{shared.as_uri()}/team"


def test_an_experiment_that_was_renamed_keeps_its_sweep(uri: str, tmp_path: Path) -> None:
    sweep = SweepLog(tmp_path / "demo")
    sweep.begin(entry())
    mirror(tmp_path / "demo", uri)
    client = MlflowClient(uri)
    place = client.get_experiment_by_name("demo").experiment_id
    client.rename_experiment(place, "of last week")
    sweep.finish(entry())
    mirror(tmp_path / "demo", uri)
    assert client.get_experiment_by_name("demo") is None
    (trial,) = client.search_runs([place], "tags.`craft.kind` = 'trial'")
    assert trial.data.tags["craft.status"] == "finished"
    reader = StoreReader(uri)
    assert len(reader.sweep_runs()) == 1
    stored = reader.sweep_run("demo")
    assert reader.trial_run(stored, entry().key) is not None


OWN_ROWS = """\
name: t
tasks: [custom/mine]
data: {{custom: {{mine: {{train: {place}/rows.csv, text: body, label: way}}}}}}
space: [{{method: lora, rank: {{values: [1, 2]}}}}]
storage: {storage}
"""


@pytest.mark.parametrize("ended", [1, 2])
@pytest.mark.parametrize("case", ["the same rows", "other rows", "more seeds by the answer"])
def test_a_session_prepares_once_after_its_files_moved_and_trains_on_the_same_rows(
    tmp_path: Path, ended: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, more = case == "the same rows", "search: {until: answered}\n" if case.startswith("more") else ""
    plans = []
    for place, block in ((tmp_path / "old", ""), (tmp_path / "new", more)):
        place.mkdir()
        (place / "rows.csv").write_text("body,way\na,up\nb,down\n")
        plans.append(toy_plan(place, OWN_ROWS.format(place=place, storage=tmp_path) + block))
    with driving(plans[0], plans[0].sweep.folder) as driver:
        for _ in range(ended):
            job = start_next(driver)
            (outcome,) = outcomes(job, lambda trial: 60.0)
            driver.record_end(job.key, [replace(outcome, result=outcome.result.with_facts(data_fingerprint="a" * 64))])
    (plans[0].sweep.folder / "sweep.yaml").write_text(plans[0].sweep.to_yaml())
    prepared = list[bool]()

    def prepare(trials: object, *, elsewhere: bool = False) -> dict[str, str]:
        prepared.append(elsewhere)
        return {"custom/mine": "a" * 64 if same else "b" * 64}

    monkeypatch.setattr(session, "prepare", prepare)
    with driving(plans[1], plans[1].sweep.folder) as driver:
        if same:
            shared = session._prepare(driver, Console(quiet=True))
            assert (shared is None) == (ended == 2), "nothing is left to train"
        else:
            with pytest.raises(SweepError, match="the data of custom/mine are not what this sweep's finished trials used"):
                session._prepare(driver, Console(quiet=True))
    assert prepared == [ended == 2 and not more]


MINIMAL = {"name": "s", "model": "m", "tasks": ["glue/cola"], "space": [{"method": "lora", "rank": 1}]}


def test_places_of_files_and_what_a_task_does_not_read_are_no_part_of_the_name() -> None:
    def run(folder: str, file: str = "rows.csv", **more: str) -> RunSpec:
        own = {"train": f"{folder}/{file}", "text": "body", "label": "queue", **more}
        measure = {"forgetting": {"text": f"{folder}/words.txt"}}
        task = {"model": f"{folder}/model", "task": "custom/tickets", "method": "lora", "data": {"custom": {"tickets": own}}}
        return RunSpec.model_validate(task | {"measure": measure})

    assert run("/a").key == run("/b", "other.csv").key
    assert run("/a", validation="/a/held.csv").key == run("/b", validation="/b/held.csv").key != run("/a").key
    assert run("/a").key != run("/a").model_copy(update={"model": "hub/id"}).key
    data = run("/a").data
    unread = data.model_copy(update={"generation": data.generation.model_copy(update={"beams": 1})})
    assert run("/a").key == run("/a").model_copy(update={"data": unread}).key, "a classification generates nothing"


@pytest.mark.parametrize(
    ("place", "fact", "message"),
    [
        ("glue/cola", "data_fingerprint", "the data of glue/cola are not what"),
        ("/m/one.gguf", MODEL_DIGEST, "model /m/one.gguf: its weights, configuration or tokenizer are not what"),
        ("/m/mine.txt", TEXT_DIGEST, "the text /m/mine.txt is not what"),
    ],
)
def test_other_rows_models_and_texts_under_finished_trials_are_refused(place: str, fact: str, message: str) -> None:
    """By the names that they have now: a finished trial may have read them elsewhere."""
    sweep = Sweep.model_validate(MINIMAL | {"model": "/m/one.gguf", "measure": {"forgetting": {"text": "/m/mine.txt"}}})
    trial = entry(task="glue/cola")
    done = replace(trial, result=TrialResult(trial.key, "finished", facts={fact: "1" * 64, "forgetting_text": "/old/mine.txt"}))
    check_data(sweep, [trial], {place: "2" * 64})
    check_data(sweep, [done], {place: "1" * 64, "another": "2" * 64})
    assert recorded_digests(sweep, [trial, done]) == {place: "1" * 64}
    with pytest.raises(SweepError, match=f"{message} .* finished trials used .SHA-256 222222222222, then 111111111111"):
        check_data(sweep, [done], {place: "2" * 64})


def test_files_may_move_between_sessions_and_nothing_else_of_the_data_may_change() -> None:
    def sweep(folder: str, **own: str) -> Sweep:
        task = {"train": f"{folder}/rows.csv", "text": "t", "label": "l", **own}
        return Sweep.model_validate(MINIMAL | {"model": f"{folder}/bert", "data": {"custom": {"t": task}}})

    assert not contradictions(sweep("/a"), sweep("/b"))
    assert has_moved(sweep("/a"), sweep("/b"))
    assert not has_moved(sweep("/a"), sweep("/a"))
    (line,) = contradictions(sweep("/a"), sweep("/b", label="other"))
    assert line.startswith("data.custom.t.label: was")
    (line,) = contradictions(sweep("/a"), sweep("/b").model_copy(update={"model": "hub/id"}))
    assert "hub/id" in line
