"""What test files of sweeps share: a small sweep that really ran (once a session, takes a minute), empty stores, drivers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.orchestrator.local_engine import without_ray
from tests.orchestrator.stand_in import start_driver

SMALL = """\
name: small
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment, toy/paraphrase]
seeds: [0, 1]
training:
  max_steps: 6
  batch_size: 8
  learning_rate: 1e-2
  max_length: 32
  train_examples: 60
  eval_examples: 24
  evaluate_every: 0.3
space:
  - {method: craft, ranks: [all, 8, 8]}
  - {method: lora, rank: 1}
"""


class SmallSweep(NamedTuple):
    """A finished sweep: its folder and its tracking store."""

    folder: Path
    uri: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Printed(NamedTuple):
    """What a command has printed."""

    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


Cli = Callable[..., Printed]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command, which ends with `status`."""
    from orchestrator.commands.app import main

    def call(*arguments: str, status: int = 0) -> Printed:
        capsys.readouterr()
        assert main([*arguments]) == status
        return Printed(*capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def small_sweep(tmp_path_factory: pytest.TempPathFactory) -> SmallSweep:
    from orchestrator.run import main

    root = tmp_path_factory.mktemp("small")
    (root / "small.yaml").write_text(SMALL)
    uri = f"sqlite:///{root / 'mlflow.db'}"
    flags = ["--storage", str(root / "runs"), "--tracking-uri", uri, "--cpus", "1", "--quiet"]
    with without_ray():
        assert main([str(root / "small.yaml"), *flags]) == 0
    return SmallSweep(root / "runs" / "small", uri)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 1 MiB, or of the module's DISK; needs the right to mount one."""
    disk, size = tmp_path / "disk", getattr(request.module, "DISK", "1m")
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no right to mount a file system here")
    (disk / "lost+found").mkdir()
    yield disk
    subprocess.run(["umount", "-l", disk], check=False)


@pytest.fixture
def without_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray without authentication, which it reads once a process. A driver with a token (the user's ~/.ray/auth_token) and nodes
    without one start no worker."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    with monkeypatch.context() as scope:
        scope.setenv("RAY_AUTH_MODE", "disabled")
        reset_auth_token_state()
        yield
    reset_auth_token_state()


@pytest.fixture
def driver() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts drivers, and ends those that a failed test leaves."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, **settings: object) -> subprocess.Popen[str]:
        started.append(start_driver(folder, **settings))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
