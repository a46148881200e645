"""Where and how a sweep is tracked: addresses, experiment, adapters, tags, servers that ask for a login."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from orchestrator.commands.check import _tracking
from orchestrator.review.past_sweep import find_sweep
from orchestrator.sweepfile.load import check as check_sweep
from orchestrator.sweepfile.settings import TrackingSettings
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tracking.client import TrackingError, check_store, has_server, make_sqlite, named_experiment, resolve_uri
from orchestrator.tracking.reader import StoreReader
from orchestrator.tracking.store import SweepStore
from tests.orchestrator.logged import FILE, SweepLog, entry, mirror, runs

SIZES = (4, 8, 16, 32)


def train(folder: Path, tracking: dict[str, Any], scores: tuple[float, ...] = (60.0, 70.0, 65.0, 90.0)) -> SweepLog:
    """Writes a sweep of four sizes, of which the third is not on the front; each has an adapter and answers."""
    trials, sweep = [entry(size) for size in SIZES], SweepLog(folder)
    sweep.start(*trials, tracking=tracking)
    for trial, score in zip(trials, scores, strict=True):
        (adapter := folder / "adapters" / trial.key / "adapter").mkdir(parents=True)
        (adapter / "adapter_model.safetensors").write_bytes(trial.key.encode())
        (adapter.parent / "predictions").mkdir()
        (adapter.parent / "predictions" / "test.jsonl").write_text("{}\n")
        sweep.run(trial)
        sweep.finish(trial, score, adapter=f"adapters/{trial.key}/adapter")
    return sweep


def stored(uri: str, artifact: str) -> list[int]:
    """Returns the sizes whose trials have an artifact in the store."""
    table = runs(uri)
    return [size for size in SIZES if f"craft.{artifact}_sha256" in table["trial", entry(size).key].data.tags]


@pytest.mark.parametrize(
    ("which", "answers", "running", "ended"),
    [
        pytest.param("all", True, [*SIZES], [*SIZES], marks=pytest.mark.slow),
        ("front", True, [32], [4, 8, 32]),
        pytest.param("none", False, [], [], marks=pytest.mark.slow),
    ],
)
def test_which_adapters_and_answers_are_sent(
    uri: str, tmp_path: Path, which: str, answers: bool, running: list[int], ended: list[int]
) -> None:
    sweep = train(tmp_path, {"adapters": which, "predictions": answers})
    copy = mirror(tmp_path, uri)
    assert (stored(uri, "adapter"), stored(uri, "predictions")) == (running, [*SIZES] if answers else [])
    sweep.close()
    copy.step()
    assert stored(uri, "adapter") == ended
    missing = entry(16).key
    if which != "all":
        with pytest.raises(TrackingError, match=r"adapters: front.*give runs/NAME"):
            find_sweep("demo", uri).adapter(missing, tmp_path / "copy")


def test_several_sweeps_and_other_people_share_an_experiment(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(uri)
    team = client.create_experiment("team/peft", artifact_location=(tmp_path / "team").as_uri(), tags={"owner": "ada"})
    foreign = client.create_run(team, run_name="theirs", tags={"mine": "yes"}).info.run_id

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an experiment was made")

    monkeypatch.setattr(MlflowClient, "create_experiment", refuse)
    for name, number in (("demo", "5" * 32), ("other", "6" * 32)):
        sweep = SweepLog(tmp_path / name, name, number)
        sweep.start(entry(), name=name, tracking={"experiment": "team/peft", "tags": {"team": "search", "craft_free": "1"}})
        sweep.train(entry())
        sweep.close()
        mirror(tmp_path / name, uri)
    present = client.search_runs([team])
    assert len(present) == 1 + 2 * 3
    ours = [run for run in present if run.info.run_id != foreign]
    assert {(run.data.tags["team"], run.data.tags["craft_free"]) for run in ours} == {("search", "1")}
    assert client.get_run(foreign).data.tags["mine"] == "yes"
    assert client.get_experiment(team).tags["owner"] == "ada"
    assert [find_sweep(name, uri).name for name in ("demo", "other")] == ["demo", "other"]


def test_check_leaves_nothing_in_the_store(uri: str) -> None:
    sweep = check_sweep(FILE | {"tracking": {"experiment": "team"}})[0]
    assert isinstance(sweep, Sweep)
    client = MlflowClient(uri)

    def everything() -> Any:
        places = client.search_experiments(view_type=ViewType.ALL)
        stored_runs = client.search_runs([place.experiment_id for place in places], run_view_type=ViewType.ALL)
        return [(place.name, dict(place.tags)) for place in places], [run.info.run_id for run in stored_runs]

    before = everything()
    assert "'team' will be made" in "".join(finding.sentence for finding in _tracking(uri, sweep))
    assert everything() == before
    for tags in ({}, {"owner": "ada"}):
        name = f"team{len(tags)}"
        client.create_experiment(name, tags=tags)
        before = everything()
        assert "takes writes" in check_store(uri, "demo", name)
        assert everything() == before


def test_an_experiment_of_a_server_is_used_by_its_server(uri: str) -> None:
    MlflowClient(uri).create_experiment("team", artifact_location="mlflow-artifacts:/1")
    with pytest.raises(TrackingError, match="'team' go by the server that made it: give --tracking-uri of that server"):
        check_store(uri, "demo", "team")


def test_a_deleted_experiment_is_restored_by_the_sweep(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(uri)
    number = client.create_experiment("team")
    client.delete_experiment(number)
    assert check_store(uri, "demo", "team", make=True) == "answers; the experiment 'team' will be restored"
    assert client.get_experiment(number).lifecycle_stage == "deleted", "no server: the sweep's own store does it"
    monkeypatch.setattr("orchestrator.tracking.client.has_server", lambda _: True)
    check_store(uri, "demo", "team", make=True)
    assert client.get_experiment(number).lifecycle_stage == "active"


def test_a_store_that_refuses_a_write_answers(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MlflowClient(uri).create_experiment("team")
    refused = Mock(side_effect=MlflowException("too long", INVALID_PARAMETER_VALUE))
    monkeypatch.setattr(MlflowClient, "set_experiment_tag", refused)
    with pytest.raises(TrackingError, match=r"refuses this \(MlflowException: too long\)$"):
        check_store(uri, "demo", "team")


def test_the_variables_of_mlflow_are_read(uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "team/peft")
    sweep, mistakes = check_sweep(FILE)
    assert not mistakes
    assert (sweep.tracking.uri, sweep.tracking.experiment) == ("http://tracker:5000", "team/peft")
    own = check_sweep(FILE | {"tracking": {"uri": "sqlite:///mine.db", "experiment": "mine"}})[0]
    assert (own.tracking.uri, own.tracking.experiment) == ("sqlite:///mine.db", "mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(TrackingError, match=r"MLFLOW_TRACKING_URI '\./mlruns' is a folder"):
        resolve_uri(TrackingSettings().uri)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", MlflowClient(uri).create_experiment("by number"))
    assert MlflowClient(uri).get_experiment(SweepStore(uri, "of another store", "6" * 32).experiment).name == "of another store"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert MlflowClient(uri).get_experiment(SweepStore(uri, "demo", "5" * 32).experiment).name == "by number"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "77")
    with pytest.raises(TrackingError, match=r"MLFLOW_EXPERIMENT_ID is 77, and .* has no such experiment"):
        check_store(uri, "demo")


def test_an_experiment_that_another_sweep_makes_at_the_same_moment_is_shared(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*names: Any) -> Any:
        if (present := named_experiment(*names)) is None:
            MlflowClient(uri).create_experiment("demo")
        return present

    monkeypatch.setattr("orchestrator.tracking.client.named_experiment", ask)
    assert MlflowClient(uri).get_experiment(SweepStore(uri, "demo", "5" * 32).experiment).name == "demo"


def test_all_pages_of_experiments_are_read(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = train(tmp_path, {})
    sweep.close()
    mirror(tmp_path, uri)
    MlflowClient(uri).create_experiment("a newer one")
    search = MlflowClient.search_experiments
    monkeypatch.setattr(MlflowClient, "search_experiments", lambda self, **named: search(self, **named | {"max_results": 1}))
    assert len(StoreReader(uri).sweep_runs()) == 1


def age(file: Path) -> str:
    with closing(sqlite3.connect(file)) as store, store:
        store.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    return f"sqlite:///{file}"


@pytest.mark.parametrize(
    ("address", "said"),
    [(age, "MlflowException: .*schema"), (lambda _: "mssql+pymssql://host/db", "ModuleNotFoundError: .*pymssql")],
    ids=["old", "without its driver"],
)
def test_a_database_that_cannot_be_opened_is_a_sentence(
    address: Callable[[Path], str], said: str, empty_store: Path, tmp_path: Path
) -> None:
    uri = address(Path(shutil.copy(empty_store, tmp_path / "copy.db")))
    with pytest.raises(TrackingError, match=f"does not answer .{said}"):
        check_store(uri, "demo")


PAGE, JSON = b"<h1>Sign in</h1>", b'{"error_code": "PERMISSION_DENIED", "message": "Permission denied"}'

SWEEP = Sweep.model_validate(FILE)


@pytest.fixture(params=[(401, PAGE), (403, PAGE), (403, JSON)], ids=["401", "403", "403-json"])
def refusing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, str]]:
    """A server that refuses every request, and its address."""
    status, body = request.param

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Keeps the screen free."""

    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield status, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def sentences(uri: str) -> list[str]:
    """What `run`, a command that reads a sweep, and `check` say."""
    texts = []
    for ask in (partial(check_store, sweep="demo"), StoreReader):
        with pytest.raises(TrackingError) as refused:
            ask(uri)
        texts.append(str(refused.value))
    return [*texts, " ".join(f"{finding.sentence}; {finding.remedy}" for finding in _tracking(uri, SWEEP))]


