"""`audit` as a command: what it prints, its status and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.commands.app import main
from tests.craft.audit.plain_folders import CONFIGS, rows, saved


def test_its_report_names_the_smaller_adapter(
    tiny_bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tiny_bert, CONFIGS["lora"], tmp_path / "whole")
    monkeypatch.setattr("craft.audit.audit._helps", lambda *_: True)
    capsys.readouterr()
    flags = ["--data", rows(tmp_path), "--label", "label", "--within", "100", "--to", str(tmp_path / "small"), "--json"]
    assert main(["audit", str(tmp_path / "whole"), *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["report"], report["enough"], report["path"]) == ("audit", 64, str(tmp_path / "small"))
    assert report["cut_from"] is None
    assert (tmp_path / "small" / "adapter_model.safetensors").exists()
