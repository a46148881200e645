"""A tracking server that asks for a login, or allows less than a sweep needs, says so with the variables' names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from orchestrator.commands.check import _tracking
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tracking.client import check_store
from orchestrator.tracking.reader import StoreReader
from orchestrator.tracking.uri import TrackingError
from tests.orchestrator.logged import FILE

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
    for ask in (check_store, StoreReader):
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
