"""MLflow as this project uses it: quiet, without retries of its own, and with errors that say what to do next; and the URI of
its store, made absolute and checked before anything runs.

Credentials come from the environment (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD`, `MLFLOW_TRACKING_TOKEN`,
`PGPASSWORD`) or, for databases, from the URI itself. `redact` removes them from everything that is shown, logged or written to
disk, because each address that a process uses comes through `resolve_uri`.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from orchestrator.sweepfile.settings import default_uri
from orchestrator.tools.secrets import hide_address, redact
from orchestrator.tracking.desired import KIND, SWEEP_ID, SWEEP_KIND
from orchestrator.tracking.private import ARTIFACTS, EXPERIMENT_TAGS, artifact_storage, keep_artifacts_near

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

SCHEMES = ("sqlite", "http", "https", "postgresql", "postgres", "mysql", "mssql", "databricks")
DATABRICKS = "databricks"
"""Without a scheme: the workspace of the default profile, or of DATABRICKS_HOST and DATABRICKS_TOKEN."""


class TrackingError(ValueError):
    """A tracking store cannot be used; the message is for people."""


def resolve_uri(uri: str) -> str:
    """Returns an absolute tracking URI. The path of a SQLite file starts at the current folder.

    Raises:
        TrackingError: the scheme or the file name is missing, or the scheme is not supported; the message says what to write.
    """
    scheme, separator, location = hide_address(uri).partition("://")
    kind = scheme.split("+", 1)[0].lower()
    if uri == DATABRICKS:
        return uri
    which = "MLFLOW_TRACKING_URI" if uri == os.environ.get("MLFLOW_TRACKING_URI") else "tracking uri"
    if not separator or kind == "file":
        raise TrackingError(
            f"{which} {redact(uri)!r} is a folder; MLflow keeps runs in a database. Write sqlite:///mlflow.db for a file "
            "here, or the address of a server (http://127.0.0.1:5000)"
        )
    if kind not in SCHEMES:
        raise TrackingError(f"{which} {redact(uri)!r} has the unknown scheme {scheme!r}. Known: {', '.join(SCHEMES)}")
    if kind != "sqlite":
        if not location.strip("/"):
            missing = "profile" if kind == DATABRICKS else "host"
            raise TrackingError(f"{which} {redact(uri)!r} names no {missing}")
        return uri
    name = location.removeprefix("/")
    if not name or name.startswith(":memory:") or not location.startswith("/"):
        raise TrackingError(f"{which} {uri!r} names no file. Write sqlite:///mlflow.db, or sqlite:////full/path/mlflow.db")
    path = str(Path(name).resolve())
    if unquote(path.partition("?")[0]) != path:  # SQLAlchemy would make another file
        raise TrackingError(f"{which} {uri!r} is the file {path}; a store's path may have no ? and no code such as %20")
    return f"sqlite:///{path}"


def sqlite_file(uri: str) -> Path | None:
    """Returns the file of a resolved SQLite URI, None for any other."""
    return Path(uri.partition(":///")[2]) if uri.startswith("sqlite") else None


def is_absent(uri: str) -> bool:
    """Returns whether the store at a resolved URI is a SQLite file that is not there: MLflow would make an empty one."""
    file = sqlite_file(uri)
    return file is not None and not file.is_file()


def inode_of(uri: str) -> int:
    """Returns the number of the SQLite file at a resolved URI; 0 if it is gone, and of other stores. Another number is another
    file in its place, while MLflow keeps the old one open."""
    with suppress(OSError):
        return file.stat().st_ino if (file := sqlite_file(uri)) is not None else 0
    return 0


def has_server(uri: str) -> bool:
    """Returns whether a server keeps the runs of a resolved URI, and their artifacts; else this process writes both."""
    return uri.startswith(("http", DATABRICKS))


REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE", "MALFORMED_REQUEST")
MISSING = "RESOURCE_DOES_NOT_EXIST"


def quiet_mlflow() -> None:
    """Keeps the messages of MLflow and Alembic off the screen and telemetry off the network; turns MLflow's retries off.

    MLflow repeats a request whose answer was lost although the store may have done it.
    `orchestrator.review.mirror` repeats instead, after it has looked what the store has.
    """
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def open_experiment(uri: str, sweep: str, experiment: str | None, sweep_id: str | None = None) -> tuple[MlflowClient, str]:
    """Returns a client of the store at `uri` and the id of a sweep's experiment in it. Both are made if absent.

    Where no server keeps artifacts, they go into `mlartifacts` next to the SQLite file, or in the current folder.

    Args:
        sweep_id: the sweep's runs decide, where there are any: their experiment may have been renamed in the store.
    """
    client, file = open_store(uri), sqlite_file(uri)
    if sweep_id is not None:
        query = f"tags.`{SWEEP_ID}` = '{sweep_id}' and tags.`{KIND}` = '{SWEEP_KIND}'"
        for run in find_runs(client, query):
            return client, str(run.info.experiment_id)
    present, name = named_experiment(client, sweep, experiment), experiment or sweep
    if present is None:
        location = None
        if not has_server(uri):
            home = file.parent if file is not None else Path.cwd()
            location = ((home / ARTIFACTS).resolve() / (re.sub(r"[^\w\-]", "_", name) or "_")).as_uri()
        try:
            return client, client.create_experiment(name, artifact_location=location, tags=EXPERIMENT_TAGS)
        except Exception:
            if (present := named_experiment(client, sweep, experiment)) is None:  # no other sweep was sooner
                raise
    if present.lifecycle_stage == "deleted":
        client.restore_experiment(present.experiment_id)
    return client, str(present.experiment_id)


def named_experiment(client: MlflowClient, sweep: str, experiment: str | None) -> Experiment | None:
    """Returns the experiment that a new sweep's runs go to, None if it is absent.

    MLFLOW_EXPERIMENT_ID counts for the store that MLFLOW_TRACKING_URI names: MLflow itself sets both in a process that has
    called `mlflow.set_experiment`, and a number of another store means nothing here.
    """
    number = os.environ.get("MLFLOW_EXPERIMENT_ID")
    try:
        is_default = resolve_uri(default_uri()) == client.tracking_uri
    except TrackingError:  # a store that sweeps cannot use
        is_default = False
    if experiment or not number or not is_default:
        return client.get_experiment_by_name(experiment or sweep)
    try:
        return client.get_experiment(number)
    except Exception as error:
        if not is_missing(error):
            raise
        raise TrackingError(
            f"MLFLOW_EXPERIMENT_ID is {number}, and {redact(client.tracking_uri)} has no such experiment: unset it, or name "
            "one in the sweep file (tracking.experiment)"
        ) from error


def open_store(uri: str) -> MlflowClient:
    """Returns a client of the store at `uri`, which is made if it is a SQLite file that is absent."""
    quiet_mlflow()
    from mlflow import MlflowClient

    file = sqlite_file(uri)
    if file is not None:
        make_sqlite(file)
        keep_artifacts_near(file)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def make_sqlite(file: Path) -> None:
    """Makes a SQLite store, unless it exists; other processes see all of its tables or no file.

    MLflow makes its tables in dozens of steps. A page that opens the file between two of them takes the store for an empty one
    and makes the same tables, and a killed process leaves a file that no version of MLflow can open.
    """
    from mlflow import MlflowClient

    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        MlflowClient(f"sqlite:///{aside}").search_experiments(max_results=1)
        try:
            os.link(aside, file)
        except OSError:  # another sweep was sooner, or the disk has no hard links
            if not file.exists():
                aside.rename(file)
    finally:
        aside.unlink(missing_ok=True)


def find_all(search: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[Any]:
    """Yields all that a search of MLflow's client finds, which answers with a page at a time."""
    token: str | None = None
    while True:
        page = search(*arguments, **named, page_token=token)
        yield from page
        if not (token := page.token):
            return


