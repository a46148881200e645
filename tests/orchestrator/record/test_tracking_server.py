"""A real MLflow server on loopback, stopped and started in mid-sweep: nothing lost, nothing doubled, nobody waits."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from craft.spec import RunSpec
from orchestrator.plan.trial import Trial
from orchestrator.record import shipper as shipping
from orchestrator.record.tracker import Tracker
from orchestrator.state.entry import TrialResult
from tests.mlflow_server import Server
from tests.postgres import Missing, postgres

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def database() -> Iterator[tuple[str, list[str]]]:
    try:
        with postgres() as started:
            yield started
    except Missing as why:
        pytest.skip(str(why))


def trials() -> list[Trial]:
    return [
        Trial(RunSpec(model="m", task="toy/acceptability", method="craft", seed=seed), "c0ffee0000", "12·8·8 qv")
        for seed in range(4)
    ]


def progress(step: int) -> dict:
    points = [{"step": step - 1, "train_loss": 1 / step}]
    return {"step": step, "total_steps": 40, "epoch": step / 10, "metrics": {"search_score": float(step)}, "points": points}


def sweep_with_an_outage(server: Server, folder: Path, outage: list[list[str]]) -> None:
    """Four trials of 20 evaluations each; from the seventh to the fourteenth the server is away."""
    tracker = Tracker(server.uri, "outage", folder, own_process=True)
    tracker.sweep_started({"seeds": [0, 1, 2, 3]})
    for trial in trials():
        tracker.trial_started(trial)
    for step in range(2, 42, 2):
        for trial in trials():
            tracker.trial_progress(trial.key, progress(step))
        time.sleep(0.15)
        if step == 14:
            server.kill()
            for command in outage:
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if step == 28:
            assert tracker.flush(0) > 0
            server.start()
    for trial in trials():
        adapter = folder / "adapters" / trial.key
        adapter.mkdir(parents=True)
        (adapter / "adapter_model.safetensors").write_bytes(trial.key.encode() * 1000)
        tracker.trial_ended(TrialResult(trial.key, "finished", {"score": 70.0}, {}, 40, 1.0), adapter)
    tracker.configuration_ended("c0ffee0000", "12·8·8 qv", {"method": "craft"}, {"score": 70.0, "trials_done": 4})
    tracker.sweep_ended("finished", {"on_front": ["c0ffee0000"]})
    assert tracker.close(120) == 0


def check_the_record(uri: str, folder: Path) -> None:
    client = MlflowClient(uri)
    found = list(client.search_runs([client.get_experiment_by_name("outage").experiment_id]))
    assert sorted(run.data.tags["craft.kind"] for run in found) == ["configuration", "sweep", *["trial"] * 4]
    assert {run.info.status for run in found} == {"FINISHED"}
    by_key = {run.data.tags["craft.key"]: run for run in found}
    for trial in trials():
        run = by_key[trial.key]
        points = client.get_metric_history(run.info.run_id, "search_score")
        assert [(point.step, point.value) for point in points] == [(step, float(step)) for step in range(2, 42, 2)]
        losses = client.get_metric_history(run.info.run_id, "train_loss")
        assert [point.step for point in losses] == list(range(1, 41, 2))
        copy = client.download_artifacts(run.info.run_id, "adapter/adapter_model.safetensors", str(folder))
        assert Path(copy).read_bytes() == trial.key.encode() * 1000


def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path / 'server.db'}", tmp_path)
    server.start()
    try:
        sweep_with_an_outage(server, tmp_path / "runs", [])
        check_the_record(server.uri, tmp_path)
    finally:
        server.kill()


def test_a_server_on_postgresql_whose_database_is_restarted_without_grace(
    tmp_path: Path, database: tuple[str, list[str]]
) -> None:
    backend, restart = database
    server = Server(backend, tmp_path)
    server.start()
    try:
        sweep_with_an_outage(server, tmp_path / "runs", [restart])
        check_the_record(server.uri, tmp_path)
    finally:
        server.kill()


class LossyProxy(threading.Thread):
    """Hands requests to the server, and drops a seeded share of the answers after the server has carried them out."""

    def __init__(self, target: int, share: float) -> None:
        super().__init__(daemon=True)
        self._target, self._share, self._random = target, share, random.Random(5)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.dropped: list[str] = []

    def run(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                self._serve(client)

    def stop(self) -> None:
        self._socket.close()

    def _serve(self, client: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += client.recv(65536)
        head, _, body = request.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        while len(body) < length:
            body += client.recv(65536)
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        answer = b""
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            server.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
            while part := server.recv(65536):
                answer += part
        if self._random.random() < self._share:
            self.dropped.append(head.split(b" ")[1].decode())
            return
        client.sendall(answer)


def test_requests_that_were_carried_out_but_whose_answers_were_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "PAUSES_S", (0.02,))
    server = Server(f"sqlite:///{tmp_path / 'server.db'}", tmp_path)
    server.start()
    try:
        for number, share in enumerate((0.1, 0.3)):
            proxy = LossyProxy(server.port, share)
            proxy.start()
            folder = tmp_path / f"runs{number}"
            tracker = Tracker(proxy.uri, f"lossy{number}", folder)
            tracker.sweep_started({"seeds": [0, 1, 2, 3]})
            for trial in trials():
                tracker.trial_started(trial)
                for step in range(2, 12, 2):
                    tracker.trial_progress(trial.key, progress(step))
                tracker.trial_ended(TrialResult(trial.key, "finished", {"score": 70.0}, {}, 12, 1.0))
            tracker.sweep_ended("finished", {})
            assert tracker.close(120) == 0
            proxy.stop()
            assert proxy.dropped, "nothing was lost, so nothing was tried"
            client = MlflowClient(server.uri)
            found = client.search_runs([client.get_experiment_by_name(f"lossy{number}").experiment_id])
            assert sorted(run.data.tags["craft.kind"] for run in found) == ["configuration", "sweep", *["trial"] * 4]
            for run in found:
                if run.data.tags["craft.kind"] == "trial":
                    points = client.get_metric_history(run.info.run_id, "search_score")
                    assert [point.step for point in points] == [2, 4, 6, 8, 10]
    finally:
        server.kill()


def test_postgresql_without_a_server(tmp_path: Path, database: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    backend, restart = database
    monkeypatch.chdir(tmp_path)  # artifacts go into the current folder
    trial = trials()[0]
    tracker = Tracker(backend, "outage", tmp_path / "runs")
    tracker.sweep_started({"seeds": [0]})
    tracker.trial_started(trial)
    tracker.trial_progress(trial.key, progress(2))
    assert tracker.flush(120) == 0
    subprocess.run(restart, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tracker.trial_progress(trial.key, progress(4))
    assert tracker.close(120) == 0
    client = MlflowClient(backend)
    (run,) = client.search_runs([client.get_experiment_by_name("outage").experiment_id], "tags.`craft.kind` = 'trial'")
    assert [point.step for point in client.get_metric_history(run.info.run_id, "search_score")] == [2, 4]
