"""A sweep whose folder or files are moved is the same sweep; a copy is a sweep of its own, in a place of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from orchestrator.commands import session
from orchestrator.commands.session import open_session
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.record.options import Options
from orchestrator.review.past_sweep import read_folder
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.tracking.reader import StoreReader
from tests.orchestrator.driven import driving, outcomes, run_some, start_next
from tests.orchestrator.logged import SweepLog, entry, mirror
from tests.orchestrator.plans import toy_plan

SWEEP = "name: s\nmodel: m\ntasks: [toy/sentiment]\nspace: [{method: lora, rank: {values: [1, 2]}}]"


def test_a_copy_gets_an_id_of_its_own_and_a_moved_sweep_keeps_its(tmp_path: Path) -> None:
    plan, first, second = toy_plan(tmp_path, SWEEP), tmp_path / "first", tmp_path / "second"
    run_some(plan, first, lambda job: outcomes(job, lambda trial: 80.0))
    sweep_id, written = read_state(first / "log.jsonl").sweep_id, (first / "log.jsonl").read_bytes()
    shutil.copytree(first, second)
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


def test_a_copy_may_not_write_to_the_storage_of_the_original(tmp_path: Path) -> None:
    plan, first, second = toy_plan(tmp_path, SWEEP), tmp_path / "first", tmp_path / "second"
    run_some(plan, first, lambda job: outcomes(job, lambda trial: 80.0))
    shutil.copytree(first, second)
    options = Options(storage=f"file://{tmp_path / 'shared'}", resume=True)
    with pytest.raises(ValueError, match=f"{second} is a copy of {first}, .* both would write to file://{tmp_path / 'shared'}"):
        open_session(plan, SweepFolder(second), options).__enter__()


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
    assert reader.sweep_names() == ["demo"]
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
@pytest.mark.parametrize("same", [True, False])
def test_a_session_prepares_once_after_its_files_moved(
    tmp_path: Path, ended: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    for place in (tmp_path / "old", tmp_path / "new"):
        place.mkdir()
        (place / "rows.csv").write_text("body,way\na,up\nb,down\n")
        plans.append(toy_plan(place, OWN_ROWS.format(place=place, storage=tmp_path)))
    end_some(plans[0].sweep.folder, plans[0], ended)
    (plans[0].sweep.folder / "sweep.yaml").write_text(plans[0].sweep.to_yaml())
    prepared = list[bool]()

    def prepare(trials: object, *, elsewhere: bool = False) -> dict[str, str]:
        prepared.append(elsewhere)
        return {"custom/mine": "a" * 64 if same else "b" * 64}

    monkeypatch.setattr(session, "prepare", prepare)
    with driving(plans[1], plans[1].sweep.folder) as driver:
        if not same:
            with pytest.raises(SweepError, match="the data of custom/mine are not what this sweep's finished trials used"):
                session._prepare(driver, Console(quiet=True))
        else:
            shared = session._prepare(driver, Console(quiet=True))
            assert (shared is None) == (ended == 2), "nothing is left to train"
    assert prepared == [ended == 2]


def test_seeds_that_the_answer_adds_train_on_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("body,way\na,up\nb,down\n")
    text = OWN_ROWS.format(place=tmp_path, storage=tmp_path)
    plan = toy_plan(tmp_path, text)
    end_some(plan.sweep.folder, plan, 2)
    monkeypatch.setattr(session, "prepare", lambda trials, *, elsewhere=False: {"custom/mine": "b" * 64})
    until = toy_plan(tmp_path, text + "search: {until: answered}\n")
    with driving(until, plan.sweep.folder) as driver, pytest.raises(SweepError, match="the data of custom/mine are not what"):
        session._prepare(driver, Console(quiet=True))


def end_some(folder: Path, plan: object, count: int) -> None:
    """Finishes so many trainings of a sweep."""
    with driving(plan, folder) as driver:  # type: ignore[arg-type]
        for _ in range(count):
            job = start_next(driver)
            (outcome,) = outcomes(job, lambda trial: 60.0)
            result = outcome.result.with_facts(data_fingerprint="a" * 64)
            driver.record_end(job.key, [type(outcome)(result)])