def find_runs(client: MlflowClient, query: str, experiment: str | None = None) -> Iterator[Run]:
    """Yields the runs of an experiment, or of all, that match, oldest first."""
    places = [experiment] if experiment else [place.experiment_id for place in find_all(client.search_experiments)]
    order = ["attributes.start_time ASC"]
    yield from find_all(client.search_runs, places, query, max_results=1000, order_by=order) if places else ()


def is_refusal(error: Exception) -> bool:
    """Returns whether trying again cannot help: the store understood the request and refused it, or a value is unfit."""
    code = getattr(error, "error_code", None)
    return code in REFUSALS or isinstance(error, KeyError | TypeError | ValueError | FileNotFoundError)


def is_missing(error: Exception) -> bool:
    """Returns whether a run that was in the store is gone: the store lost it, or somebody deleted it."""
    return getattr(error, "error_code", None) == MISSING


PROBE = "craft.check"
LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
"""The variables by which MLflow's client logs in."""


def describe_refusal(uri: str, error: BaseException) -> str | None:
    """Returns what to do if the server at `uri` asks for a login or does not allow a request; None for any other error."""
    status, seen = None, error
    while status is None and seen is not None:
        answer = getattr(seen, "response", None)
        status = seen.get_http_status_code() if hasattr(seen, "get_http_status_code") else getattr(answer, "status_code", None)
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    name = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    user = f"the user {name!r}" if name else "the login that it got"
    has_login = name or os.environ.get("MLFLOW_TRACKING_TOKEN") or redact(uri) != uri
    if status == HTTPStatus.FORBIDDEN:
        return (
            f"the tracking store {redact(uri)} does not allow this to {user} (403): name an experiment that this user may "
            f"write to (tracking.experiment in the sweep file, or MLFLOW_EXPERIMENT_NAME), or set {LOGIN} of another user"
        )
    if status != HTTPStatus.UNAUTHORIZED:
        return None
    if has_login:
        return f"the tracking store {redact(uri)} does not accept {user} (401): check {LOGIN} in the environment"
    return f"the tracking store {redact(uri)} asks for a login (401): set {LOGIN} in the environment"


