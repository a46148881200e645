"""`craft-sweeps page`: a live page while trials run, or one file that can be sent."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from craft.disk import replacing


def page(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="SWEEP",
            help="With --to: the sweep's name, as in its sweep file; or a table of trainings, as craft-sweeps judge reads it.",
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the sweep as one self-contained page, whole or not at all.")
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where MLflow's runs are, MLFLOW_TRACKING_URI or sqlite:///mlflow.db if not given: http://host:5000, "
            "postgresql://...; - reads it from standard input.",
        ),
    ] = None,
    mlflow_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where MLflow's own page is served (mlflow server), for links to runs; the tracking URI if it is http(s).",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free port.")] = 8787,
    host: Annotated[
        str, typer.Option(help="The page has no login: let others reach it only in a network that you trust.")
    ] = "127.0.0.1",
) -> None:
    """Show sweeps on a live page, or write one as a file.

    The live page is served until Ctrl-C. The file opens in a browser without a network.
    """
    from dashboards.page import everything, everything_in
    from dashboards.store import Store

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if (sweep is None) != (to is None):
        raise ValueError("give a sweep and --to FILE to write its page; neither to serve the live page of all sweeps")
    uri = sys.stdin.readline().strip() if tracking_uri == "-" else tracking_uri
    if sweep is None or to is None:
        _serve(Store(uri, mlflow_url, waits=True), host, port)
    elif Path(sweep).is_file():
        _write(sweep, everything_in(Path(sweep)), to)
    else:
        payload = everything(Store(uri, mlflow_url), sweep)
        _write(payload["state"]["sweeps"][0]["name"], payload, to)


def _write(title: str, payload: dict[str, Any], path: Path) -> None:
    from dashboards.page import export_page

    text = export_page(title, payload)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            aside.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from error
    print(f"{path}: {len(text.encode()) / 1e6:.1f} MB, opens in a browser without a network")


def _serve(store, host: str, port: int) -> None:  # type: ignore[no-untyped-def]
    import socket

    import uvicorn

    from dashboards.app import LOOPBACK, make_app
    from orchestrator.tracking.client import is_absent

    try:  # from here on a browser waits for its answer instead of being refused
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise OSError(
            f"cannot serve on {host}:{port}: {error}; take another port with --port, or 0 for any free one"
        ) from error
    port = listener.getsockname()[1]
    app = make_app(store, hosts=LOOPBACK if host in LOOPBACK else ["*"])
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}   (Ctrl-C ends)", flush=True)
    if is_absent(store.uri):
        print(f"waits for the first sweep in {store.shown_uri}", flush=True)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
