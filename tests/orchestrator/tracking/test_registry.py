"""Adapters in MLflow's registry, served by MLflow itself on loopback: the answers are the logits that the sweep scored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient
from safetensors.numpy import load_file

from craft.spec import RunSpec
from craft.tasks import find_task
from craft.tasks.splits import load_splits
from orchestrator.commands.app import main
from orchestrator.record.checkpoints import newest_whole
from orchestrator.review.past_sweep import read_folder
from tests.mlflow_server import answers, free_port
from tests.orchestrator.conftest import Cli, SmallSweep
from tests.orchestrator.logged import runs
from tests.orchestrator.stand_in import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

SHELF = "anna's shelf"


def take(sweep: SmallSweep, *flags: str) -> None:
    assert main(["take", str(sweep.folder), "--register", "mood", *flags]) == 0


@contextmanager
def served(uri: str, model: str, folder: Path) -> Iterator[str]:
    """`mlflow models serve` of a registered model, while it answers."""
    port = free_port()
    here = str(Path(sys.executable).parent)
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{here}{os.pathsep}{environment['PATH']}"  # MLflow looks uvicorn up by name
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (folder / "serve.log").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{address}/ping"), process)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("task", "extra"), [("toy/paraphrase", ()), ("toy/sentiment", ("--as", "merged"))])
def test_what_is_served_answers_with_the_logits_that_were_scored(
    small_sweep: SmallSweep, tmp_path: Path, task: str, extra: tuple[str, ...]
) -> None:
    take(small_sweep, "--pick", "best", "--task", task, "--to", str(tmp_path / "home"), *extra)
    file = tmp_path / "home" / ("trained_as.json" if extra else "run.json")
    spec = RunSpec.model_validate(json.loads(file.read_text())["spec"])
    sizes = {"train_examples": spec.training.train_examples, "eval_examples": spec.training.eval_examples}
    rows = load_splits(find_task(task, spec.data), spec.data, protocol=spec.protocol, **sizes).reported[""].to_pandas()
    body = json.dumps({"dataframe_records": rows.drop(columns="label").to_dict("records")}).encode()
    with served(small_sweep.uri, "models:/mood@champion", tmp_path) as address:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/invocations", body, headers)
        predictions = json.loads(urllib.request.urlopen(request, timeout=60).read())["predictions"]
    checkpoint, _ = newest_whole(str(small_sweep.folder / "ray"), spec.key, tmp_path)
    scored = load_file(checkpoint / "predictions.safetensors")["outputs"]
    labels = json.loads(file.read_text())["labels"]
    np.testing.assert_allclose([[row[label] for label in labels] for row in predictions], scored, atol=1e-5)


def test_versions_aliases_and_what_a_version_is_made_of(small_sweep: SmallSweep, cli: Cli) -> None:
    client = MlflowClient(small_sweep.uri)
    before = {place: run.info.end_time for place, run in runs(small_sweep.uri, "small").items()}
    record = read_folder(small_sweep.folder)
    for configuration in record.summaries:
        flags = ["--pick", configuration.configuration, "--task", "toy/sentiment", "--register", SHELF, "--json"]
        for _ in range(2):  # the same folder again is the same version
            report = cli("take", str(small_sweep.folder), *flags).report
            (adapter,) = report["adapters"]
            assert (adapter["path"], adapter["load"]) == (None, [])
            assert SHELF in report["registered"][0]
    versions = {one.tags["craft.configuration"]: one for one in client.search_model_versions(f'name = "{SHELF}"')}
    assert len(client.search_model_versions(f'name = "{SHELF}"')) == len(record.summaries) == len(versions)
    best = max(record.summaries, key=lambda one: (one.value("search_score"), -one.value("trainable_parameters")))
    champion = client.get_model_version_by_alias(SHELF, "champion")
    assert champion.tags["craft.configuration"] == best.configuration
    assert champion.description.startswith(f"**score {best.score.mean:.2f}** (")
    assert f"# {best.label} on toy/sentiment" in champion.description, "the model card"
    near = {alias for one in versions.values() for alias in client.get_model_version(SHELF, one.version).aliases}
    assert ("enough" in near) == any(one.enough for one in record.summaries)
    folder = Path(champion.source.removeprefix("file://"))
    flavor = yaml.safe_load((folder / "MLmodel").read_text())["flavors"]["python_function"]
    assert flavor["loader_module"] == "orchestrator.serving"
    assert "python_model" not in flavor
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt", ".bin")]
    assert client.get_run(champion.run_id).data.tags["craft.key"] == champion.tags["craft.key"]
    # Registering leaves the record of the sweep as it was.
    assert {place: run.info.end_time for place, run in runs(small_sweep.uri, "small").items()} == before


def test_two_tasks_are_two_models_and_a_store_without_the_trial_says_so(
    small_sweep: SmallSweep, tmp_path: Path, cli: Cli
) -> None:
    take(small_sweep, "--pick", "best")
    client = MlflowClient(small_sweep.uri)
    names = {model.name for model in client.search_registered_models()}
    assert {"mood-toy-sentiment", "mood-toy-paraphrase"} <= names
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    MlflowClient(empty).search_experiments()
    flags = ["--pick", "best", "--register", "mood", "--tracking-uri", empty]
    assert "craft-sweeps replay" in cli("take", str(small_sweep.folder), *flags, status=2).err
    said = cli("take", str(small_sweep.folder), "--pick", "best", "--register", "a/b", "--task", "toy/sentiment", status=2).err
    assert "a/b" in said
