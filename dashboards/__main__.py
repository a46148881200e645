"""`python -m dashboards serve` and `python -m dashboards export SWEEP --to front.html`.

Exit codes: 0 done, 2 a mistake that the message explains.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from craft.disk import replacing
from craft.words import be_printable

ABOUT = """\
Look at sweeps: a live page while trials run, or one file that can be sent.

  python -m dashboards serve
      Serves http://127.0.0.1:8787 from ./mlflow.db: pick sweeps, watch trials finish, select points, copy tables.
  python -m dashboards serve --tracking-uri http://mlflow:5000
      The same from a tracking server; a click on a point opens its run there.
  python -m dashboards export ranks --to front.html
      Writes the sweep "ranks" as one self-contained page: no network, opens from disk, under 5 MB.
"""


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    commands_parser = argparse.ArgumentParser(prog="python -m dashboards", description=ABOUT, formatter_class=raw)
    commands = commands_parser.add_subparsers(dest="command", required=True, metavar="serve | export")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="where MLflow's runs are: sqlite:///mlflow.db (default, in this folder), http://host:5000, postgresql://...",
    )
    common.add_argument(
        "--mlflow-url",
        metavar="URL",
        help="where MLflow's own page is served (mlflow server), for links to runs; default: the tracking URI if it is http(s)",
    )
    serve = commands.add_parser(
        "serve", parents=[common], help="the live page", description="Serve the live page until Ctrl-C."
    )
    serve.add_argument("--port", type=int, default=8787, help="default 8787; 0 takes a free one")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="default 127.0.0.1: only this machine. The page has no login: open it to others only in a network you trust",
    )
    export = commands.add_parser(
        "export", parents=[common], help="one self-contained file", description="Write a sweep as one self-contained page."
    )
    export.add_argument("sweep", metavar="SWEEP", help="the sweep's name, as in its sweep file")
    export.add_argument(
        "--to", type=Path, default=Path("front.html"), metavar="FILE", help="default front.html; written whole or not at all"
    )
    return commands_parser


def main(arguments: Sequence[str] | None = None) -> int:
    be_printable()
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from dashboards.store import DashboardError, Store

    try:
        store = Store(options.tracking_uri, options.mlflow_url)
        return (
            _serve(store, options.host, options.port)
            if options.command == "serve"
            else _export(store, options.sweep, options.to)
        )
    except DashboardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _export(store, sweep: str, path: Path) -> int:  # type: ignore[no-untyped-def]
    from dashboards.content import everything
    from dashboards.page import export_page
    from dashboards.store import DashboardError

    text = export_page(sweep, everything(store, sweep))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            aside.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise DashboardError(f"cannot write {path}: {error.strerror}") from error
    print(f"{path}: {len(text.encode()) / 1e6:.1f} MB, opens in a browser without a network")
    return 0


def _serve(store, host: str, port: int) -> int:  # type: ignore[no-untyped-def]
    import socket

    import uvicorn

    from dashboards.app import LOOPBACK, make_app
    from dashboards.store import DashboardError

    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # from here on a browser waits for its answer instead of being refused
    except (OSError, OverflowError) as error:
        listener.close()
        raise DashboardError(
            f"cannot serve on {host}:{port}: {error}; take another port with --port, or 0 for any free one"
        ) from error
    port = listener.getsockname()[1]
    app = make_app(store, hosts=LOOPBACK if host in LOOPBACK else ["*"])
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}   (Ctrl-C ends)", flush=True)
    try:
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        app.state.watcher.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
