"""`audit` as a command: what it prints, its status, what it writes, and what the tracking store gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboards.store import Store
from orchestrator.commands.app import main
from tests.craft.audit.plain_folders import CONFIGS, rows, saved


def test_its_report_is_in_the_store(
    tiny_bert: str, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    monkeypatch.setattr("craft.audit.audit._helps", lambda *_: True)
    capsys.readouterr()
    flags = ["--data", rows(tmp_path), "--label", "label", "--within", "100", "--to", str(tmp_path / "small"), "--json"]
    assert main(["audit", str(tmp_path / "whole"), *flags, "--tracking-uri", uri]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["report"], report["enough"], report["path"]) == ("audit", 64, str(tmp_path / "small"))
    assert report["cut_from"] is None
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("audits")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 5
    whole, size = runs["whole"], runs["64 parameters"]
    assert size.data.tags["mlflow.parentRunId"] == whole.info.run_id
    assert (size.data.metrics["trainable_parameters"], size.data.metrics["score"]) == (64, report["sizes"][-1]["score"])
    assert whole.data.metrics["score"] == report["score"]
    assert {file.path for file in client.list_artifacts(whole.info.run_id, "adapter")} >= {"adapter/adapter_model.safetensors"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert Store(uri).sweeps() == []


def test_a_store_that_is_none_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.db").write_text("hello, this is a text")
    flags = ["--data", "rows.csv", "--label", "label", "--tracking-uri", f"sqlite:///{tmp_path / 'no.db'}"]
    assert main(["audit", str(tmp_path), *flags]) == 2
    assert "is no SQLite database" in capsys.readouterr().err