def test_a_refused_login_is_no_server_that_does_not_answer(refusing: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, uri = refusing
    for text in sentences(uri):
        assert ("asks for a login" if status == 401 else "does not allow this to the login that it got") in text
        for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
            assert name in text
        assert "does not answer" not in text
        assert "server up" not in text
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "5ecret")
    for text in sentences(uri):
        assert ("does not accept the user 'ada'" if status == 401 else "does not allow this to the user 'ada'") in text
        assert "5ecret" not in text


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ("sqlite:///mlflow.db", "sqlite:///{here}/mlflow.db"),
        ("sqlite:////full/a.db", "sqlite:////full/a.db"),
        ("postgresql://u:p@h/db", "postgresql://u:p@h/db"),
        ("databricks", "databricks"),
        ("databricks://work", "databricks://work"),
        ("mlruns", "Write sqlite:///mlflow.db"),
        ("file:///mlruns", "is a folder"),
        ("ftp://h", "unknown scheme"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///mlflow.db?timeout=30", "may have no [?] and no code"),
        ("sqlite:////my%20runs/mlflow.db", "is the file /my%20runs/mlflow.db; a"),
        ("sqlite:////100%/a#b.db", "sqlite:////100%/a#b.db"),
        ("http://", "names no host"),
        ("databricks://", "names no profile"),
    ],
)
def test_uris_are_made_absolute_or_refused(given: str, resolved: str, here: Path) -> None:
    if " " in resolved:
        with pytest.raises(TrackingError, match=resolved):
            resolve_uri(given)
    else:
        assert resolve_uri(given) == resolved.format(here=here)
        assert has_server(given) == given.startswith("databricks")


@pytest.mark.slow
def test_a_sqlite_store_appears_with_all_its_tables(tmp_path: Path) -> None:
    """A page that opens it in its first moment, or a kill while it is made, meets no half of it."""
    file = tmp_path / "new" / "mlflow.db"

    def tables() -> list[str]:
        with sqlite3.connect(file) as store:
            return [name for (name,) in store.execute("select name from sqlite_master where type = 'table'")]

    making = threading.Thread(target=make_sqlite, args=(file,))
    making.start()
    while making.is_alive() and not file.exists():
        time.sleep(0.001)
    first = tables()
    making.join()
    assert len(first) > 20
    assert first == tables()
    assert [one.name for one in file.parent.iterdir()] == ["mlflow.db"]
    make_sqlite(file)
    assert first == tables()


def test_a_sqlite_store_is_made_on_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def client(uri: str) -> Mock:
        return Mock(made=Path(uri.removeprefix("sqlite:///")).write_text("tables"))

    monkeypatch.setattr("mlflow.MlflowClient", client)
    monkeypatch.setattr("os.link", Mock(side_effect=OSError(errno.EOPNOTSUPP, "not supported")))
    make_sqlite(tmp_path / "mlflow.db")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("mlflow.db", "tables")]
