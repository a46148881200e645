"""MLflow's own server on loopback, for tests that need a real one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


class Server:
    """`mlflow server` with one worker, as a process that can be stopped and started on the same port.

    With a `password` it asks whoever comes for one (user `admin`), as that of `orchestrator/deploy` does.
    """

    def __init__(self, backend: str, folder: Path, password: str | None = None) -> None:
        self.backend, self.folder, self.port, self.password = backend, folder, free_port(), password
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", self.backend, "--artifacts-destination", str(self.folder / "artifacts")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        if self.password is not None:
            command += ["--app-name", "basic-auth"]
            environment |= self._locked(self.password)
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        deadline = time.monotonic() + 300
        try:
            while not answers(f"{self.uri}/health"):
                assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.2)
        except AssertionError:
            self.kill()
            raise

    def _locked(self, password: str) -> dict[str, str]:
        """What the environment says to a server that asks for passwords, the parts of the cluster's file that matter."""
        settings = self.folder / "basic_auth.ini"
        settings.write_text(
            f"[mlflow]\ndefault_permission = READ\ndatabase_uri = {self.backend}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_USERNAME": "admin",
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "a secret that signs forms",
        }

    def kill(self) -> None:
        """Without grace, workers included."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    close = kill


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