@contextmanager
def explained(uri: str, what: str, advice: str = "") -> Iterator[None]:
    """Turns errors of the store at `uri`, its drivers and the network, each of a kind of its own, into a TrackingError."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        if refusal := describe_refusal(uri, error):
            raise TrackingError(refusal) from error
        if advice and is_refusal(error):  # it answers
            what, advice = "refuses this", ""
        reason = redact(" ".join(str(error).split()) or type(error).__name__)[:300]
        raise TrackingError(f"the tracking store {redact(uri)} {what} ({type(error).__name__}: {reason}){advice}") from error


def check_store(uri: str, sweep: str, experiment: str | None = None, *, make: bool = False) -> str:
    """Asks the store at `uri` whether it answers, and takes a write to a sweep's experiment; returns what it has of that, in
    words, and leaves nothing behind. Raises TrackingError where it does not.

    A SQLite file need not be there, but must be one. With `make`, a server is asked for an absent or deleted experiment.
    """
    file = sqlite_file(uri)
    if file is not None:
        try:
            with file.open("rb") as stream:
                if stream.read(15) not in (b"", b"SQLite format 3"):
                    raise TrackingError(f"{file} is no SQLite database; give --tracking-uri of another file, or of a server")
        except FileNotFoundError:
            parent = next(folder for folder in file.parents if folder.exists())
            if not os.access(parent, os.W_OK):
                message = f"{parent} cannot be written; give --tracking-uri of another file, or of a server"
                raise TrackingError(message) from None
            return "will be made"
    quiet_mlflow()
    from mlflow import MlflowClient

    with explained(uri, "does not answer", "; check --tracking-uri, and that the server runs"):
        client = MlflowClient(uri)
        present = named_experiment(client, sweep, experiment)
        if present is None or present.lifecycle_stage == "deleted":
            if make and has_server(uri):
                open_experiment(uri, sweep, experiment)
            name, end = (present.name, "restored") if present else (experiment or sweep, "made")
            return f"answers; the experiment {name!r} will be {end}"
        where = urlparse(present.artifact_location or "").scheme or "a local folder"
        if where == "mlflow-artifacts" and not has_server(uri):
            raise TrackingError(
                f"artifacts of the experiment {present.name!r} go by the server that made it: give --tracking-uri of that "
                "server, or another experiment (tracking.experiment in the sweep file)"
            )
        _try_writing(client, present, uri)
    return f"takes writes to the experiment {present.name!r}; artifacts go by {where}"


def _try_writing(client: MlflowClient, experiment: Experiment, uri: str) -> None:
    """Writes a tag that is there already, else one that is removed again; with a server also an artifact, and removes it."""
    name, value = next(iter(experiment.tags.items()), (PROBE, "a check of write access"))
    client.set_experiment_tag(experiment.experiment_id, name, value)
    if name == PROBE:
        client.delete_experiment_tag(experiment.experiment_id, name)
    if has_server(uri):
        storage = artifact_storage(experiment.artifact_location, uri)
        with tempfile.TemporaryDirectory() as folder:
            (file := Path(folder) / f"{PROBE}-{uuid.uuid4().hex}").write_text("ok", encoding="utf-8")
            storage.log_artifact(str(file))
        with suppress(Exception):  # a storage that cannot delete
            storage.delete_artifacts(file.name)
